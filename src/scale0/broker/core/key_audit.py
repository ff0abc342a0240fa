"""The audit of keys: every key that was stored, replaced or removed is recorded, also while the broker was stopped.

Invariant: the store has one setting for each key that was recorded, written with its event.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from scale0.broker.core.state import BrokerState
from scale0.history.events.changes import KeyChanged
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.rows import DropSetting, PutSetting

SETTING: Final = "key:"
"""The prefix of the setting that holds the public key of a user."""
MAX_CHANGES: Final = 1_000
"""Changes that one turn records."""


class KeyAudit:
    def __init__(self, state: BrokerState, settings: Mapping[str, bytes]) -> None:
        self._state = state
        self._recorded = {
            name.removeprefix(SETTING): value.decode() for name, value in settings.items() if name.startswith(SETTING)
        }

    def record(self, _now: Now, effects: Effects) -> None:
        """Record how the current keys differ from those that were recorded."""
        if self._state.keys is None:
            return
        current, known = self._state.keys.by_user, self._recorded
        changed = (user for user, public in current.items() if known.get(user) != public)
        removed = (user for user in known if user not in current)
        users = [*islice(changed, MAX_CHANGES), *islice(removed, MAX_CHANGES)][:MAX_CHANGES]
        for user in users:
            public = current.get(user)
            if public is None:
                effects.record(KeyChanged(user, "removed", known.pop(user)))
                effects.write(DropSetting(SETTING + user))
            else:
                effects.record(KeyChanged(user, "replaced" if user in known else "stored", public))
                effects.write(PutSetting(SETTING + user, public.encode()))
                known[user] = public
        if len(users) == MAX_CHANGES:
            effects.after_commit(self.record)
