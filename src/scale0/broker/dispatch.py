"""The dispatch table: command, socket, state and schema, each in one row.

Lives here: what may be said where and when. Never here: what is done about it. Nothing is called by a name from the
wire: a command that has no row here does not exist.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from scale0.base.limits import Limits
from scale0.broker import options, wire
from scale0.broker.state import ACTIVE, BACKEND, DISABLED, FRONTEND, JOINING, PEER, PEER_DOORS

BOTH: Final = (FRONTEND, BACKEND)
SERVING: Final = (ACTIVE,)
AWAKE: Final = (JOINING, ACTIVE)
ALWAYS: Final = (JOINING, ACTIVE, DISABLED)


class Rule(NamedTuple):
    """One command that a broker takes in."""

    command: str
    doors: tuple[str, ...]
    states: tuple[str, ...]
    schema: type
    hot: bool = False
    """Options of a few scalars: decoded with the whole batch at once."""


RULES: Final = (
    Rule("CHECKCONFIG", BOTH, SERVING, options.CheckConfig),
    Rule("READY", (BACKEND,), SERVING, options.Ready),
    Rule("HEARTBEAT", BOTH, SERVING, options.Heartbeat, hot=True),
    Rule("NEEDBROKER", BOTH, SERVING, options.NeedBroker),
    Rule("DISCONNECT", BOTH, SERVING, options.Disconnect),
    Rule("REQUEST", (FRONTEND,), SERVING, options.Request, hot=True),
    Rule("PARTIAL", (BACKEND,), SERVING, options.Answer, hot=True),
    Rule("REPLY", (BACKEND,), SERVING, options.Answer, hot=True),
    Rule("ERROR", (BACKEND,), SERVING, options.Error, hot=True),
    Rule("TASKSTATUS", (BACKEND,), SERVING, options.Tasks, hot=True),
    Rule("TASKSDONE", (BACKEND,), SERVING, options.Tasks, hot=True),
    Rule("ENROL", (FRONTEND, BACKEND, PEER), AWAKE, options.Enrol),
    Rule("MANAGEMENTREQ", (FRONTEND, BACKEND, PEER), ALWAYS, options.ManagementReq),
    Rule("HELLO", PEER_DOORS, AWAKE, options.Hello),
    Rule("HEARTBEAT", PEER_DOORS, AWAKE, options.PeerHeartbeat),
    Rule("FORCENEGOTIATE", PEER_DOORS, AWAKE, options.ForceNegotiate),
    Rule("CHECKCONFIG", PEER_DOORS, AWAKE, options.PeerCheckConfig),
    Rule("CONFIG", PEER_DOORS, AWAKE, options.PeerConfig),
    Rule("CONFIGACK", PEER_DOORS, AWAKE, options.ConfigAck),
    Rule("DISCONNECTERROR", PEER_DOORS, AWAKE, options.DisconnectError),
    Rule("TABLE", PEER_DOORS, AWAKE, options.Table),
    Rule("TABLEREQ", PEER_DOORS, AWAKE, options.TableReq),
    Rule("FORWARD", PEER_DOORS, SERVING, options.Forward, hot=True),
    Rule("PARTIAL", PEER_DOORS, SERVING, options.Answer, hot=True),
    Rule("REPLY", PEER_DOORS, SERVING, options.Answer, hot=True),
    Rule("ERROR", PEER_DOORS, SERVING, options.Error, hot=True),
)

TOLD: Final = {
    "CONFIGACK": options.ConfigAck,
    "CONFIG": options.Config,
    "READYOK": options.ReadyOk,
    "HEARTBEAT": options.Heartbeat,
    "FORCENEGOTIATE": options.ForceNegotiate,
    "CHANGEBROKER": options.ChangeBroker,
    "DISCONNECTERROR": options.DisconnectError,
    "REQUEST": options.Request,
    "PARTIAL": options.Answer,
    "REPLY": options.Answer,
    "ERROR": options.Error,
    "MANAGEMENTREP": options.ManagementRep,
    "ENROLLED": options.Enrolled,
    "TASKS": options.Tasks,
    "TASKSOK": options.Tasks,
    "TASKSCANCEL": options.TasksCancel,
}
"""What a broker says to clients, for the sessions at the other end."""

TOLD_HOT: Final = frozenset({"HEARTBEAT", "REQUEST", "PARTIAL", "REPLY", "ERROR", "TASKS", "TASKSOK", "TASKSCANCEL"})

COMMANDS: Final = frozenset({rule.command for rule in RULES} | TOLD.keys() | {"BATCH"})


@lru_cache(maxsize=8)
def told_codec(limits: Limits) -> wire.Codec:
    """How a session reads what brokers say: made once, because a process may have very many sessions."""
    return wire.Codec(TOLD, TOLD_HOT, (), limits)
