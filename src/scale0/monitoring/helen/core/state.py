"""The state that the parts of Helen's machine share: settings, agents, connections, timers and counters.

A connection ends in one place, `drop`: its agent, its timer, its pending checks and its acknowledgement end with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.history.events.checks import AgentRefused
from scale0.history.events.clients import ClientLeft, ClientLost, ClientReplaced
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.timers import Alarm, TimerWheel
from scale0.monitoring.helen.core.agent_connection import ENDED, AgentConnection
from scale0.monitoring.helen.core.agents import Agents
from scale0.monitoring.helen.core.deduplication import Spools
from scale0.monitoring.helen.core.pending_requests import PendingRequests
from scale0.monitoring.protocol.encoder import in_one_line
from scale0.monitoring.protocol.messages import Error
from scale0.transport.core.handshakes import Handshakes

if TYPE_CHECKING:
    from scale0.monitoring.helen.core.evaluation import Evaluation

AGENT: Final = "agent"
"""The role of an agent in client events."""
MAX_REFUSED_EVENTS: Final = 20
"""`agent.refused` events per second; more are only counted: an unknown client must not fill the journal."""

LEFT: Final = "left"
LOST: Final = "lost"
REPLACED: Final = "replaced"


class HelenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings from Helen's configuration file."""

    identity: str
    advertise: str = ""
    """The `host:port` at which agents reach her; empty: other Helens redirect no agents to her."""
    max_agents: int = 20_000
    heartbeat_seconds: int = 30
    min_equus_version: str = ""
    """Empty: each version is accepted."""
    token: str = ""
    """The token for helen.forget, from her data directory. Empty: the service is off."""


class HelenState:
    def __init__(self, settings: HelenSettings, evaluation: Evaluation) -> None:
        self.settings = settings
        self.evaluation = evaluation
        self.agents = Agents()
        self.spools = Spools()
        self.requests = PendingRequests()
        self.requests.on_given_up = self._given_up
        self.connections: dict[bytes, AgentConnection] = {}
        self.connections_by_name: dict[str, int] = {}
        """The number of connections of each certificate name, in any stage."""
        self.awaiting_hello: set[AgentConnection] = set()
        self.anonymous: Handshakes[AgentConnection] = Handshakes()
        """Connections without a certificate that have not sent enrol."""
        self.acks: dict[AgentConnection, None] = {}
        """Connections with reports in this turn."""
        self.timers: TimerWheel[Alarm] = TimerWheel()
        self.on_timer: Callable[[AgentConnection, Now, Effects], None] = lambda *_: None
        """Called when the timer of a connection fires."""
        self.counts: dict[str, int] = {}
        self._refused_in = 0
        self._refused_now = 0

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def enter(self, connection: AgentConnection) -> int:
        """Add a connection; returns how many its name has."""
        self.connections[connection.routing_id] = connection
        self.connections_by_name[connection.name] = count = self.connections_by_name.get(connection.name, 0) + 1
        return count

    def arm(self, connection: AgentConnection, when: float) -> None:
        self.timers.remove((self.on_timer, connection), connection.bucket)
        connection.bucket = self.timers.add((self.on_timer, connection), when)

    def disarm(self, connection: AgentConnection) -> None:
        """A connection without a timer ends only with its socket."""
        self.timers.remove((self.on_timer, connection), connection.bucket)
        connection.bucket = 0

    def refuse(self, connection: AgentConnection, reason: str, now: Now, effects: Effects, how: str = LOST) -> None:
        """Send `error` and close a connection because of the agent's mistake."""
        if connection.stage is ENDED:
            return
        self.count("connections_refused")
        self._record_refusal(connection, reason, now, effects)
        connection.send(Error(in_one_line(reason)), effects)
        self.drop(connection, how, now, effects)

    def drop(self, connection: AgentConnection, how: str, now: Now, effects: Effects, closed: bool = False) -> None:
        """End a connection. `closed`: its socket is closed already."""
        if connection.stage is ENDED:
            return
        agent, connection.agent = connection.agent, None
        connection.end()
        self.disarm(connection)
        if self.connections.pop(connection.routing_id, None) is not None:
            self._leave_crowd(connection.name)
        self.awaiting_hello.discard(connection)
        self.anonymous.remove(connection)
        self.acks.pop(connection, None)
        if agent is not None:
            self.agents.disconnect(agent, now)
            if how is LEFT:
                effects.record(ClientLeft(agent.identity, AGENT, agent.checks))
            elif how is REPLACED:
                effects.record(ClientReplaced(agent.identity, AGENT, agent.checks))
            else:
                silent_seconds = now.mono - connection.last_seen
                effects.record(ClientLost(agent.identity, now.wall - silent_seconds, AGENT, agent.checks))
        if connection.pending is not None:
            for pending in connection.pending.values():
                self.requests.fail(pending, codes.BACKEND_DIED, "the agent's connection ended", effects)
            connection.pending = None
        if not closed:
            effects.close(connection)

    def _leave_crowd(self, name: str) -> None:
        if self.connections_by_name[name] > 1:
            self.connections_by_name[name] -= 1
        else:
            del self.connections_by_name[name]

    def _record_refusal(self, connection: AgentConnection, reason: str, now: Now, effects: Effects) -> None:
        second = int(now.mono)
        if second != self._refused_in:
            self._refused_in, self._refused_now = second, 0
        self._refused_now += 1
        if self._refused_now <= MAX_REFUSED_EVENTS:
            effects.record(AgentRefused(identity=connection.name, reason=in_one_line(reason)))
        else:
            self.count("refusals_not_recorded")

    def _given_up(self, pending: Any, now: Now, effects: Effects) -> None:
        """A check timed out; disconnect an agent that answers no check at all."""
        self.count("checks_given_up")
        connection = pending.connection
        if (
            connection is not None
            and connection.stage is not ENDED
            and pending.enough_time
            and (reason := connection.give_up())
        ):
            self.refuse(connection, reason, now, effects)
