"""The promises of simulated Helens and agents, checked on everything that is sent, spooled and stored.

Observing changes nothing. What follows from results is in `check_oracle`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.history.events.checks import CheckAnswered, IncidentClosed, IncidentOpened, NoticeSent
from scale0.history.events.journal import read
from scale0.kernel import codes
from scale0.monitoring.agent.core.session import REPORT_WINDOW
from scale0.monitoring.helen.core.agent_connection import ACTIVE
from scale0.monitoring.helen.core.check_state import CheckState, from_row
from scale0.monitoring.helen.core.notifications import DIRECT, DeliverNotification, Notification, SubmitNotification
from scale0.monitoring.helen.core.socket_events import RequestError, RequestReply
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.parser import Parser
from scale0.monitoring.protocol.results import read_result
from scale0.storage.check_rows import ReadCheckStates, ReadIncidents, ReadNotices
from simulator.invariants.check_oracle import Oracle
from simulator.invariants.evaluation_recorder import StoredTurn, Taken
from simulator.invariants.storage import StoreChecks
from simulator.monitoring.agent import AgentNode, Spooled
from simulator.monitoring.helen import HelenNode
from simulator.monitoring.network import AgentNetwork, Question, Task
from simulator.monitoring.version1_agent import OldAgentNode
from simulator.network.connections import Wire
from simulator.promises import broken
from simulator.virtual_time import Agenda, Diary

GRACE_SECONDS: Final = 1.5
"""How much later than its timeout an answer may be: the network's delay, and a slow disk."""
REVOKED_SECONDS: Final = 1.0
BACK_SECONDS: Final = 60.0
ROUNDING: Final = 0.001
"""Ages and times are sent in microseconds, and wall times are floats."""
ROWS: Final = 10_000
EXPECTED_ERRORS: Final = (
    *("no message was received for", "has connected again", "is revoked", "the limit is reached"),
    *("too slow while waiting for hello", "checks were not answered in time", " is connected to helen-"),
)
"""Errors that a correct agent may get."""
VERSION_1_MESSAGES: Final = (messages.Check, messages.Reload, messages.Error)
CODES: Final = frozenset(
    {codes.NO_SUCH_SERVICE, codes.TOO_MANY, codes.BACKEND_DIED, codes.NOT_SERVING, codes.NO_ANSWER}
)
"""Not connected, too many, the connection or Helen ended, Helen is stopping, no result in time."""


class ObservedConnection:
    """The messages of one connection, as an observer on the network sees them."""

    def __init__(self) -> None:
        self.up = Parser(to_helen=True)
        self.down = Parser(to_helen=False)
        self.refs: list[str] = []
        """The refs of all reports so far; empty: none."""
        self.acked = 0


