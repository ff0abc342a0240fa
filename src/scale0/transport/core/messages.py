"""The options of every Scale0 command, as types: the one schema that JSON frames and BATCH share.

Lives here: names, types and defaults of PROTOCOL sections 2 to 5. Never here: what to do with them.
Invariant: unknown options are ignored, wrong types are refused by the decoder.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

MAX_ID_CHARS: Final = 128
"""Length of a frontend's own id."""

RequestId = (
    Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARS)] | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
)
"""A frontend's own id is given back as it came: in JSON or MessagePack, so it must fit both."""
Version = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Of a configuration: what a store can keep."""
Code = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Of an error: what a segment can keep."""


class CheckConfig(msgspec.Struct, frozen=True):
    """CHECKCONFIG: is my configuration right?"""

    config_type: str = "json"
    identity: str | None = None
    services: list[str] | None = None
    config_version: Version | None = None
    configversion: Version | None = None
    config_hash: str | None = None
    batch: bool = False

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
    """Whose tasks are told here, where that is not the broker alone: the group that shares a store."""


class Config(msgspec.Struct, frozen=True):
    """CONFIG: take this document."""

    identity: str
    config_type: str
    config_version: int
    config_hash: str
    owner: str | msgspec.UnsetType = msgspec.UNSET


class Enrol(msgspec.Struct, frozen=True):
    """ENROL: let this key in, for a token."""

    name: str
    public_key: str


class Enrolled(msgspec.Struct, frozen=True):
    """ENROLLED: it is let in."""

    name: str
    identity: str = ""
    """The broker's; ours to add."""


class Ready(msgspec.Struct, frozen=True):
    """READY: I take work."""

    services: list[str]
    identity: str | None = None
    heartbeat_interval: float | None = None
    time: float | None = None
    config_version: Version | None = None
    slots: int = 1
    prefetch: int = 0
    holds: list[tuple[str, int]] = []
    returns: bool = False
    """It answers a recall: what it gives back it has not begun, and never will."""


class ReadyOk(msgspec.Struct, frozen=True):
    """READYOK: in the queue; use this interval."""

    identity: str
    heartbeat_interval: float
    time: float
    config_version: int


class Heartbeat(msgspec.Struct, frozen=True):
    """HEARTBEAT: alive."""

    time: float | None = None
    config_version: Version | None = None


class Hello(msgspec.Struct, frozen=True):
    """HELLO: who another broker is."""

    identity: str
    group: str = ""
    state: str = ""
    services: list[str] | str = "all"
    endpoints: dict[str, str] = {}
    config_version: Version = 0
    config_hash: str = ""
    time: float | None = None
    batch: bool = False
    """It takes BATCH; ours to add: others may leave it out."""
    standby_for: str = ""
    """The broker whose clients it would take over; ours to add, too."""


class PeerHeartbeat(msgspec.Struct, frozen=True):
    """HEARTBEAT between brokers: alive, and how it is. `config_hash` is ours to add: others may leave it out."""

    time: float | None = None
    state: str = ""
    config_version: Version = 0
    config_hash: str = ""
    load: float = 0.0


class Table(msgspec.Struct, frozen=True):
    """TABLE: clients of another broker, all of them or what changed. `version` is ours to add: what came before it is
    older than all that is in it."""

    seq: Version
    full: bool = False
    version: Version = 0


class TableReq(msgspec.Struct, frozen=True):
    """TABLEREQ: tell me all of your clients, or those who offer these."""

    services: list[str] = []
    keys: bool = False
    """Ours to add: tell me all of your keys, too."""


class Forward(msgspec.Struct, frozen=True):
    """FORWARD: have this done by one of your backends."""

    service: str
    id: RequestId
    timeout: float = 30.0
    hops: int = 1


class PeerCheckConfig(CheckConfig, frozen=True):
    """CHECKCONFIG of another broker: the whole document is wanted."""

    role: str | None = None


class PeerConfig(Config, frozen=True):
    """CONFIG to another broker: the whole document."""

    conflict: bool = False
    """It does not descend from what the other has; ours to add: others may leave it out."""


class ForceNegotiate(msgspec.Struct, frozen=True):
    """FORCENEGOTIATE: start again with CHECKCONFIG."""

    reason: str = ""


class NeedBroker(msgspec.Struct, frozen=True):
    """NEEDBROKER: my broker does not answer: whom shall I use?"""

    identity: str | None = None
    services: list[str] = []
    preferred_broker: str | None = None


class ChangeBroker(msgspec.Struct, frozen=True):
    """CHANGEBROKER: use that one."""

    broker: str
    group: str = ""
    endpoints: dict[str, str] = {}
    preferred: bool = False
    after: float = 0.0


class Disconnect(msgspec.Struct, frozen=True):
    """DISCONNECT: leaving in order."""


class DisconnectError(msgspec.Struct, frozen=True):
    """DISCONNECTERROR: you are disconnected."""

    code: int
    message: str = ""


class Request(msgspec.Struct, frozen=True):
    """REQUEST: have this done."""

    service: str
    id: RequestId
    timeout: float | None = None
    retry: bool = False


class Answer(msgspec.Struct, frozen=True):
    """PARTIAL and REPLY: a part of the answer, or the last of it."""

    id: RequestId
    service: str | None = None


class Error(msgspec.Struct, frozen=True):
    """ERROR: it will not be done."""

    id: RequestId
    code: Code = 500
    message: str = ""
    unrun: bool = False
    """From one broker to another: no backend has seen it, so it may be done elsewhere."""


class Tasks(msgspec.Struct, frozen=True):
    """TASKS, TASKSTATUS, TASKSDONE, TASKSOK: all that they say is in the body."""


class TasksCancel(msgspec.Struct, frozen=True, omit_defaults=True):
    """TASKSCANCEL: nobody wants these any more."""

    recall: bool = False
    """Only those that are not begun: they are given back by TASKSTATUS, the others go on."""


class ManagementReq(msgspec.Struct, frozen=True):
    """MANAGEMENTREQ: a command of an administrator, with the arguments of all of them."""

    command: str
    id: RequestId = ""
    auth_id: str = ""
    auth_password: str | None = None
    auth_token: str | None = None
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
    agent: str | None = None
    check: str | None = None
    args: dict[str, Any] = {}
    timeout: float | None = None
    recheck: bool | None = None
    origin: str = ""
    """For whom the sender asks: an HTTP server says its own client's address. It is recorded, never believed."""
    limit: int = 100
    after: str | None = None


class ManagementRep(msgspec.Struct, frozen=True):
    """MANAGEMENTREP: what came of it."""

    id: RequestId
    code: int
    message: str = ""
