"""A large simulated network: groups of brokers with their clients, and the three phases of a run: idle, a configuration
change, the loss of a group. Invariants: brokers are composed as in production; every event comes from the agenda, and
every random number from the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import msgspec

from scale0.config import BrokerConfig, BrokerEntry, GroupConfig
from scale0.transport.core.codec import encode
from scale0.transport.core.sockets import BACKEND, FRONTEND
from simulator.network.broker import LOCAL_TOKEN
from simulator.network.client_connection import SimLink
from simulator.network.connections import Parcel, Route, Wire
from simulator.scale.brokers import ScaleNode, SilentObserver
from simulator.scale.clients import CALL_TIMEOUT_SECONDS, Crowd, ScaleClient
from simulator.scale.counters import Meter
from simulator.virtual_time import Agenda, Diary

CALLERS: Final = 10
"""One of this many clients is a frontend."""
ARRIVE_SECONDS: Final = 10.0
"""The time over which clients start."""
POLL_SECONDS: Final = 0.02
"""The resolution of time measurements."""
SETTLED_SECONDS: Final = 5.0
"""From the last start until the network counts as idle."""
CHANGE_WAIT_SECONDS: Final = 30.0
"""How long a change may take before it counts as lost."""
LOSS_WAIT_SECONDS: Final = 120.0
"""The longest time for which the loss of a group is observed."""
CALL_WAIT_SECONDS: Final = CALL_TIMEOUT_SECONDS + 5.0
"""By then every call has ended."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    brokers: int
    groups: int
    clients: int
    seed: int = 1
    join: bool = False
    """All brokers but the first know only the first one's address."""