class AgentChecks:
    def __init__(self, agenda: Agenda, diary: Diary, strain: bool) -> None:
        self._agenda = agenda
        self._diary = diary
        self._strain = strain
        self.network: AgentNetwork | None = None
        self.results: dict[str, Spooled] = {}
        self.exempt: set[str] = set()
        """Results that were dropped, or lost with a disk."""
        self.recorded: dict[str, dict[str, int]] = {}
        """By Helen: how often each result is in her journal."""
        self.recorded_twice = 0
        """Results that two Helens have: the first one did not answer the second one's release request."""
        self.oracles: dict[str, Oracle] = {}
        self.boots: dict[str, tuple[str, int]] = {}
        """The current boot of each machine."""
        self._first_sent: dict[str, float] = {}
        self._asked_recorded: set[str] = set()
        self._opened: dict[str, int] = {}
        """How often each incident was opened: results with one time give their incidents one id."""
        self._closed: dict[str, list[str]] = {}
        """The Helens who recorded the end of each incident."""
        self._recoveries: dict[tuple[str, str], set[str]] = {}
        """The notifications of each recovery, by handler and incident."""
        self._delivering: set[tuple[str, str]] = set()
        """Helen and id of each notification whose direct delivery began."""
        self._delivered: set[tuple[str, str]] = set()
        """Those whose direct delivery is recorded."""
        self._observed_connections: dict[bytes, ObservedConnection] = {}
        self.slow_until: dict[str, float] = {}
        """Helens whose answers may be late, because of a suspension or a slow disk."""
        self.counts = dict.fromkeys(("answered", "notices", "acks", "state changes", "incidents", "direct"), 0)

    def spooled(self, result: Spooled) -> None:
        if result.ref in self.results:
            raise broken("agent-result-once", f"{result.ref} names two results of {result.agent}")
        self.results[result.ref] = result

    def booted(self, machine: str, boot_id: int) -> None:
        self.boots[machine] = (machine, boot_id)

    def given_up(self, ref: str) -> None:
        """A result is lost for good, as it may be."""
        self.exempt.add(ref)

    def delivered(self, agent: str, ref: str) -> None:
        """An agent removes a result from its spool."""
        if not any(ref in refs for refs in self.recorded.values()):
            raise broken("agent-stored-then-acked", f"{ref} of {agent} was acknowledged, and it is not stored")

    def _observed(self, wire: Wire) -> ObservedConnection:
        found = self._observed_connections.get(wire.routing_id)
        if found is None:
            found = self._observed_connections[wire.routing_id] = ObservedConnection()
        return found

    def agent_sent(self, wire: Wire, data: bytes) -> None:
        connection = self._observed(wire)
        for message in connection.up.feed(data):
            if isinstance(message, messages.Report):
                reported = read_result(message.body)
                ref = f"{reported.spool}:{reported.n}" if reported.n else ""
                connection.refs.append(ref)
                self._first_sent.setdefault(ref, self._agenda.now)
                if message.sequence != len(connection.refs):
                    raise broken(
                        "agent-sequence", f"report {message.sequence} of {wire.client.name} is {len(connection.refs)}."
                    )
                if len(connection.refs) - connection.acked > REPORT_WINDOW:
                    raise broken("agent-sequence", f"{wire.client.name} has more than a window without an ack")

    def helen_sent(self, node: HelenNode, wire: Wire, data: bytes) -> None:
        connection = self._observed(wire)
        old = getattr(wire.client, "version", 2) == 1
        for message in connection.down.feed(data):
            if old and not isinstance(message, VERSION_1_MESSAGES):
                raise broken("agent-old-messages", f"{node.name} sent {type(message).__name__} to {wire.client.name}")
            if isinstance(message, messages.Ack):
                self._ack(node, wire, connection, message.sequence)
            elif isinstance(message, messages.Error) and not any(part in message.message for part in EXPECTED_ERRORS):
                raise broken("no-false-refusal", f"{node.name} sent {wire.client.name}: {message.message}")

    def _ack(self, node: HelenNode, wire: Wire, connection: ObservedConnection, sequence: int) -> None:
        self.counts["acks"] += 1
        if not connection.acked <= sequence <= len(connection.refs):
            of = f"{sequence} of {len(connection.refs)} to {wire.client.name}, after {connection.acked}"
            story = f"{node.name} acknowledged {of}"
            raise broken("agent-sequence", story)
        for ref in connection.refs[connection.acked : sequence]:
            if ref and not any(ref in refs for refs in self.recorded.values()):
                raise broken("agent-stored-then-acked", f"{node.name} acknowledged {ref} before it was stored")
        connection.acked = sequence

    def helen_started(self, node: HelenNode) -> None:
        self.recorded.setdefault(node.name, {})
        if node.name not in self.oracles:
            self.oracles[node.name] = Oracle(node.name)

    def helen_ended(self, node: HelenNode) -> None:
        if self.network is not None:
            self.network.ended(node)

    def helen_stored(self, node: HelenNode, turn: StoredTurn) -> None:
        for note in turn.notes:
            if isinstance(note, Taken):
                self._result(node, note, turn)
        for event in turn.events:
            self._count(event)
            if isinstance(event, NoticeSent) and event.via == DIRECT:
                self._delivered.add((node.name, event.notice))
            if isinstance(event, IncidentOpened):
                self._opened[event.incident] = self._opened.get(event.incident, 0) + 1
            elif isinstance(event, IncidentClosed):
                ends = self._closed.setdefault(event.incident, [])
                ends.append(f"{node.name} at {turn.virtual:.3f}")
                if len(ends) > self._opened.get(event.incident, 1):
                    raise broken("check-incident-once", f"{event.incident} was closed by {' and '.join(ends)}")
        for row in () if turn.row is None else read(turn.row.body):
            if row["at"] > row["time"] or (row["seconds"] or 0.0) < 0.0:
                raise broken("agent-times", f"{node.name} recorded {row}")
        self.oracles[node.name].stored(turn)
        for notice in self.oracles[node.name].new_notices:
            self._recovery(node, notice)

    def _recovery(self, node: HelenNode, notice: Notification) -> None:
        incident = notice.payload.get("incident")
        if not incident or notice.payload["kind"] != "recovery":
            return
        others = self._recoveries.setdefault((notice.handler, incident), set())
        others.add(notice.id)
        if len(others) > self._opened.get(incident, 1):
            raise broken("check-incident-once", f"{node.name} notifies of the end of {incident} again")

    def _count(self, event: Any) -> None:
        names = {"check.answered": "answered", "check.state_changed": "state changes", "incident.opened": "incidents"}
        if name := names.get(event.kind):
            self.counts[name] += 1
        if isinstance(event, CheckAnswered) and event.message.startswith('{"nonce"'):
            self._asked_recorded.add(event.message)

    def _result(self, node: HelenNode, note: Taken, turn: StoredTurn) -> None:
        answered = note.answered
        spooled = self.results.get(answered.ref)
        if spooled is None:
            if ":" in answered.ref:
                raise broken("agent-true-result", f"{node.name} recorded {answered.ref}, which nobody found")
            return
        recorded = self.recorded[node.name]
        if answered.ref in recorded:
            raise broken("agent-result-once", f"{node.name} recorded {answered.ref} of {note.agent} twice")
        self.recorded_twice += any(answered.ref in others for others in self.recorded.values())
        recorded[answered.ref] = 1
        found = (note.agent, answered.check, answered.finding.state)
        if found != (spooled.agent, spooled.check, spooled.state):
            raise broken("agent-true-result", f"{answered.ref} was {spooled}, and is recorded as {found}")
        # The end by Helen's clock; only the transport may add to it.
        ended = turn.wall - turn.virtual + spooled.ended
        way = turn.virtual - self._first_sent[answered.ref]
        same_boot = spooled.boot == self.boots.get(spooled.boot[0])
        if same_boot and not -ROUNDING <= answered.at - ended <= way + ROUNDING:
            raise broken("agent-true-result", f"{answered.ref} is dated {answered.at - ended:.3f} s after its end")
        if not answered.at <= turn.wall:
            raise broken("agent-times", f"{answered.ref} lies {answered.at - turn.wall:.3f} s in the future")

    def asked_ran(self, agent: str, args: bytes) -> None:
        """An agent starts a check that Helen requested."""
        nonce = msgspec.json.decode(args).get("nonce")
        if nonce is None or self.network is None:
            return
        question = self.network.questions[nonce]
        question.runs += 1
        if question.runs > 1 or question.agent != agent:
            raise broken("agent-asked-once", f"{nonce} for {question.agent} ran on {agent}, {question.runs} times")

    def question_ended(self, question: Question, node: HelenNode, answer: RequestReply | RequestError) -> None:
        question.ends += 1
        now = self._agenda.now
        if question.ends > 1:
            raise broken("agent-asked-ends", f"{question.nonce} ended twice")
        if now > question.due + GRACE_SECONDS and self.slow_until.get(node.name, -1.0) < question.due:
            raise broken("agent-asked-ends", f"{question.nonce} ended {now - question.due:.3f} s late")
        if isinstance(answer, RequestError):
            question.code = answer.code
            if question.code not in CODES or (not self._strain and question.code != codes.NO_ANSWER):
                raise broken("agent-asked-ends", f"{question.nonce} failed with {answer}")
            return
        question.code = codes.OK
        message = msgspec.json.decode(answer.body)["message"]
        if msgspec.json.decode(message).get("nonce") != question.nonce:
            raise broken("agent-asked-once", f"{question.nonce} was answered with {message}")
        if message not in self._asked_recorded:
            raise broken("agent-stored-then-acked", f"{question.nonce} was answered before its result was stored")

    def submitted(self, node: HelenNode, ask: SubmitNotification, known: Task | None) -> None:
        """A task is submitted to the queue."""
        self.counts["notices"] += known is None
        if ask.id not in self.oracles[node.name].notices:
            raise broken("check-notice-once", f"{node.name} submitted {ask.id} before it was stored")
        if (node.name, ask.id) in self._delivering:
            raise broken("check-notice-direct", f"{node.name} submitted {ask.id}, which she delivered directly")
        if known is not None and known.queue != ask.owner:
            raise broken("check-notice-once", f"{node.name} submitted {ask.id} to two brokers: two tasks")
        if known is not None and (known.method, known.params) != (ask.method, ask.params):
            raise broken("check-notice-once", f"{ask.options['key']} was submitted twice, as two different tasks")

    def delivering(self, node: HelenNode, ask: DeliverNotification) -> None:
        """A direct delivery begins."""
        assert self.network is not None
        name = (node.name, str(ask.notice["id"]))
        if name[1] not in self.oracles[node.name].notices:
            raise broken("check-notice-direct", f"{node.name} delivered {name[1]} before it was stored")
        if name in self.network.tasks:
            raise broken("check-notice-direct", f"{node.name} delivered {name[1]}, which is on the queue")
        if name in self._delivered:
            raise broken("check-notice-direct", f"{node.name} delivered {name[1]} again")
        self.counts["direct"] += name not in self._delivering
        self._delivering.add(name)

    def sweep(self, nodes: list[HelenNode]) -> None:
        """The checks of each second."""
        assert self.network is not None
        for node in nodes:
            if node.up and not node.asleep:
                self._connections(node)
        for question in self.network.questions.values():
            late = not question.ends and self._agenda.now > question.due + GRACE_SECONDS
            if late and max(self.slow_until.values(), default=-1.0) < question.due:
                raise broken("agent-asked-ends", f"{question.nonce} has no end at {self._agenda.now:.3f}")

    def _connections(self, node: HelenNode) -> None:
        assert self.network is not None
        state = node.helen.state
        talking: set[str] = set()
        for connection in state.connections.values():
            since = self.network.revoked_serials.get(connection.serial)
            if since is not None and self._agenda.now - since > REVOKED_SECONDS:
                raise broken(
                    "agent-revoked", f"{connection.identity} talks to {node.name} with certificate {connection.serial}"
                )
            if connection.stage is ACTIVE:
                agent = state.agents.get(connection.name)
                if connection.name in talking or agent is None or agent.connection is not connection:
                    raise broken("agent-one-connection", f"{connection.identity} has two connections to {node.name}")
                talking.add(connection.name)
        if len(talking) != state.agents.connected:
            raise broken("agent-one-connection", f"{node.name} counts {state.agents.connected}, and has {len(talking)}")

    def states(self, node: HelenNode) -> None:
        """Check that the stored states follow from the stored results."""
        oracle = self.oracles[node.name]
        rows: Any = node.disk.store.read(ReadCheckStates("", "", ROWS))
        found = {(row.agent, row.check): from_row(row.body) for row in rows if row.agent and row.check}
        incidents: Any = node.disk.store.read(ReadIncidents(True, None, "", ROWS))
        opened = {(row.agent, row.check) for row in incidents}
        down = {key for key, one in found.items() if one.down}
        # What two Helens evaluated separately may be soft for a while though it was down before.
        separated = {key for key, one in found.items() if key in oracle.adopted and (not one.hard or one.doubtful)}
        if not down <= opened <= down | separated:
            raise broken(
                "check-incident", f"{node.name} has other incidents than checks that are down: {opened ^ down}"
            )
        if found.keys() != oracle.states.keys():
            raise broken(
                "check-state", f"{node.name} has states of {sorted(found.keys() ^ oracle.states.keys())} or not"
            )
        for key, state in found.items():
            one = oracle.states[key]
            held = one.held and oracle.is_due(key)
            wanted = (one.state, one.hard, one.attempt, one.flapping, one.at, one.notified, held)
            if wanted != plain(state):
                raise broken("check-state", f"{key} at {node.name}: expected {wanted}, stored {plain(state)}")

    def everybody_back(self, agents: list[AgentNode | OldAgentNode], why: str) -> None:
        """Enough time has passed: check that all agents are connected."""
        away = [node.machine for node in agents if not node.accepted]
        if away:
            raise broken("agent-back", f"{BACK_SECONDS:g} s after {why} these are not back: {away}")

    def at_the_end(self, nodes: list[HelenNode], agents: list[AgentNode]) -> None:
        """The final checks, when nothing happens any more."""
        assert self.network is not None
        missing = [
            ref
            for ref in self.results
            if ref not in self.exempt and not any(ref in refs for refs in self.recorded.values())
        ]
        if missing:
            raise broken("agent-result-once", f"{len(missing)} results never arrived: {missing[:5]}")
        for node in nodes:
            self._connections(node)
            self.states(node)
            StoreChecks().journal(node.disk.store, None)
            self._check_notifications(node)
            self._quiet(node)
        for agent in agents:
            self._schedule(agent, nodes)

    def _check_notifications(self, node: HelenNode) -> None:
        """Each notification that is due and not suppressed is a task; a suppressed one is not."""
        assert self.network is not None
        oracle = self.oracles[node.name]
        for key, one in oracle.states.items():
            # A dependency that recovered suppresses until the next result.
            if (
                one.held
                and key not in oracle.deferred
                and not oracle.causes(key)
                and not oracle.definition(key).depends_on
            ):
                raise broken("check-notice", f"{key} at {node.name} is {one.state}, and no handler was notified")
        for id_ in oracle.notices:
            name = (node.name, id_)
            if name not in self.network.tasks and name not in self._delivered:
                raise broken("check-notice-once", f"the notice {id_} of {node.name} was neither queued nor delivered")

    def _quiet(self, node: HelenNode) -> None:
        state = node.helen.state
        notices: Any = node.disk.store.read(ReadNotices("", ROWS))
        waiting = {
            "acknowledgements": len(state.acks),
            "newcomers": len(state.awaiting_hello),
            "lines": len(state.connections) - state.agents.connected,
            "questions": state.requests.count,
            "notices": len(notices),
        }
        left = {name: count for name, count in waiting.items() if count}
        if left:
            raise broken("agent-no-leak", f"{node.name} still has {left}")

    def _schedule(self, agent: AgentNode, nodes: list[HelenNode]) -> None:
        for node in nodes:
            found = node.helen.state.agents.get(agent.name)
            if found is None or found.connection is None:
                continue
            if found.labels != agent.labels:
                raise broken("agent-schedule", f"{node.name} has labels {found.labels} of {agent.name}, not its own")
            wanted = sorted(self.oracles[node.name].selected(agent.name, agent.labels))
            runs = sorted(due.name for due in agent.check_schedule.checks)
            if wanted != runs:
                raise broken("agent-schedule", f"{agent.name} runs {runs}, and should run {wanted}")


def plain(state: CheckState) -> tuple[Any, ...]:
    """The part of a stored state that is compared."""
    held = state.held and state.hard and state.state != state.notified
    return state.state, state.hard, state.attempt, state.flapping, state.at, state.notified, held
