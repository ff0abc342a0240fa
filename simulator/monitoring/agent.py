"""A simulated agent: the real session and check schedule on a host with its own clocks, spool and checks.

It does what `monitoring/agent/edge/agent.py` does, without sockets, files and processes. A scheduled result is in the
spool before it is sent. A process that ended does nothing more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from scale0.history.events.columns import EventMetric
from scale0.kernel.clock import Now
from scale0.monitoring.agent.core import effects, session
from scale0.monitoring.agent.core.check_schedule import CheckSchedule, DueCheck
from scale0.monitoring.agent.core.effects import AgentEffects
from scale0.monitoring.agent.core.session import AgentSession
from scale0.monitoring.protocol.results import AGENT_REPORT, CheckFinding, write_result
from simulator.monitoring.check_findings import Health
from simulator.monitoring.helen import cut
from simulator.monitoring.spool import SpoolModel
from simulator.network.connections import Parcel, Route, Wire
from simulator.network.process import EPOCH_WALL, LEAST_SECONDS
from simulator.virtual_time import Agenda

CHECK_TIMEOUT: Final = 30.0

Place = tuple[str, int]


class Spooled(msgspec.Struct, frozen=True):
    """A result as it was spooled."""

    ref: str
    agent: str
    check: str
    state: str
    ended: float
    """Virtual time."""
    boot: tuple[str, int]
    """The machine, and the number of its boot."""


class Observer(Protocol):
    """The observer: see `simulator/invariants/agents.py`."""

    def spooled(self, result: Spooled) -> None: ...
    def booted(self, machine: str, boot_id: int) -> None: ...
    def given_up(self, ref: str) -> None: ...
    def agent_sent(self, wire: Wire, data: bytes) -> None: ...
    def delivered(self, agent: str, ref: str) -> None: ...
    def asked_ran(self, agent: str, args: bytes) -> None: ...


class Surroundings(Protocol):
    """The rest of the network, as an agent sees it."""

    agenda: Agenda
    health: Health

    @property
    def observer(self) -> Observer: ...
    def connect(self, node: Node, place: Place, attempt: int) -> None: ...


class Node(Protocol):
    """Whatever connects to a Helen."""

    name: str
    route: Route
    serial: str
    address: str
    version: int
    attempt: int

    def connected(self, wire: Wire) -> None: ...
    def refused(self, attempt: int) -> None: ...
    def arrive(self, wire: Wire, parcel: Parcel) -> None: ...
    def broke(self, wire: Wire) -> None: ...


class AgentNode:
    """One machine with an agent, over all its processes."""

    version = 2

    def __init__(
        self,
        surroundings: Surroundings,
        name: str,
        machine: str,
        route: Route,
        rng: random.Random,
        places: list[Place],
        spool_records: int,
        offers: tuple[int, float],
    ) -> None:
        self.surroundings = surroundings
        self.name = name
        self.machine = machine
        self.route = route
        self._rng = rng
        self.places = places
        self.address = f"{machine}:1"
        self.serial = f"{machine}-1"
        self.labels: dict[str, str] = {}
        self.spool = SpoolModel(spool_records, surroundings.observer.given_up)
        self._offers_at_once, self._offer_seconds = offers
        self._stored_schedule: bytes | None = None
        """The schedule on disk."""
        self.wall_offset = 0.0
        self._mono_base = rng.random() * 10_000.0
        self.life = 0
        self.starts = 0
        self.attempt = 0
        self.up = False
        self.asleep = False
        self._on_waking: list[Callable[[], None]] = []
        self.wire: Wire | None = None
        self.since = 0.0
        """When it was accepted."""
        self.session = AgentSession(places, "2.0.0", rng)
        self.check_schedule = CheckSchedule(name)

    @property
    def now(self) -> Now:
        """The time by this machine's clocks."""
        at = self.surroundings.agenda.now
        return Now(self._mono_base + at, EPOCH_WALL + self.wall_offset + at)

    @property
    def accepted(self) -> bool:
        return self.up and self.session.state == session.ACCEPTED

    def start(self) -> None:
        if self.up:
            return
        self.life += 1
        self.starts += 1
        self.up, self.asleep, self._on_waking = True, False, []
        self._alarm_at = float("inf")
        self._offering = False
        self.session = AgentSession(self.places, "2.0.0", self._rng)
        self.check_schedule = CheckSchedule(self.name)
        self.surroundings.observer.booted(self.machine, self.spool.boot_id)
        self.spool.begin(f"{self.machine}.{self.starts}")
        if self._stored_schedule is not None:
            self.check_schedule.replace(self._stored_schedule, self.now)
        self._act(self.session.start)

    def kill(self, silent: bool) -> None:
        """End the process at once; `silent`: no connection is reset."""
        if not self.up:
            return
        self.up = False
        self.life += 1
        wire, self.wire = self.wire, None
        if wire is not None and silent:
            wire.snap(1e9, 1e9)
        elif wire is not None:
            wire.close(lossy=True)

    def lose_power(self) -> None:
        """End the machine; its monotonic clock starts again."""
        self.kill(silent=True)
        self.spool.lose_power(self._boot)
        self.surroundings.observer.booted(self.machine, self.spool.boot_id)
        self._mono_base = self._rng.random() * 10_000.0

    def sleep(self) -> None:
        """SIGSTOP."""
        self.asleep = self.up

    def wake(self) -> None:
        """SIGCONT."""
        if self.asleep:
            self.asleep = False
            waiting, self._on_waking = self._on_waking, []
            for act in waiting:
                act()

    @property
    def _boot(self) -> float:
        return self._mono_base + self.surroundings.agenda.now

    def _when_awake(self, act: Callable[[], None]) -> None:
        """Act now, or after SIGCONT; never in another process."""
        if self.asleep:
            self._on_waking.append(act)
        elif self.up:
            act()

    def connected(self, wire: Wire) -> None:
        self.wire = wire
        self._when_awake(lambda: self._act(self.session.opened) if wire is self.wire else None)

    def refused(self, attempt: int) -> None:
        if attempt == self.attempt and self.wire is None:
            self._when_awake(lambda: self._lost("refused"))

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        """Bytes of Helen, or the end of the connection."""
        self._when_awake(lambda: self._arrive(wire, parcel))

    def _arrive(self, wire: Wire, parcel: Parcel) -> None:
        if wire is not self.wire:
            return
        if parcel is None:
            self.broke(wire)
            return
        data = parcel[0]
        self._act(lambda now, out: self.session.received(data, now, out))

    def broke(self, wire: Wire) -> None:
        self._when_awake(lambda: self._broke(wire))

    def _broke(self, wire: Wire) -> None:
        if wire is self.wire:
            self.wire = None
            wire.close(lossy=True)
            self._lost("it broke")

    def _lost(self, reason: str) -> None:
        self._act(lambda now, out: self.session.lost(reason, now, out))
        self.spool.disconnected()

    def _act(self, do: Callable[[Now, AgentEffects], None]) -> None:
        """Let the session decide, and execute its effects."""
        if not self.up:
            return
        out = AgentEffects()
        do(self.now, out)
        if out.close:
            self.attempt += 1
            wire, self.wire = self.wire, None
            if wire is not None:
                wire.close(lossy=self._rng.random() < 0.5)
        if out.open is not None:
            self.attempt += 1
            self.surroundings.connect(self, out.open, self.attempt)
        if out.sends and self.wire is not None:
            data = b"".join(out.sends)
            self.surroundings.observer.agent_sent(self.wire, data)
            for piece in cut(data, self._rng):
                self.wire.to_broker([piece])
        for update in out.updates:
            self._handle(update)
        if out.close:
            self.spool.disconnected()
        self._offer_soon()
        self._arm()

    def _handle(self, update: effects.SessionUpdate) -> None:
        match update:
            case effects.RunCheck(run_id, name, args):
                self._run_asked(run_id, name, args)
            case effects.Delivered(tokens):
                for place in tokens:
                    if place is not None:
                        part, end = place
                        if end <= len(part.records):
                            self.surroundings.observer.delivered(self.name, part.ref(part.records[end - 1]))
                        self.spool.delivered(place)
            case effects.TakeSchedule(body):
                self._stored_schedule = body
                self.check_schedule.replace(body, self.now)
            case effects.SessionAccepted():
                self.since = self.surroundings.agenda.now
                self.spool.connected()
                self.introduce()
            case effects.ReloadNow():
                self.surroundings.agenda.after(0.0, self._reload, self.life)
            case _:
                pass

    def _reload(self, life: int) -> None:
        if life == self.life and self.up:
            self.kill(silent=False)
            self.start()

    def introduce(self) -> None:
        """Report labels and checks; not spooled, because each connection reports them again."""
        report = {"state": "ok", "sent": self.now.wall, "age": 0.0, "labels": self.labels, "checks": ["c0"]}
        body = msgspec.json.encode(report)
        self._act(lambda now, out: self.session.offer(AGENT_REPORT, body, None, now, out))

    def _run_asked(self, run_id: int, name: str, args: bytes) -> None:
        self.surroundings.observer.asked_ran(self.name, args)
        seconds = self.surroundings.health.seconds(self._rng)
        life = self.life

        def end() -> None:
            body = write_result(self._found(name, seconds, CHECK_TIMEOUT, args.decode()))
            self._act(lambda now, out: self.session.finished(run_id, body, now, out))

        self.surroundings.agenda.after(
            min(seconds, CHECK_TIMEOUT), lambda: self._when_awake(end) if life == self.life else None
        )

    def _run_due(self, due: DueCheck) -> None:
        seconds = self.surroundings.health.seconds(self._rng)
        life = self.life

        def end() -> None:
            self.check_schedule.done(due.name)
            finding = self._found(due.check, seconds, due.timeout, "")
            boot = self._boot
            ref = self.spool.append(due.name, write_result(finding), boot)
            ended = self.surroundings.agenda.now
            where = (self.machine, self.spool.boot_id)
            self.surroundings.observer.spooled(Spooled(ref, self.name, due.name, finding.state, ended, where))
            self._offer_soon()
            self._arm()

        self.surroundings.agenda.after(
            min(seconds, due.timeout), lambda: self._when_awake(end) if life == self.life else None
        )

    def _found(self, check: str, seconds: float, timeout: float, message: str) -> CheckFinding:
        started = self.now.wall - min(seconds, timeout)
        if seconds >= timeout:
            return CheckFinding("unknown", "no result in time", (), started, timeout)
        state, value = self.surroundings.health.find(self.name, check, self.surroundings.agenda.now)
        return CheckFinding(state, message, (EventMetric("value", value),), started, seconds)

    def _offer_soon(self) -> None:
        if not self._offering and self.session.room > 0 and self.spool.has_more:
            self._offering = True
            self.surroundings.agenda.after(self._offer_seconds, self._offer, self.life)

    def _offer(self, life: int) -> None:
        if life == self.life:
            self._offering = False
            self._when_awake(lambda: self._act(self._offers))

    def _offers(self, now: Now, out: AgentEffects) -> None:
        for _ in range(min(self._offers_at_once, self.session.room)):
            offer = self.spool.next(self._boot, now.wall)
            if offer is None:
                return
            place, name, body = offer
            self.session.offer(name, body, place, now, out)

    def _arm(self) -> None:
        dues = [due for due in (self.session.deadline(), self.check_schedule.deadline()) if due is not None]
        if not dues or not self.up:
            return
        when = max(min(dues) - self._mono_base, self.surroundings.agenda.now + LEAST_SECONDS)
        if when < self._alarm_at:
            self._alarm_at = when
            self.surroundings.agenda.at(when, self._ring, when, self.life)

    def _ring(self, when: float, life: int) -> None:
        if life == self.life and when == self._alarm_at:
            self._alarm_at = float("inf")
            self._when_awake(self._wake_up)

    def _wake_up(self) -> None:
        for due in self.check_schedule.due(self.now):
            self._run_due(due)
        self._act(self.session.tick)