class AdminConnection:
    """Sends one administrative command to a broker and receives the reply."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.received: list[list[bytes]] = []

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        if parcel is not None:
            wire.down.unread -= 1
            self.received.append(parcel)

    def broke(self, wire: Wire) -> None: ...


class ScaleWorld:
    def __init__(self, size: Size) -> None:
        self.size = size
        self.agenda = Agenda()
        self.diary = Diary(self.agenda, keep_all=False)
        self.meter = Meter()
        self.rng = random.Random(f"scale0 at scale {size.seed}")
        self._serial = 0
        self.nodes = self._brokers()
        self._sockets = {
            place: (node, socket)
            for node in self.nodes.values()
            for socket, place in (
                (FRONTEND, node.config.endpoints().frontend),
                (BACKEND, node.config.endpoints().backend),
            )
        }
        self.unreachable: set[str] = set()
        """Brokers whose machines are down: connections are not even refused."""
        self.crowd = Crowd(self.agenda, self.rng, self._open)
        self._clients()

    # Construction.

    def _brokers(self) -> dict[str, ScaleNode]:
        size, observer = self.size, SilentObserver(self.agenda, self.meter)
        files = [self._file(number) for number in range(size.brokers)]
        if not size.join:
            listed = tuple(
                GroupConfig(
                    name=group,
                    fallback_groups=fallbacks_of(number, size.groups),
                    brokers=tuple(
                        BrokerEntry(identity=file.identity, services="all", endpoints=file.endpoints())
                        for file in files
                        if file.group == group
                    ),
                )
                for number, group in enumerate(map(group_name, range(size.groups)))
            )
            files = [msgspec.structs.replace(file, group_config=listed) for file in files]
        nodes = {
            file.identity: ScaleNode(
                self.agenda, self.diary, file, random.Random(f"{size.seed} {file.identity}"), observer, self.meter
            )
            for file in files
        }
        at = {file.endpoints().peer: nodes[file.identity] for file in files}
        for node in nodes.values():
            node.reach = at.get
        return nodes

    def _file(self, number: int) -> BrokerConfig:
        size = self.size
        group = number % size.groups
        first = f"tcp://{host_of(0)}:5702"
        return BrokerConfig(
            identity=f"b{number:03}",
            group=group_name(group),
            fallback_groups=fallbacks_of(group, size.groups),
            bind=host_of(number),
            state="active" if not size.join or not number else "joining",
            peers=(first,) if size.join and number else (),
            config_service=number < size.groups,
            admins=(),
        )

    def _clients(self) -> None:
        nodes = list(self.nodes.values())
        for number in range(self.size.clients):
            node = nodes[number % len(nodes)]
            places, group = node.config.endpoints(), node.config.group
            name, service = f"c{number:05}", f"{group}.work"
            if number // len(nodes) % CALLERS:
                self.crowd.worker(name, group, node.name, places.backend, service)
            else:
                self.crowd.caller(name, group, node.name, places.frontend, service)

    def _open(self, link: SimLink, endpoint: str) -> Wire | None:
        node, socket = self._sockets[endpoint]
        if not node.up and node.name not in self.unreachable:
            self.agenda.after(2 * link.route.delay(), link.refused)
            return None
        self._serial += 1
        wire = Wire(self.agenda, self.diary, link.route, link, node, socket, self._serial)
        if node.up:
            node.accept(wire)
        else:
            wire.up.dead = True  # the machine is down and cannot refuse
        return wire

    # Phases.

    def begin(self, progress: Callable[[str], None]) -> float:
        """Starts everything; returns how long it took until all clients were served."""
        wait = 0.0
        for number, node in enumerate(self.nodes.values()):
            wait = number * 0.2 if self.size.join else 0.5 * self.rng.random()
            self.agenda.at(wait, node.start)
        began = self.agenda.now + (wait if self.size.join else 1.0)
        if self.size.join:
            self.agenda.run(began)
            self._until(self._all_active, 120.0, 0.25)
            began = self.agenda.now
        for client in self.crowd.all:
            self.agenda.at(began + ARRIVE_SECONDS * self.rng.random(), self.crowd.start, client)
        self.agenda.run(began + ARRIVE_SECONDS)
        progress("all clients have started")
        took = self._until(self._all_served, 120.0, 0.25)
        self.agenda.run(self.agenda.now + SETTLED_SECONDS)
        return took

    def calm(self, seconds: float, progress: Callable[[str], None]) -> dict[str, Any]:
        """Counts the messages between brokers while nothing happens."""
        self.meter.reset()
        end = self.agenda.now + seconds
        while self.agenda.now < end:
            self.agenda.run(min(end, self.agenda.now + 5.0))
            progress(f"calm, {end - self.agenda.now:.0f} s to go")
        names = list(self.nodes)
        received = [node.live_peers for node in self.nodes.values()]
        return {
            "seconds": seconds,
            "peers": {"mean": round(sum(received) / len(received), 1), "most": max(received)},
            "per_broker_and_second": self.meter.peers(names, seconds),
            "published_per_broker_and_second": round(
                sum(one.messages for one in self.meter.published.values()) / len(names) / seconds, 2
            ),
            "processor": self.meter.load(names, seconds),
        }

    def change(self, progress: Callable[[str], None]) -> dict[str, Any]:
        """Changes the configuration of every client; measures when the last one has it."""
        self.meter.reset()
        node = self.nodes["b000"]
        began = self.agenda.now
        interval = node.broker.state.interval + 0.01
        self._manage(node, {"command": "patch_config", "set": {"default_heartbeat_interval": interval}})
        to_first = self._until(lambda: node.broker.state.interval == interval, CHANGE_WAIT_SECONDS, POLL_SECONDS)
        wanted = node.broker.documents.version
        living = [one for one in self.nodes.values() if one.up]
        self._until(lambda: all(one.rank[0] >= wanted for one in living), CHANGE_WAIT_SECONDS, POLL_SECONDS)
        to_brokers = self.agenda.now - began
        progress(f"the last broker has the change after {to_brokers:.2f} s")
        self._until(
            lambda: all(one.config_version >= wanted for one in self.crowd.all), CHANGE_WAIT_SECONDS, POLL_SECONDS
        )
        to_clients = self.agenda.now - began
        self.agenda.run(self.agenda.now + SETTLED_SECONDS)
        counts = {
            command: sum(table[command].messages for table in self.meter.sent.values() if command in table)
            for command in ("CHECKCONFIG", "CONFIG", "CONFIGACK")
        }
        return {
            "document_bytes": len(node.broker.documents.body),
            "first_seconds": round(to_first, 3),
            "last_broker_seconds": round(to_brokers, 3),
            "last_client_seconds": round(to_clients, 3),
            "between_brokers": counts,
            "document_copies_per_broker": round(counts["CONFIG"] / len(living), 2),
            "brokers_on_it": sum(one.rank[0] >= wanted for one in living),
            "clients_on_it": sum(one.config_version >= wanted for one in self.crowd.all),
        }

    def lose_group(self, group: str, silent: bool, progress: Callable[[str], None]) -> dict[str, Any]:
        """Ends all brokers of a group at once (`silent`: with their machines); measures when the last client is served
        again."""
        self.meter.reset()
        began = self.agenda.now
        dead = [node for node in self.nodes.values() if node.config.group == group]
        lost = [client for client in self.crowd.all if client.group == group]
        back: dict[str, float] = {}

        def note(client: ScaleClient) -> None:
            back.setdefault(client.name, self.agenda.now)

        self.crowd.on_up = note
        for node in dead:
            if silent:
                self.unreachable.add(node.name)
            node.crash(silent)
        names = {node.name for node in dead}
        end = self.agenda.now + LOSS_WAIT_SECONDS
        while self.agenda.now < end and not all(one.is_up and one.at not in names for one in lost):
            self.agenda.run(self.agenda.now + 0.25)
        self.crowd.on_up = lambda _: None
        served = sorted(back[one.name] - began for one in lost if one.name in back)
        progress(f"{len(served)} of {len(lost)} clients are served again after {self.agenda.now - began:.2f} s")
        self.agenda.run(self.agenda.now + 2 * SETTLED_SECONDS)
        where = sorted({self.nodes[one.at].config.group for one in lost if one.at})
        took = [sum(1 for one in lost if one.at == node.name) for node in self.nodes.values() if node.up]
        return {
            "brokers_lost": len(dead),
            "clients": len(lost),
            "machines_too": silent,
            "served_again": sum(1 for one in lost if one.is_up and one.at not in names),
            "half_seconds": round(served[len(served) // 2], 2) if served else None,
            "nine_tenths_seconds": round(served[len(served) * 9 // 10], 2) if served else None,
            "last_seconds": round(served[-1], 2) if served else None,
            "groups_that_serve_them": where,
            "most_taken_by_one_broker": max(took),
            **{word: self.meter.peak(word) for word in ("CHECKCONFIG", "NEEDBROKER", "READY")},
        }

    def end_calls(self) -> None:
        """Stops new calls and waits until all open ones have ended."""
        self.crowd.calling = False
        self._until(lambda: not self.crowd.ledger.open, CALL_WAIT_SECONDS, 0.25)

    def calls(self) -> dict[str, Any]:
        """Returns the outcomes of the calls, after all of them had time to end."""
        ledger = self.crowd.ledger
        return {
            "made": ledger.made,
            "answered": ledger.answered,
            "failed": {str(code): count for code, count in sorted(ledger.failed.items())},
            "open": ledger.open,
        }

    # Helpers.

    def _until(self, holds: Callable[[], bool], seconds: float, effects: float) -> float:
        """Advances the time until a condition holds; returns how long that took."""
        began = self.agenda.now
        while not holds() and self.agenda.now < began + seconds:
            self.agenda.run(self.agenda.now + effects)
        return self.agenda.now - began

    def _all_active(self) -> bool:
        return all(node.broker.state.serving for node in self.nodes.values())

    def _all_served(self) -> bool:
        return all(map(is_up, self.crowd.all))

    def _manage(self, node: ScaleNode, options: dict[str, Any]) -> AdminConnection:
        admin = AdminConnection("admin")
        self._serial += 1
        route = Route("admin", self.rng)
        wire = Wire(self.agenda, self.diary, route, admin, node, FRONTEND, self._serial)
        node.accept(wire)
        wire.to_broker(encode(("MANAGEMENTREQ", {"auth_token": LOCAL_TOKEN, "id": "m", **options})))
        return admin


def is_up(client: ScaleClient) -> bool:
    return client.is_up


def group_name(number: int) -> str:
    return f"g{number:02}"


def host_of(number: int) -> str:
    """Every broker has its own machine."""
    return f"10.0.{number // 250}.{number % 250 + 1}"


def fallbacks_of(number: int, groups: int) -> tuple[str, ...]:
    """The next group, in a ring."""
    return (group_name((number + 1) % groups),) if groups > 1 else ()
