"""A Lua child: a process that runs Lua checks, each in a fresh state.

Lives here: source to bytecode, arguments to Lua, answers from it. Never here: asyncio, or when to give up: the agent
kills a child whose run takes too long. Invariants: a state runs one check and is closed before its answer goes out, so
that closing it counts towards its time; answers go out in the order in which runs came in.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import socket
import time
from typing import Any, Final

import msgspec
from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime

from scale0.history.events.columns import EventMetric
from scale0.monitoring.agent.edge.check_user import CheckUser
from scale0.monitoring.agent.edge.lua_host import ask
from scale0.monitoring.agent.edge.lua_messages import (
    MAX_MESSAGE_BYTES,
    LuaAnswer,
    LuaBatch,
    LuaHello,
    LuaScript,
    LuaTask,
)
from scale0.monitoring.agent.edge.lua_prelude import FIELDS, PRELUDE
from scale0.monitoring.agent.edge.sandbox import become, die_with_parent, limit_cpu, limit_lua
from scale0.monitoring.protocol.results import (
    CRITICAL,
    MAX_MESSAGE_CHARS,
    MAX_METRIC_NAME_CHARS,
    OK,
    UNKNOWN,
    WARNING,
    CheckFinding,
    State,
)

STATE_BYTES: Final = 32 * 2**20
"""Memory of one Lua state."""
TOO_MUCH_MEMORY: Final = f"it needed more than {STATE_BYTES // 2**20} MiB of memory"
COMPILE_BYTES: Final = 64 * 2**20
"""Memory while a file is compiled."""
STATES: Final[dict[bytes, State]] = {b"ok": OK, b"warning": WARNING, b"critical": CRITICAL, b"unknown": UNKNOWN}
CPU_SECONDS: Final = 600
"""CPU time that a child may take from one look at it to the next."""
MAX_ARGS_DEPTH: Final = 32


_heard: Final = msgspec.msgpack.Decoder(LuaScript | LuaBatch).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_read_args: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _deny(_object: object, _name: object, _is_setting: bool) -> object:
    """No attribute of any Python object: there is none in reach, and this is the second lock."""
    raise AttributeError("not here")


def fresh_state() -> LuaRuntime:
    """A state that has run nothing."""
    return LuaRuntime(
        encoding=None,  # bytes: a check's text may be no UTF-8
        register_eval=False,
        register_builtins=False,
        attribute_filter=_deny,
        unpack_returned_tuples=True,
        max_memory=STATE_BYTES,
    )


COMPILE: Final = b"""
local source, name, bare = ...
local chunk, why = load(source, "=" .. name, "t")
if not chunk then return nil, why end
return string.dump(chunk, bare)
"""


def compiled(name: str, source: bytes, bare: bool = False) -> bytes | str:
    """The bytecode of a check's file; a str says why there is none. `bare`: without lines and names."""
    state = LuaRuntime(encoding=None, register_eval=False, register_builtins=False, max_memory=COMPILE_BYTES)
    try:
        found = state.execute(COMPILE, source, name.encode(), bare)
    except LuaError as error:
        return _cut(str(error))
    if isinstance(found, bytes):
        return found
    return _cut(found[1].decode("utf-8", "replace"))


def _prelude() -> bytes:
    found = compiled("prelude", PRELUDE.encode(), bare=True)
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


