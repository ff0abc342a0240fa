"""Brokers of one group without sockets, and clients of ours who come to them.

Lives here: towns, guests, and what they ask and answer. Never here: an expectation. See `network` for the wires.
"""

from __future__ import annotations

import random
from typing import Any

from scale0.transport.core.backend_session import BackendSession, RequestReceived
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.unit.broker.network import Guest, Network, Node, place_of


def town(*names: str, **of: dict[str, Any]) -> tuple[Network, dict[str, Node]]:
    """Brokers of one group; `a` may change the configuration. `of` has more for one of them."""
    network = Network()
    nodes: dict[str, Node] = {}
    for name in names:
        peers = () if name == "a" else (place_of("a"),)
        nodes[name] = network.add(name, peers=peers, config_service=name == "a", **of.get(name, {}))
    network.run(5)
    return network, nodes


def worker(network: Network, *brokers: str, name: str = "w", services: tuple[str, ...] = ("paint",)) -> Guest:
    rng = random.Random(network.dice.random())
    places = [place_of(broker, "backend") for broker in brokers]
    return Guest(network, name, BACKEND, BackendSession(places, name, services, 4, rng))


def caller(network: Network, *brokers: str, name: str = "f") -> Guest:
    rng = random.Random(network.dice.random())
    places = [place_of(broker, "frontend") for broker in brokers]
    return Guest(network, name, FRONTEND, FrontendSession(places, name, rng))


def answer(guest: Guest) -> int:
    """It does all that it was given; how much that was."""
    works = guest.told(RequestReceived)
    guest.news.clear()
    for work in works:
        guest.act("reply", work.id, [b"done"])
    return len(works)


def ask(guest: Guest, tag: str, timeout: float = 20.0, retry: bool = False) -> None:
    guest.act("request", "paint", [b"red"], timeout, retry, tag)


def until_served(network: Network, guest: Guest, most: float) -> float:
    """How long it takes until some broker serves it."""
    begun = network.time
    while not guest.place:
        network.run(0.05)
        assert network.time - begun <= most, f"nobody serves it after {most} s"
    return network.time - begun
