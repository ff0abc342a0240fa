"""The arguments of every method of PROTOCOL 6, by position and by name: names, types, defaults and ranges. Invariant:
valid arguments fit the store and the journal; unknown names are refused, so that a misspelt option is not silently
ignored; arguments that are decoded to values have few numbers that are slow to decode."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from scale0.kernel.json_text import MAX_OPTION_EXPONENTS, has_slow_numbers
from scale0.tasks.jsonrpc.messages import INVALID_PARAMS, RpcError

MAX_PRIORITY: Final = 9
DEFAULT_PRIORITY: Final = 4
DEFAULT_TIMEOUT_SECONDS: Final = 3_600.0
DEFAULT_MAX_ATTEMPTS: Final = 3
DEFAULT_RESULT_SECONDS: Final = 86_400.0
MAX_SECONDS: Final = 366 * 86_400.0
"""The longest delay, timeout, backoff or result_ttl."""
MAX_WALL_SECONDS: Final = 253_402_300_799.0
"""The latest `at`: the end of the year 9999."""
MAX_ATTEMPTS: Final = 10_000
MAX_KEY_CHARS: Final = 255
MAX_AFTER: Final = 1_000
"""Dependencies of one task."""
MAX_WAIT_IDS: Final = 10_000
"""Tasks in one client_task_wait."""
MAX_WAIT_SECONDS: Final = 300.0
DEFAULT_WAIT_SECONDS: Final = 30.0
MAX_PULL: Final = 1_000
"""Tasks returned by one node_tasks_request."""
MAX_NODE_METHODS: Final = 1_000
MAX_HOLDS: Final = 100_000
"""Tasks that a node may report as held in one call."""

ARRAY_START: Final = ord("[")

Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
Holds = Annotated[list[tuple[str, int]], msgspec.Meta(max_length=MAX_HOLDS)]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]


class NewTaskOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = DEFAULT_PRIORITY
    delay: Seconds | None = None
    at: Annotated[float, msgspec.Meta(ge=0, le=MAX_WALL_SECONDS)] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] | None = None
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    backoff: Seconds = 0.0
    result_ttl: Seconds = DEFAULT_RESULT_SECONDS
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)] | None = None
    after: Annotated[list[str], msgspec.Meta(max_length=MAX_AFTER)] = []
    notify: bool = False


class StoredOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The options that are needed after a task was accepted, as the store keeps them."""

    timeout: float = DEFAULT_TIMEOUT_SECONDS
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: float = 0.0
    result_ttl: float = DEFAULT_RESULT_SECONDS
    notify: int = 0
    """The number of the connection to notify; 0: none."""
    digest: bytes = b""
    """Of the params of a task with a key; empty: no key, or stored by a version without digests."""
    at: bool = False
    """Its first attempt is due at a calendar time, and not after a delay."""


USUAL: Final = NewTaskOptions()
NO_OPTIONS: Final = msgspec.Raw(b"null")


class ClientConnect(msgspec.Struct, forbid_unknown_fields=True):
    client_id: str | None = None


class ClientDisconnect(msgspec.Struct, forbid_unknown_fields=True):
    client_id: str


