"""The state of one check on one agent: soft or hard, its history of changes, and the handlers that were notified.

A problem becomes hard with the `max_attempts`-th result in a row that is not ok, and stays hard until ok; ok is hard at
once. `attempt` counts only while a problem is soft. Gaps between results and changed settings reset nothing.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from scale0.monitoring.helen.core.flapping import HISTORY, STATES, FlapRule
from scale0.monitoring.protocol.results import CRITICAL, MAX_MESSAGE_CHARS, OK, SEVERITY, UNKNOWN

NONE: Final = ""
"""The state before the first result."""
DOWN: Final = frozenset({CRITICAL, UNKNOWN})
"""In a hard state these are down; a warning is up."""
NOTIFIED_STEP_SECONDS: Final = 0.001
"""The least time between two notifications of a check, so that of two Helens' states the newer is known."""


class CheckState(msgspec.Struct, array_like=True, gc=False):
    """The fields, in this order, are the row in the store; new fields go to the end, with a default."""

    state: str = NONE
    hard: bool = False
    attempt: int = 0
    """Problems in a row while soft; 0 once ok or hard."""
    flapping: bool = False
    history: int = 0
    """The last 20 transitions as bits, the newest lowest."""
    known: int = 0
    """Number of states in the history, at most 21."""
    weighed: str = NONE
    """The last state in the history."""
    at: float = 0.0
    """When the last result was, wall time."""
    since: float = 0.0
    """When state, hardness or flapping last changed."""
    ref: str = ""
    seconds: float | None = None
    message: str = ""
    notified: str = OK
    """The hard state that handlers were last notified of."""
    notified_handlers: tuple[str, ...] = ()
    """The handlers that were notified of a problem and not yet of its end."""
    held: bool = False
    """A notification is due and suppressed."""
    notified_at: float = 0.0
    """When `notified` last changed, wall time; it only grows, even if the clock is set back."""
    doubtful: str = ""
    """The Helen who may have closed its incident and notified of its recovery; empty: none. See decision 0048."""

    @property
    def down(self) -> bool:
        return self.hard and self.state in DOWN

    @property
    def problem(self) -> bool:
        return self.hard and self.state != OK

    def note_notified(self, wall: float) -> None:
        """Handlers were notified of the current state."""
        self.notified, self.notified_at = self.state, max(wall, self.notified_at + NOTIFIED_STEP_SECONDS)

    def advance(self, state: str, max_attempts: int, rule: FlapRule | None) -> bool:
        """Apply a result; True if state, hardness or flapping changed."""
        hard, flaps = self.hard, self.flapping
        if state == OK:
            now_hard = True
            self.attempt = 0
        elif hard and self.state != OK:
            now_hard = True
        else:
            self.attempt += 1
            now_hard = self.attempt >= max_attempts
            if now_hard:
                self.attempt = 0
        if rule is not None and (now_hard or not rule.hard_only):
            before = self.weighed
            if self.history or before != state:
                change = before not in (state, NONE)
                self.history = (self.history << 1 | change) & HISTORY
                self.weighed = state
            if self.known < STATES:
                self.known += 1
            now_flaps = rule.flaps(self.history, self.known, flaps) if self.history or flaps else False
        else:
            now_flaps = flaps and rule is not None
        if state == self.state and now_hard is hard and now_flaps is flaps:
            return False
        self.state, self.hard, self.flapping = state, now_hard, now_flaps
        return True


to_row: Final = msgspec.msgpack.Encoder().encode
from_row: Final = msgspec.msgpack.Decoder(CheckState).decode

MAX_HELEN_CHARS: Final = 255
MAX_NOTIFIED_HANDLERS: Final = 1_000
"""Notified handlers in another Helen's row."""


def read_foreign(body: bytes) -> CheckState:
    """Decode and validate another Helen's row. Raises ValueError or MsgspecError."""
    state = from_row(body)
    times = (state.at, state.since, state.notified_at, 0.0 if state.seconds is None else state.seconds)
    if (
        state.state not in SEVERITY
        or state.notified not in SEVERITY
        or (state.weighed and state.weighed not in SEVERITY)
        or not all(math.isfinite(each) and each >= 0.0 for each in times)
        or not (state.attempt >= 0 and 0 <= state.history <= HISTORY and 0 <= state.known <= STATES)
        or len(state.notified_handlers) > MAX_NOTIFIED_HANDLERS
        or len(state.doubtful) > MAX_HELEN_CHARS
    ):
        raise ValueError("invalid check state")
    state.message = state.message[:MAX_MESSAGE_CHARS]
    return state


def join_states(ours: CheckState, theirs: CheckState) -> CheckState:
    """Merge two states of one check: the newer result wins, and so does the newer notification."""
    state, other = (theirs, ours) if theirs.at > ours.at else (ours, theirs)
    if not other.doubtful:
        state.doubtful = ""
    if other.notified_at > state.notified_at:
        state.notified, state.notified_at = other.notified, other.notified_at
    state.notified_handlers = (
        () if state.notified == OK else tuple(dict.fromkeys((*state.notified_handlers, *other.notified_handlers)))
    )
    return state
