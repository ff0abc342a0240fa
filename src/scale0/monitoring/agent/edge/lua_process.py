"""A Lua process: it executes Lua checks, each in a fresh Lua state.

It compiles sources, passes arguments to Lua and reads the results; it does not import asyncio. The agent kills a
process whose run takes too long. Invariants: a state executes one check and is closed before the answer is sent, so
that closing it counts towards the run's time; answers are sent in the order of the requests.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import socket
import time
from typing import Any, Final

import msgspec
from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime

from scale0.history.events.columns import EventMetric
from scale0.kernel.edge.parent_death import end_with_parent
from scale0.monitoring.agent.edge import lua_connection, sandbox
from scale0.monitoring.agent.edge.lua_host import ask
from scale0.monitoring.agent.edge.lua_prelude import FIELDS, MAX_STATE_BYTES, PRELUDE
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
TOO_MUCH_MEMORY: Final = f"it needed more than {STATE_BYTES // 2**20} MiB of memory"
COMPILE_BYTES: Final = 64 * 2**20
STATES: Final[dict[bytes, State]] = {b"ok": OK, b"warning": WARNING, b"critical": CRITICAL, b"unknown": UNKNOWN}
CPU_SECONDS: Final = 600
"""CPU time that a process may use until the limit is renewed."""
MAX_ARGS_DEPTH: Final = 32

_decode: Final = msgspec.msgpack.Decoder(lua_connection.LuaScript | lua_connection.LuaBatch).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_read_args: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _deny(_object: object, _name: object, _is_setting: bool) -> object:
    """Deny every attribute of Python objects: Lua can reach none, and this is the second barrier."""
    raise AttributeError("Lua checks cannot use Python objects")


def fresh_state() -> LuaRuntime:
    return LuaRuntime(
        encoding=None,  # bytes: the text of a check may be invalid UTF-8
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
    """The bytecode of a check's file; a str is the compiler's error. `bare`: without debug information."""
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
    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._codes: dict[str, bytes | str] = {}
        self._spare: LuaRuntime | None = None
        self._renew_limit_at = 0.0

    def serve(self) -> None:
        self._agent.send(_encode(lua_connection.LuaHello(os.getpid())))
        while True:
            self._limit_cpu()
            if self._spare is None:  # created in advance, so that the next run starts at once
                self._spare = fresh_state()
            size = self._agent.recv_into(lua_connection.receive_buffer)
            if not size:
                return
            message = _decode(lua_connection.receive_buffer[:size])
            if isinstance(message, lua_connection.LuaScript):
                self._codes[message.name] = compiled(message.name, message.source)
                continue
            for task in message.tasks:
                answer = _encode(lua_connection.LuaAnswer(task.number, self._run(task)))
                if len(answer) > lua_connection.MAX_MESSAGE_BYTES:
                    answer = _encode(
                        lua_connection.LuaAnswer(task.number, CheckFinding(UNKNOWN, "the check's result is too long"))
                    )
                self._agent.send(answer)

    def _run(self, task: lua_connection.LuaTask) -> CheckFinding:
        started, begun = time.time(), time.perf_counter()
        code = self._codes.get(task.name, "there is no such check")
        if isinstance(code, str):
            return CheckFinding(UNKNOWN, code, (), started, 0.0)
        state, self._spare = self._spare, None
        if state is None:
            state = fresh_state()
        try:
            args = lua_args(state, task.args)
            values = state.execute(_PRELUDE_CODE, code, task.name.encode(), args, ask, mode=b"b")
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
        used = time.process_time()
        if used >= self._renew_limit_at:
            self._renew_limit_at = used + 1.0
            sandbox.limit_cpu(int(used) + CPU_SECONDS)


class BadArgs(Exception):
    """Arguments that cannot be passed to Lua."""


def lua_args(state: LuaRuntime, args: bytes) -> object:
    """A JSON object as a Lua table, None for an empty one; null becomes nil."""
    given: dict[str, Any] = {}
    if args and args != b"{}":
        try:
            given = _read_args(args)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadArgs(f"the arguments are not a JSON object: {error}") from None
    return state.table_from(_plain(given, 0), recursive=True) if given else None


def _plain(value: Any, depth: int) -> Any:
    """Only values that become Lua values, never Python objects that Lua could use; strings as bytes, for lupa."""
    if depth > MAX_ARGS_DEPTH:
        raise BadArgs("the arguments are nested too deep")
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
            raise BadArgs("a number in the arguments is out of range") from None
    return value


def read_values(values: Any) -> CheckFinding:
    """The finding in the values that the prelude returned."""
    word, message, *rest = values
    text = message.decode("utf-8", "replace")[:MAX_MESSAGE_CHARS]
    if word == b"failed":
        return CheckFinding(UNKNOWN, TOO_MUCH_MEMORY if text == "not enough memory" else text)
    state = STATES.get(word)
    if state is None:
        given = word.decode("utf-8", "replace") + ("…" if len(word) >= MAX_STATE_BYTES else "")
        return CheckFinding(UNKNOWN, f"invalid state {given!r}, expected ok, warning, critical or unknown: {text}")
    metrics = []
    for first in range(0, len(rest), FIELDS):
        title, value, unit, *limits = rest[first : first + FIELDS]
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


def serve(agent: socket.socket, user: sandbox.CheckUser | None, _cgroup: str) -> None:
    """The main function of a Lua process, which the launcher has just started."""
    parent = os.getppid()
    if user is not None:
        sandbox.become(user)
    end_with_parent(signal.SIGKILL)  # after the change of user, which resets it
    if os.getppid() != parent:
        os._exit(1)
    sandbox.apply_limits(sandbox.LUA_LIMITS)
    sandbox.forbid_new_privileges()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_STACK, (8 * 2**20, 8 * 2**20))
    with contextlib.suppress(ConnectionError):
        LuaProcess(agent).serve()