class NewTask(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    client_id: str
    method: str
    params: msgspec.Raw
    task_id: str | None = None
    options: msgspec.Raw = NO_OPTIONS
    """As `read_options` decodes them."""


class OfTask(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """client_task_status, client_task_result and client_task_cancel."""

    client_id: str
    task_id: str


class TaskWait(msgspec.Struct, forbid_unknown_fields=True):
    client_id: str
    task_ids: Annotated[list[str], msgspec.Meta(max_length=MAX_WAIT_IDS)]
    timeout: Annotated[float, msgspec.Meta(ge=0)] | None = None


class NodeConnect(msgspec.Struct, forbid_unknown_fields=True):
    node_id: str | None = None
    methods: list[str] | None = None


class OfNode(msgspec.Struct, forbid_unknown_fields=True):
    """node_disconnect."""

    node_id: str


class NodeHeartbeat(msgspec.Struct, forbid_unknown_fields=True):
    node_id: str
    holds: Holds | None = None
    """The tasks that it has: id and attempt. None: it does not report them."""


class NodeStatus(msgspec.Struct, forbid_unknown_fields=True):
    node_id: str
    status: msgspec.Raw = msgspec.Raw(b"null")


class ShortTaskRequest(msgspec.Struct, forbid_unknown_fields=True):
    """node_task_request, with the node taken from the connection."""

    task_id: str


class TaskRequest(msgspec.Struct, forbid_unknown_fields=True):
    node_id: str
    task_id: str


class TasksRequest(msgspec.Struct, forbid_unknown_fields=True):
    node_id: str
    limit: Annotated[int, msgspec.Meta(ge=0)] | None = None
    holds: Holds | None = None


class ShortTaskFinished(msgspec.Struct, forbid_unknown_fields=True):
    """node_task_finished, with the node taken from the connection."""

    task_id: str
    task_result: msgspec.Raw


class TaskFinished(msgspec.Struct, forbid_unknown_fields=True):
    node_id: str
    task_id: str
    task_result: msgspec.Raw
    attempt: int | None = None


class ShortNodeTaskFailed(msgspec.Struct, forbid_unknown_fields=True):
    """node_task_failed, with the node taken from the connection."""

    task_id: str
    error: msgspec.Raw


class NodeTaskFailed(msgspec.Struct, forbid_unknown_fields=True):
    node_id: str
    task_id: str
    error: msgspec.Raw
    attempt: int | None = None


class ErrorObject(msgspec.Struct):
    """A JSON-RPC error as a node reports it."""

    code: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
    message: str
    data: msgspec.Raw = msgspec.Raw()
    retry: bool = False
    after: msgspec.Raw = msgspec.Raw(b"0")
    """Minimum delay before the next attempt, in seconds."""


_options: Final = msgspec.json.Decoder(NewTaskOptions | None)
_seconds: Final = msgspec.json.Decoder(Seconds)


def read_options(options: msgspec.Raw, max_bytes: int) -> NewTaskOptions:
    """The options of a new task. Their size is checked before they are decoded."""
    if options is NO_OPTIONS:
        return USUAL
    data = bytes(options)
    if len(data) > max_bytes:
        raise RpcError(INVALID_PARAMS, f"options are over {max_bytes} bytes")
    return decode_value(_options, data, "options") or USUAL


def read_seconds(value: msgspec.Raw, name: str) -> float:
    seconds: float = decode_value(_seconds, bytes(value), name)
    return seconds


def decode_value(decoder: msgspec.json.Decoder[Any], data: bytes, name: str) -> Any:
    """Decodes a part of the arguments, which `name` names in errors."""
    if has_slow_numbers(data, MAX_OPTION_EXPONENTS):
        raise RpcError(INVALID_PARAMS, f"{name}: more than {MAX_OPTION_EXPONENTS} numbers with an exponent")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RpcError(INVALID_PARAMS, f"{name}: {error}"[:500]) from error


class ArgumentForm:
    """Decodes the arguments of one method, by position or by name. A form with a part that stays JSON (Raw) has no
    floats of its own, because that part may have any number of them."""

    __slots__ = ("_by_name", "_by_place", "_is_decoded")

    def __init__(self, by_name: type[msgspec.Struct]) -> None:
        self._is_decoded = not any(field.type is msgspec.Raw for field in msgspec.structs.fields(by_name))
        self._by_name: msgspec.json.Decoder[Any] = msgspec.json.Decoder(by_name)
        fields: list[Any] = []
        for field in msgspec.structs.fields(by_name):
            if field.default is not msgspec.NODEFAULT:
                fields.append((field.name, field.type, field.default))
            elif field.default_factory is not msgspec.NODEFAULT:
                fields.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
            else:
                fields.append((field.name, field.type))
        placed = msgspec.defstruct(by_name.__name__, fields, array_like=True, forbid_unknown_fields=True, gc=False)
        self._by_place: msgspec.json.Decoder[Any] = msgspec.json.Decoder(placed)

    def read(self, params: msgspec.Raw) -> Any:
        try:
            data = bytes(params)
            if self._is_decoded and has_slow_numbers(data, MAX_OPTION_EXPONENTS):
                raise ValueError(f"more than {MAX_OPTION_EXPONENTS} numbers with an exponent")
            return self._by_place.decode(data) if data[0] == ARRAY_START else self._by_name.decode(data)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise RpcError(INVALID_PARAMS, str(error)[:500]) from error


class TwoArgumentForms:
    """Two forms of one method: the short one (without the node) has `short_count` positions."""

    __slots__ = ("_long", "_short", "_short_count")

    def __init__(self, short: type[msgspec.Struct], long: type[msgspec.Struct]) -> None:
        self._short = ArgumentForm(short)
        self._long = ArgumentForm(long)
        self._short_count = len(msgspec.structs.fields(short))

    def read(self, params: msgspec.Raw) -> Any:
        try:
            parts = msgspec.json.decode(params, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise RpcError(INVALID_PARAMS, str(error)[:500]) from error
        short = "node_id" not in parts if isinstance(parts, dict) else len(parts) <= self._short_count
        return (self._short if short else self._long).read(params)
