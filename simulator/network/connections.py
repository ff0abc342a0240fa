"""Wires: simulated connections between a client and a door of a broker.

Lives here: delay, order, clogging, breaking, and who notices what. Never here: what the frames mean. Invariants:
nothing is reordered within one direction of one wire; a wire that broke delivers nothing any more; what is sent to
an end that is closed is lost without a word.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol

from simulator.virtual_time import Agenda, Diary

NOTICED_SECONDS: Final = 20.0
"""The heartbeats of ZMTP end a half-open connection at the latest after this."""

Parcel = list[bytes] | None
"""The frames of a message; None: the other end hung up."""


class Route:
    """The way between one client and its brokers, over all of its wires: as slow and as clogged as the faults say."""

    __slots__ = ("clogged", "high", "low", "name", "rng", "wires")

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.low, self.high = 0.0002, 0.002
        self.clogged = {"up": False, "down": False}
        self.wires: list[Wire] = []

    def delay(self) -> float:
        """Of one message."""
        return self.low + (self.high - self.low) * self.rng.random()

    def clog(self, way: str) -> None:
        """Nothing arrives this way any more; nothing is lost yet either."""
        self.clogged[way] = True

    def unclog(self, way: str) -> None:
        """What was held arrives at once."""
        self.clogged[way] = False
        for wire in list(self.wires):
            (wire.up if way == "up" else wire.down).flush()

    @property
    def free(self) -> bool:
        """True if messages pass both ways."""
        return not (self.clogged["up"] or self.clogged["down"])


class Way:
    """One direction of one wire."""

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
        """Sent, and not yet taken by the process at the other end."""

    def send(self, parcel: Parcel, together: bool = False) -> None:
        """On its way, behind all that was sent before; `together`: right behind it."""
        if not self.dead:
            self.unread += 1
            if not together:
                self._last = max(self._last, self._agenda.now + self._route.delay())
            self._agenda.at(self._last, self._land, parcel)

    def flush(self) -> None:
        """The route is free again."""
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
    """Who sits at the client's end of a wire."""

    name: str

    def arrive(self, wire: Wire, parcel: Parcel) -> None: ...
    def broke(self, wire: Wire) -> None: ...


class BrokerEnd(Protocol):
    """Who sits at the broker's end of a wire."""

    name: str

    @property
    def life(self) -> int: ...
    @property
    def up(self) -> bool: ...
    def arrive(self, wire: Wire, parcel: Parcel) -> None: ...
    def hung_up(self, wire: Wire) -> None: ...


class Wire:
    """One connection, from its opening until both ends know that it is over."""

    __slots__ = ("_agenda", "_diary", "broker", "client", "door", "down", "life", "open", "route", "routing_id", "up")

    def __init__(
        self, agenda: Agenda, diary: Diary, route: Route, client: ClientEnd, broker: BrokerEnd, door: str, serial: int
    ) -> None:
        self._agenda = agenda
        self._diary = diary
        self.route = route
        self.client = client
        self.broker = broker
        self.life = broker.life
        self.door = door
        self.routing_id = b"\0" + serial.to_bytes(4, "big")
        self.up = Way(agenda, route, "up", self._at_broker)
        self.down = Way(agenda, route, "down", self._at_client)
        self.open = True
        """The client has not closed it."""
        route.wires.append(self)

    def to_broker(self, frames: list[bytes], together: bool = False) -> None:
        """The client sends; `together`: to arrive with what it sent last."""
        if self.life != self.broker.life and self.broker.up and self.route.free:
            # The machine at the other end is back and does not know this connection.
            self._agenda.after(2 * self.route.delay(), self._tell_client)
        self.up.send(frames, together)

    def to_client(self, frames: list[bytes]) -> None:
        """The broker sends."""
        self.down.send(frames)

    def snap(self, client_after: float, broker_after: float) -> None:
        """It breaks: what is on its way is lost both ways, and each end notices in its own time."""
        self.up.dead = self.down.dead = True
        self._agenda.after(client_after, self._tell_client)
        self._agenda.after(broker_after, self._tell_broker)

    def close(self, lossy: bool) -> None:
        """The client closes its end; `lossy`: what it had just sent is lost too."""
        self.open = False
        if lossy:
            self.up.dead = True
            self._agenda.after(NOTICED_SECONDS if self.route.clogged["up"] else self.route.delay(), self._tell_broker)
        else:
            self.up.send(None)
            self._agenda.after(NOTICED_SECONDS, self._tell_broker)

    def end_of_broker(self, silent: bool) -> None:
        """The process at the other end is gone; `silent`: its machine too, so nobody is told."""
        self.up.dead = True
        if silent:
            self._agenda.after(NOTICED_SECONDS, self._tell_client)
        else:
            self.down.send(None)

    def _at_broker(self, parcel: Parcel) -> None:
        if self.life != self.broker.life:
            return
        if parcel is None:
            self._tell_broker()
        else:
            self._diary.message(self.client.name, self.broker.name, parcel)
            self.broker.arrive(self, parcel)

    def _at_client(self, parcel: Parcel) -> None:
        if not self.open:
            return
        if parcel is not None:
            self._diary.message(self.broker.name, self.client.name, parcel)
        self.client.arrive(self, parcel)

    def _tell_client(self) -> None:
        self.up.dead = self.down.dead = True
        if self.open:
            self.client.broke(self)
        self._forget()

    def _tell_broker(self) -> None:
        self.up.dead = self.down.dead = True
        if self.life == self.broker.life:
            self.broker.hung_up(self)
        self._forget()

    def _forget(self) -> None:
        if self in self.route.wires:
            self.route.wires.remove(self)
