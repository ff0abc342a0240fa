"""One management command: what was said, by whom, and what came of it.

Lives here: the records, and the Asks that a command may wait for. Never here: what a command does (`management`).
Invariant: a command ends in one `Done` or one refusal, at once or after the Ask that it waits for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from scale0.base.now import Now
from scale0.base.step import Step
from scale0.broker import options
from scale0.broker.access import Admin
from scale0.broker.connection import Connection
from scale0.store.writes import ReadDocument, ReadDocuments


class Call(NamedTuple):
    """One command being done."""

    connection: Connection
    said: options.ManagementReq
    body: bytes
    admin: Admin
    now: Now
    step: Step


class ReadOwnFile(msgspec.Struct, frozen=True, eq=False):
    """An Ask: read the broker's own file again. The answer is a BrokerConfig, or the reasons why not."""

    call: Any


class ReadHistory(msgspec.Struct, frozen=True, eq=False):
    """An Ask for the store, with the command that waits for its answer."""

    ask: ReadDocuments | ReadDocument
    call: Any


class Done(NamedTuple):
    """What a command gives back."""

    result: Any
    before: Any = None
    after: Any = None
    changed: bool = False


Outcome = Done | None
"""None: the answer comes later, from an Ask."""
