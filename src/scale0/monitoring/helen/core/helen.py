"""Helen: one machine, joined from its parts.

Lives here: the two ways in (agents' connections, requests of the network), timers and the end of a turn. Never here:
any one part's decisions, a socket, a clock. Invariants: no input raises out of `receive` but by our own mistake, and
then that one connection ends without an acknowledgement; what one agent sends changes nothing for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from scale0.config import ClientConfig, parse
from scale0.history.events.sources import SourceAlive
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, StoreQuery
from scale0.kernel.errors import ConfigError
from scale0.kernel.timers import ring
from scale0.monitoring.helen.core.agent_bundles import AgentBundles
from scale0.monitoring.helen.core.agent_connection import (
    ENDED,
    ORDERLY,
    RELOADING,
    TALKING,
    AgentConnection,
    SignCertificate,
)
from scale0.monitoring.helen.core.evaluation import Evaluation
from scale0.monitoring.helen.core.handshake import Handshake, Revoked
from scale0.monitoring.helen.core.keepalive import Keepalive
from scale0.monitoring.helen.core.migration import Migration
from scale0.monitoring.helen.core.pending_requests import NETWORK, ForwardRequest, Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.reports import Reports
from scale0.monitoring.helen.core.schedules import Schedules
from scale0.monitoring.helen.core.services import CHECK_SECONDS, MAX_CHECK_SECONDS, Services, status
from scale0.monitoring.helen.core.state import LEFT, LOST, HelenSettings, HelenState
from scale0.monitoring.protocol.messages import (
    Enrol,
    Error,
    Fetch,
    File,
    Hello,
    Ping,
    Redirect,
    Report,
    Result,
    ToHelen,
)
from scale0.monitoring.protocol.parser import ParseFault
from scale0.storage.check_rows import AgentRow, SpoolRow

ALIVE_SECONDS: Final = 60.0
"""How often a source says that it was watching."""
PRUNE_SECONDS: Final = 3_600.0
"""How often spools that nobody hears of are looked for."""
LIVENESS: Final = 3
"""So many heartbeats without a word, and an agent is lost."""
PING_FACTOR: Final = 1.5
"""An agent that keeps to its heartbeat is never asked for one: only who is half a heartbeat late is."""
MAX_FILE_NAME_BYTES: Final = 1_024
"""Of a file that an agent asks for: its name comes back in a line that must not be too long."""
MAX_GREETING_BYTES: Final = 65_536
"""Of a word that is not whole, before an agent is taken in: hello and enrol are short, and strangers may send them."""
DOUBT_SECONDS: Final = 1.0
"""Who seems silent for too long gets so much more: it may be Helen who slept, and what it said waits at her door."""


class Helen:
    """Helen without sockets."""

    __slots__ = (
        *("_alive", "_greeting", "_handover", "_keeping", "_reports", "_schedules", "_services", "_siblings"),
        *("config_error", "state"),
    )

    def __init__(self, settings: HelenSettings, watch: Evaluation) -> None:
        self.state = state = HelenState(settings, watch)
        state.look = self._look
        self._siblings = Replicas(state)
        self._schedules = Schedules(state)
        self._keeping = AgentBundles(state, self._schedules)
        self._handover = Migration(state, self._siblings, self._keeping)
        self._greeting = Handshake(state, self._schedules, self._siblings, self._handover)
        self._reports = Reports(state, self._schedules)
        self._alive = Keepalive(state)
        self._services = Services(state, self._siblings, self._handover, self._keeping, self._alive)
        self.config_error = ""
        """Why the newest part of the configuration is not used; blank: it is."""

    def start(self, agents: Iterable[AgentRow], spools: Iterable[SpoolRow], now: Now, step: Effects) -> None:
        """The first turn, with what the store remembers."""
        self._keeping.start(self.state.agents.load(agents), now)
        self.state.spools.load(spools, now)
        self._alive.start(now)
        self._say_alive(None, now, step)
        self.state.timers.add((self._prune, None), now.mono + PRUNE_SECONDS)

    def stop(self, now: Now, step: Effects) -> None:
        """The last turn: nobody waits in vain. Sessions end with their source, so nobody is recorded as gone."""
        step.record(SourceAlive(self.state.settings.identity))
        self.state.open.fail_all(codes.NOT_SERVING, "Helen stops", step)
        for line in self.state.lines.values():
            self._send_away(line, step)
            step.close(line)
        self.settle(now, step)

    def drain(self, now: Now, step: Effects) -> None:
        """She will stop soon: agents are sent to other Helens, who ask for what is known of them while she can answer.

        Whoever calls this goes on with turns until `undrained` is 0, or patience is over, and then calls `stop`.
        """
        self._greeting.draining = True
        sent: set[str] = set()
        for line in list(self.state.lines.values()):
            if self._send_away(line, step):
                sent.add(line.name)
                self.state.drop(line, LEFT, now, step)
        self._handover.drain(sent)

    @property
    def undrained(self) -> int:
        """Agents that `drain` sent away and that have not arrived elsewhere."""
        return self._handover.undrained

    def _send_away(self, line: AgentConnection, step: Effects) -> bool:
        """To the Helen who has most room, if there is one and the agent knows the word."""
        place = self._siblings.place() if line.reports else None
        if place is None:
            return False
        self.state.count("agents_redirected")
        line.say(Redirect(place), step)
        return True

    def receive(self, door: str, routing_id: bytes, frames: list[bytes], now: Now, step: Effects) -> None:
        """One message of a door."""
        if door == NETWORK:
            try:
                self._receive_request(routing_id, frames, now, step)
            except Exception:
                Requester(routing_id).refuse(codes.FAILED, "Helen failed: this is her fault", step)
                raise
            return
        if frames[0] == b"data":
            line = self.state.lines.get(routing_id)
            if line is not None:
                line.heard = now.mono
                try:
                    self._hear(line, frames[1], now, step)
                except Exception:
                    # Words behind this one are lost with it: were the connection to go on, they would be acknowledged.
                    self.state.refuse(line, "Helen failed: this is her fault", now, step)
                    raise
        elif frames[0] == b"opened":
            name, serial, address = (frame.decode("utf-8", "replace") for frame in frames[1:4])
            issued = int(frames[4]) if len(frames) > 4 and frames[4].isdigit() else 0
            self._greeting.open(routing_id, name, serial, issued, address, now, step)
        elif frames[0] == b"gone":
            line = self.state.lines.get(routing_id)
            if line is not None:
                self.state.drop(line, LEFT if frames[1:2] == [ORDERLY] else LOST, now, step, closed=True)

    def _hear(self, line: AgentConnection, data: bytes, now: Now, step: Effects) -> None:
        """Bytes of an agent: the words that they complete, in order, until one ends the connection."""
        take = self._reports.take
        for word in line.parser.feed(data):
            if type(word) is Report and line.reports:
                take(line, word, now, step)
            elif type(word) is ParseFault:
                self.state.refuse(line, word.reason, now, step)
            else:
                self._hear_word(line, word, now, step)  # type: ignore[arg-type]  # its parser knows no others
            if line.stage is ENDED:
                return
        if line.stage is not TALKING and line.parser.held_bytes > MAX_GREETING_BYTES:
            self.state.refuse(line, f"more than {MAX_GREETING_BYTES} bytes of one word while {line.stage}", now, step)

    def _hear_word(self, line: AgentConnection, word: ToHelen, now: Now, step: Effects) -> None:
        if reason := line.refuses(word):
            self.state.refuse(line, reason, now, step)
            return
        if line.stage is RELOADING:
            return
        match word:
            case Result():
                self._reports.answer(line, word, now, step)
            case Ping():
                step.send(line, [b"pong %d\n" % word.message_id])
            case Hello():
                self._greeting.hello(line, word, now, step)
            case Enrol():
                self._greeting.enrol(line, word, now, step)
            case Fetch() if "\r" in word.name or len(word.name.encode()) > MAX_FILE_NAME_BYTES:
                reason = f"a file's name has at most {MAX_FILE_NAME_BYTES} bytes, and no end of line"
                self.state.refuse(line, reason, now, step)
            case Fetch():
                line.say(File(word.message_id, word.name, b""), step)
            case _:
                # A pong proves what every word proves; terminals are nobody's yet.
                pass

    def _receive_request(self, routing_id: bytes, frames: list[bytes], now: Now, step: Effects) -> None:
        asker = Requester(routing_id)
        match frames:
            case [b"request", service, timeout, body]:
                name = service.decode("utf-8", "replace")
                self._services.request(asker, name, _seconds(timeout), body, now, step)
            case [b"task", task_id, _attempt, method, params]:
                ref, name = task_id.decode("utf-8", "replace"), method.decode("utf-8", "replace")
                self._services.task(asker, ref, name, params, now, step)
            case [b"config", part]:
                self._configure(part, now, step)
            case _:
                self.state.count("network_messages_unknown")

    def _configure(self, body: bytes, now: Now, step: Effects) -> None:
        """Her part of the network's configuration: used whole, or not at all."""
        try:
            part = parse(body, "json", ClientConfig)
        except ConfigError as error:
            self.state.count("configs_refused")
            self.config_error = str(error)
            return
        self.config_error = ""
        self.state.count("configs_taken")
        self.state.watch.configure(part, now, step)
        self._schedules.change_all()

    def expect_siblings(self, now: Now) -> None:
        """`learn_siblings` will soon be called: who comes before that waits a little."""
        self._handover.expect(now)

    def learn_siblings(self, names: Iterable[str], now: Now, step: Effects) -> None:
        """The other Helens that the network knows now; to be told every few seconds."""
        self._siblings.learn(names, step)
        self._handover.learnt(now, step)
        self._handover.look_around(step)

    def revoke(self, revoked: Revoked, now: Now, step: Effects) -> int:
        """From here on these certificates do not count: their connections end at once. How many did."""
        return self._greeting.revoke(revoked, now, step)

    def answer(self, ask: object, value: object, now: Now, step: Effects) -> None:
        """What an Ask found."""
        if isinstance(ask, StoreQuery | ForwardRequest | SignCertificate):
            ask.then(value, now, step)
        else:
            self.state.watch.answer(ask, value, now, step)

    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, step: Effects) -> None:
        """The door says that it is gone. An asker that is gone costs nothing: its answer is dropped."""
        if isinstance(connection, AgentConnection):
            self.state.drop(connection, LOST, now, step)

    def overflow(self, connection: Any, now: Now, step: Effects) -> None:
        """An agent that does not read: it is let go, so that it costs nobody else."""
        if isinstance(connection, AgentConnection):
            self.state.count("connections_overflowed")
            self.state.refuse(connection, "it does not read what it is sent", now, step)
        else:
            step.close(connection)

    def settle(self, now: Now, step: Effects) -> None:
        """The turn ends: write and acknowledge what it adds up to."""
        state = self.state
        self._reports.settle_descriptions(now, step)
        state.watch.settle(step)
        state.spools.settle(now, step)
        state.agents.settle(step)
        self._reports.settle(step)

    def hear_subscription(self, frames: list[bytes], now: Now, step: Effects) -> None:
        """Nobody subscribes to a Helen."""

    def tick(self, now: Now, step: Effects) -> None:
        """Do what its time has come for."""
        ring(self.state.timers, now, step)
        self.state.open.tick(now, step)
        self._schedules.tick(now, step)
        self._alive.tick(now, step)
        self.state.watch.tick(now, step)

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        if self._schedules.waits:
            return 0.0
        state = self.state
        found = (state.timers.deadline(), state.open.deadline(), self._alive.deadline(), state.watch.deadline())
        return min((when for when in found if when is not None), default=None)

    def view(self) -> dict[str, Any]:
        """How she is, as plain values; the counts among them."""
        return status(self.state, self._siblings)

    def _look(self, line: AgentConnection, now: Now, step: Effects) -> None:
        """A connection's time has come: to be greeted, or to be heard."""
        if line.stage is ENDED:
            return
        if line.stage is not TALKING:
            self.state.refuse(line, f"too slow while {line.stage}", now, step)
            return
        heartbeat = float(self.state.settings.heartbeat_seconds)
        lost_at = line.heard + LIVENESS * heartbeat
        if now.mono >= lost_at:
            if line.doubted is None or line.doubted < line.heard:
                line.doubted = now.mono
                self.state.arm(line, now.mono + DOUBT_SECONDS)
            else:
                self.state.count("agents_lost")
                # It may only have slept: then this is the first thing that it hears.
                line.say(Error(f"nothing was heard of you for {now.mono - line.heard:.0f} seconds"), step)
                self.state.drop(line, LOST, now, step)
            return
        ping_at = line.heard + PING_FACTOR * heartbeat
        if now.mono >= ping_at:
            self._ping(line, now, step)
            ping_at = now.mono + heartbeat
        self.state.arm(line, min(lost_at, ping_at))

    def _ping(self, line: AgentConnection, now: Now, step: Effects) -> None:
        number = line.issue()
        if number is not None:
            step.send(line, [b"ping %d\n" % number])

    def _say_alive(self, _: None, now: Now, step: Effects) -> None:
        step.record(SourceAlive(self.state.settings.identity))
        self.state.timers.add((self._say_alive, None), now.mono + ALIVE_SECONDS)

    def _prune(self, _: None, now: Now, step: Effects) -> None:
        self.state.count("spools_forgotten", self.state.spools.prune(now))
        self.state.timers.add((self._prune, None), now.mono + PRUNE_SECONDS)


def _seconds(text: bytes) -> float:
    """What is left of a request's time, as the network's side writes it; the default where it says nothing."""
    whole, _, part = text.partition(b".")
    if not whole.isdigit() or len(whole) > 9 or (part and not part.isdigit()):
        return CHECK_SECONDS
    return min(float(text), MAX_CHECK_SECONDS)
