"""The options of every Scale0 command as types, shared by JSON frames and BATCH (PROTOCOL sections 2 to 5).

Unknown options are ignored; the decoder rejects wrong types. "Extension" marks an option that other implementations may
omit.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.errors import Refusal

MAX_ID_CHARS: Final = 128
"""Length of a frontend's own request id."""
MAX_NUMBER_DIGITS: Final = 15
MAX_TEXT_CHARS: Final = MAX_ID_CHARS - MAX_NUMBER_DIGITS
"""The parts of an id in a batch: a text, and a number in decimal digits."""

RequestId = (
    Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARS)] | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
)
"""The id is returned unchanged, in JSON or MessagePack, so it must fit both."""
MAX_HOLDS_BYTES: Final = 1_048_576
"""Room for some 25,000 tasks and requests."""
IdText = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
IdNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**MAX_NUMBER_DIGITS)]
Version = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A configuration version, within the range of the stores."""
Code = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""An error code, within the range of the event segments."""


class CheckConfig(msgspec.Struct, frozen=True):
    """CHECKCONFIG: negotiate, with the version of the client's configuration."""

    config_type: str = "json"
    identity: str | None = None
    services: list[str] | None = None
    config_version: Version | None = None
    configversion: Version | None = None
    config_hash: str | None = None
    batch: bool = False
    request_batches: bool = False
    """It accepts REQUESTS and REPLIES. Extension."""

    @property
    def version(self) -> int | None:
        """The client's version, in either spelling."""
        return self.config_version if self.config_version is not None else self.configversion


class ConfigAck(msgspec.Struct, frozen=True):
    """CONFIGACK: version and hash match."""

    identity: str
    config_version: int
    config_hash: str = ""
    owner: str | msgspec.UnsetType = msgspec.UNSET
    """The owner of the tasks here, if that is a group that shares a store."""
    server_key: str | msgspec.UnsetType = msgspec.UNSET
    """With CURVE: the broker's public key, to be expected at the next connection. Extension."""
    request_batches: bool = False
    """The broker accepts REQUESTS and REPLIES. Extension."""
    long_holds: bool = False
    """The broker reads `holds` from the body of READY. Extension."""


class Config(msgspec.Struct, frozen=True):
    """CONFIG: a newer configuration document."""

    identity: str
    config_type: str
    config_version: int
    config_hash: str
    owner: str | msgspec.UnsetType = msgspec.UNSET
    server_key: str | msgspec.UnsetType = msgspec.UNSET
    request_batches: bool = False
    long_holds: bool = False


class Enrol(msgspec.Struct, frozen=True):
    """ENROL: register this public key with a join token."""

    name: str
    public_key: str


class Enrolled(msgspec.Struct, frozen=True):
    """ENROLLED: the key is registered."""

    name: str
    identity: str = ""
    """The broker's identity. Extension."""


class Ready(msgspec.Struct, frozen=True):
    """READY: a backend offers services."""

    services: list[str]
    identity: str | None = None
    heartbeat_interval: float | None = None
    time: float | None = None
    config_version: Version | None = None
    slots: int = 1
    """The most requests and tasks at once, of all services together."""
    service_slots: list[int] = []
    """The same for each of `services`, in their order; none: the total counts for each."""
    prefetch: int = 0
    holds: list[tuple[str, int]] = []
    returns: bool = False
    """The backend answers a recall: a returned task has not started, and never will."""


_read_holds: Final = msgspec.msgpack.Decoder(list[tuple[str, int]]).decode
pack_holds: Final = msgspec.msgpack.Encoder().encode


