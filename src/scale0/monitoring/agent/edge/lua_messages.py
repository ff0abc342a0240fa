"""What an agent and its Lua children say to each other, in msgpack, one message each.

Lives here: the messages and their size. Never here: Lua, or asyncio.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scale0.monitoring.protocol.results import CheckFinding

MAX_MESSAGE_BYTES: Final = 200_000
"""Of one message, either way: what the kernel takes in one piece."""


class LuaScript(msgspec.Struct, frozen=True, tag=0, array_like=True):
    """agent → child: the newest text of a check."""

    name: str
    source: bytes


class LuaTask(msgspec.Struct, frozen=True, array_like=True):
    """Run it; `args` is a JSON object, or nothing at all."""

    number: int
    name: str
    args: bytes


class LuaBatch(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """agent → child: run these, in this order."""

    tasks: list[LuaTask]


class LuaHello(msgspec.Struct, frozen=True, array_like=True):
    """child → agent, first."""

    pid: int


class LuaAnswer(msgspec.Struct, frozen=True, array_like=True):
    """child → agent: what a run found."""

    number: int
    finding: CheckFinding
