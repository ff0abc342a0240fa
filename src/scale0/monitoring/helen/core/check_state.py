"""The state of one check on one agent: soft and hard, its history of changes, and whom it was told to.

Lives here: `CheckState`, what a result does to it, and its bytes in the store. Never here: thresholds, notices, time.
Invariants: a problem is hard from the `max_attempts`-th result in a row that is not ok, whatever these were, and stays
hard until ok; ok is hard at once; `attempt` counts only while a problem is soft; gaps and other settings reset nothing.
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
"""Hard, these are down; a warning is up."""


class CheckState(msgspec.Struct, array_like=True, gc=False):
    """Where a check stands. Its fields in this order are its row; new ones go to the end, with a default."""

    state: str = NONE
    hard: bool = False
    attempt: int = 0
    """Problems in a row while they are soft; 0 once ok or hard."""
    flapping: bool = False
    history: int = 0
    """The last 20 changes as bits, the newest lowest."""
    known: int = 0
    """States seen, at most 21."""
    weighed: str = NONE
    """The last state that entered the history."""
    at: float = 0.0
    """When the last result was, by the wall clock."""
    since: float = 0.0
    """When state, hardness or flapping last changed."""
    ref: str = ""
    seconds: float | None = None
    message: str = ""
    notified: str = OK
    """The hard state that handlers were last told."""
    notified_handlers: tuple[str, ...] = ()
    """The handlers that were told of a problem and not yet of its end."""
    held: bool = False
    """A notice is due and suppressed."""
    notified_at: float = 0.0
    """When `told` last became another, by the wall clock."""

    @property
    def down(self) -> bool:
        """True for a hard critical or unknown."""
        return self.hard and self.state in DOWN

    @property
    def problem(self) -> bool:
        """True for a hard problem of any kind."""
        return self.hard and self.state != OK

    def advance(self, state: str, max_attempts: int, rule: FlapRule | None) -> bool:
        """Take a result; True if state, hardness or flapping is another now."""
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
"""A state's bytes in the store."""
from_row: Final = msgspec.msgpack.Decoder(CheckState).decode
"""The state of a row's bytes."""

MAX_NOTIFIED_HANDLERS: Final = 1_000
"""Handlers in a row that another Helen wrote."""


def read_foreign(body: bytes) -> CheckState:
    """The state of a row that another Helen wrote. ValueError or MsgspecError: nothing like it can be true."""
    state = from_row(body)
    times = (state.at, state.since, state.notified_at, 0.0 if state.seconds is None else state.seconds)
    if (
        state.state not in SEVERITY
        or state.notified not in SEVERITY
        or (state.weighed and state.weighed not in SEVERITY)
        or not all(math.isfinite(each) and each >= 0.0 for each in times)
        or not (state.attempt >= 0 and 0 <= state.history <= HISTORY and 0 <= state.known <= STATES)
        or len(state.notified_handlers) > MAX_NOTIFIED_HANDLERS
    ):
        raise ValueError("no check can be in such a state")
    state.message = state.message[:MAX_MESSAGE_CHARS]
    return state


def join_states(ours: CheckState, theirs: CheckState) -> CheckState:
    """One state of two that went apart: the newer result's, and of what people were told, the last."""
    state, other = (theirs, ours) if theirs.at > ours.at else (ours, theirs)
    if other.notified_at > state.notified_at:
        state.notified, state.notified_at = other.notified, other.notified_at
    state.notified_handlers = (
        () if state.notified == OK else tuple(dict.fromkeys((*state.notified_handlers, *other.notified_handlers)))
    )
    return state