def read_holds(body: bytes) -> list[tuple[str, int]]:
    """The `holds` in the body of READY, where they do not fit into the options. Raises Refusal."""
    if len(body) > MAX_HOLDS_BYTES:
        raise Refusal(codes.TOO_BIG, f"the body of READY has at most {MAX_HOLDS_BYTES} bytes")
    try:
        return _read_holds(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Refusal(codes.MALFORMED, f"the body of READY is an array of ids and attempts: {error}") from error


class ReadyOk(msgspec.Struct, frozen=True):
    """READYOK: the offer is accepted; use this heartbeat interval."""

    identity: str
    heartbeat_interval: float
    time: float
    config_version: int


class Heartbeat(msgspec.Struct, frozen=True):
    """HEARTBEAT."""

    time: float | None = None
    config_version: Version | None = None
    server_key: str | msgspec.UnsetType = msgspec.UNSET
    """The broker's public key, while it rotates. Extension."""


class Hello(msgspec.Struct, frozen=True):
    """HELLO: the identity and state of another broker."""

    identity: str
    group: str = ""
    state: str = ""
    services: list[str] | str = "all"
    endpoints: dict[str, str] = {}
    config_version: Version = 0
    config_hash: str = ""
    time: float | None = None
    batch: bool = False
    """It accepts BATCH. Extension."""
    standby_for: str = ""
    """The broker whose clients it would take over. Extension."""
    previous_key: str = ""
    """The previous public key of the broker, while it rotates. Extension."""


class PeerHeartbeat(msgspec.Struct, frozen=True):
    """HEARTBEAT between brokers, with state and load. `config_hash` is an extension."""

    time: float | None = None
    state: str = ""
    config_version: Version = 0
    config_hash: str = ""
    load: float = 0.0


class Table(msgspec.Struct, frozen=True):
    """TABLE: clients of another broker, all of them or the changes. `version` is an extension."""

    seq: Version
    full: bool = False
    version: Version = 0


class TableReq(msgspec.Struct, frozen=True):
    """TABLEREQ: request all clients, or those that offer these services."""

    services: list[str] = []
    keys: bool = False
    """Request all keys as well. Extension."""


class Forward(msgspec.Struct, frozen=True):
    """FORWARD: run this request on one of the peer's backends."""

    service: str
    id: RequestId
    timeout: float = 30.0
    hops: int = 1
    sender: str = ""
    """The client that sent the request to the first broker: its key, or a name of its connection."""


class PeerCheckConfig(CheckConfig, frozen=True):
    """CHECKCONFIG of another broker, which wants the whole document."""

    role: str | None = None


class PeerConfig(Config, frozen=True):
    """CONFIG to another broker: the whole document."""

    conflict: bool = False
    """The document does not descend from the receiver's. Extension."""


class ForceNegotiate(msgspec.Struct, frozen=True):
    """FORCENEGOTIATE: start again with CHECKCONFIG."""

    reason: str = ""


class NeedBroker(msgspec.Struct, frozen=True):
    """NEEDBROKER: the client's broker does not answer; request another one."""

    identity: str | None = None
    services: list[str] = []
    preferred_broker: str | None = None


class ChangeBroker(msgspec.Struct, frozen=True):
    """CHANGEBROKER: use this broker."""

    broker: str
    group: str = ""
    endpoints: dict[str, str] = {}
    preferred: bool = False
    after: float = 0.0


class Disconnect(msgspec.Struct, frozen=True):
    """DISCONNECT: an orderly end."""


class DisconnectError(msgspec.Struct, frozen=True):
    """DISCONNECTERROR: the broker ends the connection."""

    code: int
    message: str = ""


class Request(msgspec.Struct, frozen=True):
    """REQUEST: call a service."""

    service: str
    id: RequestId
    timeout: float | None = None
    retry: bool = False


class ManyRequests(msgspec.Struct, frozen=True):
    """REQUESTS: several requests for a service. Their ids are `id`, followed by `first` and the next numbers."""

    service: str
    id: IdText
    first: IdNumber
    timeout: float | None = None
    retry: bool = False


class Answer(msgspec.Struct, frozen=True):
    """PARTIAL and REPLY: a part of the answer, or its end."""

    id: RequestId
    service: str | None = None


class ManyReplies(msgspec.Struct, frozen=True):
    """REPLIES: the replies to requests with consecutive numbers, as in REQUESTS."""

    id: IdText
    first: IdNumber
    service: str | None = None


class Error(msgspec.Struct, frozen=True):
    """ERROR: the request failed."""

    id: RequestId
    code: Code = 500
    message: str = ""
    unrun: bool = False
    """Between brokers: no backend has received the request, so it may run elsewhere."""


class Tasks(msgspec.Struct, frozen=True):
    """TASKS, TASKSTATUS, TASKSDONE, TASKSOK: everything is in the body."""


class TasksCancel(msgspec.Struct, frozen=True, omit_defaults=True):
    """TASKSCANCEL: the results of these tasks are not wanted any more."""

    recall: bool = False
    """Only tasks that have not started: they are returned by TASKSTATUS, the others go on."""


class ManagementReq(msgspec.Struct, frozen=True):
    """MANAGEMENTREQ: an administrative command, with the arguments of all commands."""

    command: str
    id: RequestId = ""
    auth_id: str = ""
    auth_password: str | None = None
    auth_token: str | None = None
    local_token: str | None = None
    """The token of the broker's machine: the sender limits passwords itself, and wrong ones are answered at once."""
    config: Any = None
    base: Version | None = None
    set: dict[str, Any] = {}
    remove: list[str] = []
    version: Version | None = None
    client: str | None = None
    task_id: str | None = None
    status: str | None = None
    method: str | None = None
    name: str | None = None
    role: str | None = None
    ttl: float | None = None
    token: str | None = None
    token_id: str | None = None
    once: bool = False
    agent: str | None = None
    check: str | None = None
    args: dict[str, Any] = {}
    timeout: float | None = None
    recheck: bool | None = None
    origin: str = ""
    """On whose behalf the sender asks, such as the address of an HTTP client. It is recorded, and never trusted."""
    limit: int = 100
    after: str | None = None


class ManagementRep(msgspec.Struct, frozen=True):
    """MANAGEMENTREP: the answer to a management command."""

    id: RequestId
    code: int
    message: str = ""
