"""The dispatch table: each command with its sockets, states and schema. A command without a row is unknown."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from scale0.kernel.limits import Limits
from scale0.transport.core import codec, messages
from scale0.transport.core.sockets import ACTIVE, BACKEND, DISABLED, FRONTEND, JOINING, PEER, PEER_SOCKETS

BOTH: Final = (FRONTEND, BACKEND)
SERVING: Final = (ACTIVE,)
AWAKE: Final = (JOINING, ACTIVE)
ALWAYS: Final = (JOINING, ACTIVE, DISABLED)


class CommandRule(NamedTuple):
    """A command that a broker accepts."""

    command: str
    sockets: tuple[str, ...]
    states: tuple[str, ...]
    schema: type
    hot: bool = False
    """Its options are a few scalars, and are decoded with the whole batch at once."""
    alone: bool = False
    """It is not allowed in a BATCH: a long BATCH is divided by the number of its messages."""


RULES: Final = (
    CommandRule("CHECKCONFIG", BOTH, SERVING, messages.CheckConfig),
    CommandRule("READY", (BACKEND,), SERVING, messages.Ready),
    CommandRule("HEARTBEAT", BOTH, SERVING, messages.Heartbeat, hot=True),
    CommandRule("NEEDBROKER", BOTH, SERVING, messages.NeedBroker),
    CommandRule("DISCONNECT", BOTH, SERVING, messages.Disconnect),
    CommandRule("REQUEST", (FRONTEND,), SERVING, messages.Request, hot=True),
    CommandRule("REQUESTS", (FRONTEND,), SERVING, messages.ManyRequests, alone=True),
    CommandRule("REPLIES", (BACKEND,), SERVING, messages.ManyReplies, alone=True),
    CommandRule("PARTIAL", (BACKEND,), SERVING, messages.Answer, hot=True),
    CommandRule("REPLY", (BACKEND,), SERVING, messages.Answer, hot=True),
    CommandRule("ERROR", (BACKEND,), SERVING, messages.Error, hot=True),
    CommandRule("TASKSTATUS", (BACKEND,), SERVING, messages.Tasks, hot=True),
    CommandRule("TASKSDONE", (BACKEND,), SERVING, messages.Tasks, hot=True),
    CommandRule("ENROL", (FRONTEND, BACKEND, PEER), AWAKE, messages.Enrol),
    CommandRule("MANAGEMENTREQ", (FRONTEND, BACKEND, PEER), ALWAYS, messages.ManagementReq),
    CommandRule("HELLO", PEER_SOCKETS, AWAKE, messages.Hello),
    CommandRule("HEARTBEAT", PEER_SOCKETS, AWAKE, messages.PeerHeartbeat),
    CommandRule("FORCENEGOTIATE", PEER_SOCKETS, AWAKE, messages.ForceNegotiate),
    CommandRule("CHECKCONFIG", PEER_SOCKETS, AWAKE, messages.PeerCheckConfig),
    CommandRule("CONFIG", PEER_SOCKETS, AWAKE, messages.PeerConfig),
    CommandRule("CONFIGACK", PEER_SOCKETS, AWAKE, messages.ConfigAck),
    CommandRule("DISCONNECTERROR", PEER_SOCKETS, AWAKE, messages.DisconnectError),
    CommandRule("TABLE", PEER_SOCKETS, AWAKE, messages.Table),
    CommandRule("TABLEREQ", PEER_SOCKETS, AWAKE, messages.TableReq),
    CommandRule("FORWARD", PEER_SOCKETS, SERVING, messages.Forward, hot=True),
    CommandRule("PARTIAL", PEER_SOCKETS, SERVING, messages.Answer, hot=True),
    CommandRule("REPLY", PEER_SOCKETS, SERVING, messages.Answer, hot=True),
    CommandRule("ERROR", PEER_SOCKETS, SERVING, messages.Error, hot=True),
)

TO_CLIENTS: Final = {
    "CONFIGACK": messages.ConfigAck,
    "CONFIG": messages.Config,
    "READYOK": messages.ReadyOk,
    "HEARTBEAT": messages.Heartbeat,
    "FORCENEGOTIATE": messages.ForceNegotiate,
    "CHANGEBROKER": messages.ChangeBroker,
    "DISCONNECTERROR": messages.DisconnectError,
    "REQUEST": messages.Request,
    "REQUESTS": messages.ManyRequests,
    "REPLIES": messages.ManyReplies,
    "PARTIAL": messages.Answer,
    "REPLY": messages.Answer,
    "ERROR": messages.Error,
    "MANAGEMENTREP": messages.ManagementRep,
    "ENROLLED": messages.Enrolled,
    "TASKS": messages.Tasks,
    "TASKSOK": messages.Tasks,
    "TASKSCANCEL": messages.TasksCancel,
}
"""Commands that a broker sends to clients."""

TO_CLIENTS_HOT: Final = frozenset(
    {"HEARTBEAT", "REQUEST", "REQUESTS", "PARTIAL", "REPLY", "REPLIES", "ERROR", "TASKS", "TASKSOK", "TASKSCANCEL"}
)

COMMANDS: Final = frozenset({rule.command for rule in RULES} | TO_CLIENTS.keys() | {"BATCH"})


@lru_cache(maxsize=8)
def client_codec(limits: Limits) -> codec.Codec:
    """The codec of client sessions, cached because a process may have very many of them."""
    return codec.Codec(TO_CLIENTS, TO_CLIENTS_HOT, (), limits)
