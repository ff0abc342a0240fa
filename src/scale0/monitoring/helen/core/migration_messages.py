"""What two Helens say to each other about an agent: let go of it, which of these have you, and the answers.

Lives here: bodies of `helen.<identity>.release` and `helen.<identity>.has`, and reading them. Never here: what is done
about them (`helen_handover`). Invariant: whatever a body holds is bounded, and an answer that cannot be read says
nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from scale0.monitoring.helen.core.agents import MAX_MERGED
from scale0.monitoring.helen.core.migrated_agents import AgentBundle

PAGE: Final = 500
"""Agents in one question whether they are elsewhere."""
Name = Annotated[str, msgspec.Meta(max_length=255)]


class ReleaseBody(msgspec.Struct, frozen=True):
    """Of `helen.<identity>.release`: let go of an agent, it is here."""

    agent: Name
    to: Name
    merged: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_MERGED)] = ()
    """The last handovers by which it came there: one of ours among them has arrived."""


class HasBody(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """Of `helen.<identity>.has`: which of these are connected to you?"""

    agents: Annotated[list[Name], msgspec.Meta(max_length=2 * PAGE)]
    sender: Name = ""
    """Who has something of theirs to hand over; blank: nobody, it is only a question."""


class Held(msgspec.Struct, frozen=True):
    """The answer to `has`: these are here."""

    held: list[str] = []


class Released(msgspec.Struct, frozen=True):
    """The answer to `release`: all that is known of the agent; None: nothing is."""

    rows: AgentBundle | None = None


to_json: Final = msgspec.json.Encoder().encode
decode_released: Final = msgspec.json.Decoder(Released).decode
_decode_held: Final = msgspec.json.Decoder(Held).decode

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading an answer may raise."""


def held_of(value: Any) -> list[str]:
    """Whom she says that she has; nobody, if she did not answer or is not understood."""
    if not isinstance(value, bytes):
        return []
    try:
        return _decode_held(value).held
    except UNREADABLE:
        return []
