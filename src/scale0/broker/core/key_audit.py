"""The audit of keys: every key that was stored, replaced, removed, has expired, or got other permissions or another
expiry is recorded, also while the broker was stopped.

Invariant: the store has one setting for each key that was recorded, written with its event.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec

from scale0.broker.core.keys import Key
from scale0.broker.core.permissions import NO_RULES
from scale0.broker.core.state import BrokerState
from scale0.history.events.changes import KeyChanged
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.rows import DropSetting, PutSetting

SETTING: Final = "key:"
"""The prefix of the setting that holds the public key of a user, its rules and its expiry."""
SERVER_SETTING: Final = "server_key"
"""The setting that holds our own public key, and the previous one during a rotation."""
SERVER: Final = "server"
"""The user of events about our own key."""
MAX_CHANGES: Final = 1_000
"""Changes that one turn records."""


class KeyAudit:
    def __init__(self, state: BrokerState, settings: Mapping[str, bytes]) -> None:
        self._state = state
        self._recorded = {
            name.removeprefix(SETTING): value.decode() for name, value in settings.items() if name.startswith(SETTING)
        }
        self._server = settings.get(SERVER_SETTING, b"").decode()

    def record(self, _now: Now, effects: Effects) -> None:
        """Record how the current keys differ from those that were recorded."""
        if self._state.keys is None:
            return
        self._record_server(self._state.keys.server, effects)
        current = {user: text_of(key) for user, key in self._state.keys.by_user.items()}
        known = self._recorded
        changed = (user for user, text in current.items() if known.get(user) != text)
        removed = (user for user in known if user not in current)
        users = [*islice(changed, MAX_CHANGES), *islice(removed, MAX_CHANGES)][:MAX_CHANGES]
        for user in users:
            before, text = known.pop(user, ""), current.get(user)
            if text is None:
                state = "expired" if user in self._state.keys.expired else "removed"
                effects.record(KeyChanged(user, state, public_of(before)))
                effects.write(DropSetting(SETTING + user))
                continue
            key = self._state.keys.by_user[user]
            expires = 0.0 if key.is_token else key.expires
            state = change_of(before, text)
            effects.record(KeyChanged(user, state, key.public, key.rules.allow, key.rules.deny, expires))
            effects.write(PutSetting(SETTING + user, text.encode()))
            known[user] = text
        if len(users) == MAX_CHANGES:
            effects.after_commit(self.record)

    def _record_server(self, server: tuple[str, str], effects: Effects) -> None:
        """Record the steps of a rotation of our own key."""
        text = " ".join(server).strip()
        if text == self._server:
            return
        if self._server:
            state = "rotating" if server[1] else "rotated" if public_of(self._server) == server[0] else "replaced"
            effects.record(KeyChanged(SERVER, state, server[0]))
        self._server = text
        effects.write(PutSetting(SERVER_SETTING, text.encode()))


def text_of(key: Key) -> str:
    """What is stored of a key: the public key, and the rules and the expiry if it has any."""
    expires = () if key.is_token or not key.expires else (key.expires,)
    if key.rules == NO_RULES and not expires:
        return key.public
    return f"{key.public} {msgspec.json.encode((*key.rules, *expires)).decode()}"


def change_of(before: str, after: str) -> str:
    """The state of the event, by what is stored of a key before and after."""
    if not before:
        return "stored"
    if public_of(before) != public_of(after):
        return "replaced"
    return "dated" if rules_of(before) == rules_of(after) else "permitted"


def rules_of(text: str) -> list[object]:
    facts: list[object] = msgspec.json.decode(text.partition(" ")[2] or b"[[],[]]")
    return facts[:2]


def public_of(text: str) -> str:
    return text.partition(" ")[0]
