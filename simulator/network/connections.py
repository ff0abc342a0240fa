"""Simulated connections between a client and a broker's socket: delay, blocking, failure, and when each end notices.
Invariants: nothing is reordered within one direction; a broken connection delivers nothing; messages to a closed end
are lost silently."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol

from simulator.virtual_time import Agenda, Diary

NOTICED_SECONDS: Final = 20.0
"""ZMTP heartbeats end a half-open connection after this time at the latest."""

Parcel = list[bytes] | None
"""The frames of a message; None: the other end closed."""


class Route:
    """The path between one client and its brokers, for all of its connections, with the delay and blocking of the
    current faults."""

    __slots__ = ("clogged", "high", "low", "name", "rng", "wires")

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.restore_speed()
        self.clogged = {"up": False, "down": False}
        self.wires: list[Wire] = []

    def restore_speed(self) -> None:
        self.low, self.high = 0.0002, 0.002

    def delay(self) -> float:
        return self.low + (self.high - self.low) * self.rng.random()

    def clog(self, way: str) -> None:
        """Blocks this direction: messages are held, not lost."""
        self.clogged[way] = True

    def unclog(self, way: str) -> None:
        """Delivers the held messages at once."""
        self.clogged[way] = False
        for wire in list(self.wires):
            (wire.up if way == "up" else wire.down).flush()

    def heal(self) -> None:
        """Restores the speed, and unblocks both directions."""
        self.restore_speed()
        for way in ("up", "down"):
            if self.clogged[way]:
                self.unclog(way)

    @property
    def free(self) -> bool:
        """True if both directions are unblocked."""
        return not (self.clogged["up"] or self.clogged["down"])


class Way:
    """One direction of one connection."""

    __slots__ = ("_agenda", "_arrive", "_held", "_last", "_name", "_route", "dead", "unread")

    def __init__(self, agenda: Agenda, route: Route, name: str, arrive: Callable[[Parcel], None]) -> None:
        self._agenda = agenda
        self._route = route
        self._name = name
        self._arrive = arrive
        self._held: list[Parcel] = []
        self._last = 0.0
        self.dead = False
        self.unread = 0
        """Messages sent and not yet read by the other process."""

    def send(self, parcel: Parcel, together: bool = False) -> None:
        """Sends after everything sent before; `together`: without a delay after it."""
        if not self.dead:
            self.unread += 1
            if not together:
                self._last = max(self._last, self._agenda.now + self._route.delay())
            self._agenda.at(self._last, self._land, parcel)

    def flush(self) -> None:
        """Delivers held messages."""
        held, self._held = self._held, []
        for parcel in held:
            if not self.dead:
                self._arrive(parcel)

    def _land(self, parcel: Parcel) -> None:
        if self.dead:
            return
        if self._route.clogged[self._name]:
            self._held.append(parcel)
        else:
            self._arrive(parcel)


class ClientEnd(Protocol):
    name: str

    def arrive(self, wire: Wire, parcel: Parcel) -> None: ...
    def broke(self, wire: Wire) -> None: ...


class BrokerEnd(Protocol):
    name: str

    @property
    def life(self) -> int: ...
    @property
    def up(self) -> bool: ...
    def arrive(self, wire: Wire, parcel: Parcel) -> None: ...
    def hung_up(self, wire: Wire) -> None: ...


class Wire:
    """One connection, from its opening until both ends know that it is closed."""

    __slots__ = ("_agenda", "_diary", "broker", "client", "down", "life", "open", "route", "routing_id", "socket", "up")

    def __init__(
        self, agenda: Agenda, diary: Diary, route: Route, client: ClientEnd, broker: BrokerEnd, socket: str, serial: int
    ) -> None:
        self._agenda = agenda
        self._diary = diary
        self.route = route
        self.client = client
        self.broker = broker
        self.life = broker.life
        self.socket = socket
        self.routing_id = b"\0" + serial.to_bytes(4, "big")
        self.up = Way(agenda, route, "up", self._at_broker)
        self.down = Way(agenda, route, "down", self._at_client)
        self.open = True
        """True until the client closes it."""
        route.wires.append(self)

    def to_broker(self, frames: list[bytes], together: bool = False) -> None:
        """`together`: arrives with the previous message."""
        if self.life != self.broker.life and self.broker.up and self.route.free:
            # The machine at the other end has restarted and does not know this connection.
            self._agenda.after(2 * self.route.delay(), self._notify_client)
        self.up.send(frames, together)

    def to_client(self, frames: list[bytes]) -> None:
        self.down.send(frames)

    def snap(self, client_after: float, broker_after: float) -> None:
        """Breaks the connection: messages in flight are lost both ways, and each end notices after its own delay."""
        self.up.dead = self.down.dead = True
        self._agenda.after(client_after, self._notify_client)
        self._agenda.after(broker_after, self._notify_broker)

    def close(self, lossy: bool) -> None:
        """Closes the client's end; `lossy`: messages in flight are lost too."""
        self.open = False
        if lossy:
            self.up.dead = True
            self._agenda.after(NOTICED_SECONDS if self.route.clogged["up"] else self.route.delay(), self._notify_broker)
        else:
            self.up.send(None)
            self._agenda.after(NOTICED_SECONDS, self._notify_broker)

    def end_of_broker(self, silent: bool) -> None:
        """Ends the broker's process; `silent`: its machine fails too, so the client is not notified."""
        self.up.dead = True
        if silent:
            self._agenda.after(NOTICED_SECONDS, self._notify_client)
        else:
            self.down.send(None)

    def _at_broker(self, parcel: Parcel) -> None:
        if self.life != self.broker.life:
            return
        if parcel is None:
            self._notify_broker()
        else:
            self._diary.message(self.client.name, self.broker.name, parcel)
            self.broker.arrive(self, parcel)

    def _at_client(self, parcel: Parcel) -> None:
        if not self.open:
            return
        if parcel is not None:
            self._diary.message(self.broker.name, self.client.name, parcel)
        self.client.arrive(self, parcel)

    def _notify_client(self) -> None:
        self.up.dead = self.down.dead = True
        if self.open:
            self.client.broke(self)
        self._forget()

    def _notify_broker(self) -> None:
        self.up.dead = self.down.dead = True
        if self.life == self.broker.life:
            self.broker.hung_up(self)
        self._forget()

    def _forget(self) -> None:
        if self in self.route.wires:
            self.route.wires.remove(self)
