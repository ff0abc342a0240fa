"""The simulated counterpart of `transport/edge/client_socket.py`: one client process with its session, connection,
clocks, suspensions and end. Invariant: the order is that of the real one: close, open, send; CHECKCONFIG alone, the
rest as a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from scale0.kernel.clock import Now
from scale0.kernel.limits import Limits
from scale0.transport.core.codec import encode, encode_all
from scale0.transport.core.session import SessionEffects
from simulator.network.connections import Parcel, Route, Wire
from simulator.network.process import EPOCH_WALL, LEAST_SECONDS
from simulator.virtual_time import Agenda

_LIMITS: Final = Limits()


class Session(Protocol):
    """The session that a connection serves."""

    @property
    def request_batches(self) -> bool: ...
    def receive(self, frames: list[bytes], now: Now, out: SessionEffects) -> None: ...
    def closed(self, reason: str, now: Now, out: SessionEffects) -> None: ...
    def unsent(self, messages: Sequence[Any]) -> None: ...
    def never_connected(self) -> None: ...
    def tick(self, now: Now, out: SessionEffects) -> None: ...
    def deadline(self) -> float | None: ...


class LinkObserver(Protocol):
    """The observer interface: see `simulator.invariants`."""

    def changed(self, link: SimLink) -> None: ...
    def lost(self, name: str) -> None: ...


Connect = Callable[["SimLink", str], Wire | None]
"""Opens a connection to an endpoint; returns None if it is refused, and calls `broke` later."""


class SimLink:
    """One client process."""

    def __init__(
        self,
        agenda: Agenda,
        route: Route,
        session: Session,
        connect: Connect,
        deliver: Callable[[list[Any]], None],
        observer: LinkObserver,
        wall_offset: float,
    ) -> None:
        self._agenda = agenda
        self._connect = connect
        self._deliver = deliver
        self._inbox: list[tuple[Wire, Parcel]] = []
        self._deferred: list[Callable[[], None]] = []
        self._mono_base = route.rng.random() * 10_000.0
        self._alarm_at = float("inf")
        self.name = route.name
        self.route = route
        self.session = session
        self.observer = observer
        self.stalled = False
        self.ended = False
        self.twice = False
        """If true, the current message is sent twice in succession."""
        self.wall_offset = wall_offset
        self.wire: Wire | None = None
        self.resumed_at = 0.0
        """When it last resumed after a suspension."""

    @property
    def now(self) -> Now:
        at = self._agenda.now
        return Now(self._mono_base + at, EPOCH_WALL + self.wall_offset + at)

    def act(self, do: Callable[[Now, SessionEffects], None]) -> None:
        """Runs an action of the session and performs its effects; if the process is suspended, after it resumes."""
        if self.ended:
            return
        if self.stalled:
            self._deferred.append(lambda: self.act(do))
            return
        out = SessionEffects()
        do(self.now, out)
        self._perform(out)

    def later(self, seconds: float, do: Callable[[Now, SessionEffects], None]) -> None:
        """Calls `act` after a delay if the process is still alive."""
        self._agenda.after(seconds, self.act, do)

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        """Handles a message, or None if the other end closed the connection."""
        if self.ended or wire is not self.wire:
            return
        if self.stalled:
            self._inbox.append((wire, parcel))
        else:
            self._take(wire, parcel)

    def broke(self, wire: Wire) -> None:
        self.arrive(wire, None)

    def refused(self) -> None:
        """Handles a refused connection."""
        if self.wire is None:
            self.session.never_connected()
            self.act(lambda now, out: self.session.closed("the connection broke", now, out))

    def stall(self) -> None:
        """SIGSTOP."""
        self.stalled = not self.ended

    def resume(self) -> None:
        """SIGCONT: messages that arrived meanwhile are handled first."""
        if not self.stalled:
            return
        self.stalled = False
        self.resumed_at = self._agenda.now
        inbox, self._inbox = self._inbox, []
        for wire, parcel in inbox:
            if wire is self.wire:
                self._take(wire, parcel)
        deferred, self._deferred = self._deferred, []
        for do in deferred:
            do()
        self._tick()

    def kill(self, silent: bool) -> None:
        """Ends the process; `silent`: its machine fails too."""
        self.ended = True
        self.observer.lost(self.name)
        if self.wire is not None:
            if silent:
                self.wire.open = False
                self.wire.snap(0.0, self.route.rng.uniform(5.0, 20.0))
            else:
                self.wire.close(lossy=self.route.rng.random() < 0.5)
            self.wire = None

    def _take(self, wire: Wire, parcel: Parcel) -> None:
        out = SessionEffects()
        if parcel is None:
            self.session.closed("the connection broke", self.now, out)
        else:
            wire.down.unread -= 1
            self.session.receive(parcel, self.now, out)
        self._perform(out)

    def _tick(self) -> None:
        due = self.session.deadline()
        if due is not None and due <= self.now.mono:
            out = SessionEffects()
            self.session.tick(self.now, out)
            self._perform(out)
        else:
            self._arm()

    def _perform(self, out: SessionEffects) -> None:
        if out.close:
            out.close = False
            if out.open is None:
                self.session.unsent(out.sends)
                out.sends.clear()
            if out.send_disconnect and self.wire is not None:
                self.wire.to_broker(encode(("DISCONNECT", {})))
            self._drop()
        if out.open is not None:
            self._drop()
            self.wire = self._connect(self, out.open)
        sends, wire = out.sends, self.wire
        if sends and wire is None:
            self.session.unsent(sends)
        elif sends and wire is not None:
            if sends[0][0] == "CHECKCONFIG":
                wire.to_broker(encode(sends[0]))
                del sends[0]
            for frames, _ in encode_all(sends, _LIMITS, self.session.request_batches):
                wire.to_broker(frames)
                if self.twice:
                    wire.to_broker(frames, together=True)
        self.observer.changed(self)
        if out.notifications:
            self._deliver(out.notifications)
        self._arm()

    def _drop(self) -> None:
        wire, self.wire = self.wire, None
        if wire is not None:
            self.observer.lost(self.name)
            wire.close(lossy=self.route.rng.random() < 0.5)

    def _arm(self) -> None:
        if self.ended:
            return
        due = self.session.deadline()
        if due is None:
            return
        when = max(due - self._mono_base, self._agenda.now + LEAST_SECONDS)
        if when < self._alarm_at:
            self._alarm_at = when
            self._agenda.at(when, self._ring, when)

    def _ring(self, when: float) -> None:
        if self.ended or when != self._alarm_at:
            return
        self._alarm_at = float("inf")
        if not self.stalled:
            self._tick()