class LuaProcess:
    """One connection's runs."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._codes: dict[str, bytes | str] = {}
        self._prelude = _PRELUDE_CODE
        self._spare: LuaRuntime | None = None
        self._looked = 0.0

    def serve(self) -> None:
        """Until the agent has no more use for us."""
        self._agent.send(_encode(LuaHello(os.getpid())))
        room = memoryview(bytearray(MAX_MESSAGE_BYTES))
        while True:
            self._limit_cpu()
            if self._spare is None:  # made while we wait, so that the next run starts at once
                self._spare = fresh_state()
            size = self._agent.recv_into(room)
            if not size:
                return
            message = _heard(room[:size])
            if isinstance(message, LuaScript):
                self._codes[message.name] = compiled(message.name, message.source)
                continue
            for task in message.tasks:
                answer = _encode(LuaAnswer(task.number, self._run(task)))
                if len(answer) > MAX_MESSAGE_BYTES:
                    answer = _encode(LuaAnswer(task.number, CheckFinding(UNKNOWN, "the check's result is too long")))
                self._agent.send(answer)

    def _run(self, task: LuaTask) -> CheckFinding:
        started, begun = time.time(), time.perf_counter()
        code = self._codes.get(task.name, "there is no such check")
        if isinstance(code, str):
            return CheckFinding(UNKNOWN, code, (), started, 0.0)
        state, self._spare = self._spare, None
        if state is None:
            state = fresh_state()
        try:
            args = lua_args(state, task.args)
            values = state.execute(self._prelude, code, task.name.encode(), args, ask, mode=b"b")
            found = read_values(values)
        except LuaMemoryError:
            found = CheckFinding(UNKNOWN, TOO_MUCH_MEMORY)
        except LuaError as error:
            found = CheckFinding(UNKNOWN, _cut(str(error)))
        except BadArgs as error:
            found = CheckFinding(UNKNOWN, str(error))
        args = None
        del state  # closes it
        return CheckFinding(found.state, found.message, found.metrics, started, time.perf_counter() - begun)

    def _limit_cpu(self) -> None:
        spent = time.process_time()
        if spent >= self._looked:
            self._looked = spent + 1.0
            limit_cpu(int(spent) + CPU_SECONDS)


class BadArgs(Exception):
    """Arguments that no check can be given."""


def lua_args(state: LuaRuntime, args: bytes) -> object:
    """A JSON object as a Lua table, None for an empty one; null is nil."""
    given: dict[str, Any] = {}
    if args and args != b"{}":
        try:
            given = _read_args(args)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadArgs(f"the arguments are no JSON object: {error}") from None
    return state.table_from(_plain(given, 0), recursive=True) if given else None


def _plain(value: Any, depth: int) -> Any:
    """Only what becomes a Lua value, never an object of Python in Lua's hands: lupa takes bytes for strings here."""
    if depth > MAX_ARGS_DEPTH:
        raise BadArgs("the arguments are too deep")
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, dict):
        return {key.encode("utf-8", "replace"): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            raise BadArgs("a number of the arguments is too large") from None
    return value


def read_values(values: Any) -> CheckFinding:
    """What the prelude gives back."""
    word, message, *rest = values
    text = message.decode("utf-8", "replace")[:MAX_MESSAGE_CHARS]
    if word == b"failed":
        return CheckFinding(UNKNOWN, TOO_MUCH_MEMORY if text == "not enough memory" else text)
    state = STATES.get(word)
    if state is None:
        said = word.decode("utf-8", "replace")
        return CheckFinding(UNKNOWN, f"the check's state is {said!r}, none of ok, warning, critical, unknown: {text}")
    metrics = []
    for place in range(0, len(rest), FIELDS):
        title, value, unit, *limits = rest[place : place + FIELDS]
        if title is None or value is None or not math.isfinite(value):
            continue
        label = title.decode("utf-8", "replace")
        if not 0 < len(label) <= MAX_METRIC_NAME_CHARS:
            continue
        warn, crit, low, high = (one if one is not None and math.isfinite(one) else None for one in limits)
        metrics.append(EventMetric(label, value, unit and unit.decode("utf-8", "replace"), warn, crit, low, high))
    return CheckFinding(state, text, tuple(metrics))


def _cut(text: str) -> str:
    return text[:MAX_MESSAGE_CHARS]


_PRELUDE_CODE: Final = _prelude()


def serve(agent: socket.socket, user: CheckUser | None, _room: str) -> None:
    """A child's life, in a process that the launcher has just made."""
    parent = os.getppid()
    if user is not None:
        become(user)
    die_with_parent(parent)  # after the change of user, which the kernel takes for a reason to forget it
    limit_lua()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_STACK, (8 * 2**20, 8 * 2**20))
    with contextlib.suppress(ConnectionError):
        LuaProcess(agent).serve()
