"""The address book of a client: which brokers exist, and which one to try next.

Invariants: the first address that the user gave is the home broker; addresses that the user gave are never removed;
brokers of a group are tried in random order, so that clients spread over them; the book has a maximum size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import random

MAX_ENDPOINTS: Final = 1_024
"""Brokers that a client remembers."""
GROUP_FIRST: Final = 1
"""Brokers of the client's own group that are tried before one broker of each fallback group. If a whole group is lost,
each of its addresses costs seconds, and any broker outside the group knows which of its brokers are alive."""
SERVER_KEY: Final = "server_key"
"""The key, beside the endpoints of a broker, that holds its public key."""
ENDPOINT: Final = re.compile(
    r"tcp://(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\]):[0-9]{1,5}", re.ASCII
)
"""Endpoints that a broker may announce; anything else is ignored."""


class KnownBroker(msgspec.Struct, frozen=True):
    """A broker in a client's configuration."""

    identity: str = ""
    endpoints: dict[str, str] = {}


class KnownGroup(msgspec.Struct, frozen=True):
    """A group in a client's configuration: its own group, or a fallback group."""

    name: str = ""
    brokers: list[KnownBroker] = []


class SessionConfig(msgspec.Struct, frozen=True):
    """The part of the configuration that a session uses."""

    heartbeat_interval: float = 1.0
    preferred_broker: str = ""
    group_config: list[KnownGroup] = []


class AddressBook:
    def __init__(self, role: str, given: Sequence[str], rng: random.Random) -> None:
        self._role = role
        self._given = list(dict.fromkeys(given))
        self._rng = rng
        self._learned: list[str] = []
        """Endpoints from the configuration: one of the own group and of each fallback group first, then all others."""
        self._names: dict[str, str] = {}
        """Broker identities by endpoint."""
        self._keys: dict[str, str] = {}
        """Public keys of brokers by endpoint, where CURVE is used."""
        self._owners: dict[str, str] = {}
        """By endpoint: the group whose brokers share a store there, if they do."""
        self._tried: set[str] = set()
        """Endpoints that were tried in this round."""
        self._redirected_by: str | None = None
        """The endpoint of the broker that redirected us here; it is asked again if nothing answers here."""
        self.on_server_key: Callable[[str, str], None] = lambda *_: None
        """Called with the current endpoint and the key that the broker there announced as its own."""
        self.current = self._given[0]
        self.key_hint = ""
        """Where the client's own key is, and what to do if the broker does not accept it; empty without keys."""

    @property
    def first_given(self) -> str:
        return self._given[0]

    @property
    def home(self) -> str:
        """The identity of the home broker; empty if unknown."""
        return self._names.get(self._given[0], "")

    @property
    def name(self) -> str:
        """The identity of the current broker; empty if unknown."""
        return self._names.get(self.current, "")

    @property
    def owner(self) -> str:
        """The owner of the tasks here: a group that shares a store, or the broker itself; empty if unknown."""
        return self._owners.get(self.current) or self.name

    @property
    def is_shared(self) -> bool:
        """True if other brokers of the group share the current broker's task store."""
        return self.current in self._owners

    @property
    def is_home(self) -> bool:
        return self.current == self._given[0] or (self.home != "" and self.name == self.home)

    @property
    def was_given(self) -> bool:
        """True at an address that the user gave; management commands go to no other."""
        return self.current in self._given

    @property
    def has_others(self) -> bool:
        return len(self._order()) > 1

    def update(self, groups: Sequence[KnownGroup], here: str) -> None:
        """Replace the configuration's brokers; `here` is the identity of the current broker."""
        names: dict[str, str] = {}
        endpoints_of_groups: list[list[str]] = []
        for group in groups:
            endpoints = [(broker.endpoints.get(self._role, ""), broker.identity) for broker in group.brokers]
            found = {endpoint: name for endpoint, name in endpoints if ENDPOINT.fullmatch(endpoint) is not None}
            names.update(found)
            for broker in group.brokers:
                self.set_server_key(broker.endpoints.get(self._role, ""), broker.endpoints.get(SERVER_KEY, ""))
            some = sorted(found)
            self._rng.shuffle(some)
            endpoints_of_groups.append(some)
        group_endpoints = [
            endpoint
            for endpoint in (endpoints_of_groups[0] if endpoints_of_groups else ())
            if endpoint not in self._given
        ]
        first = group_endpoints[:GROUP_FIRST] + [endpoints[0] for endpoints in endpoints_of_groups[1:] if endpoints]
        self._learned = list(
            dict.fromkeys((*first, *(endpoint for endpoints in endpoints_of_groups for endpoint in endpoints)))
        )
        del self._learned[MAX_ENDPOINTS:]
        kept = {endpoint: name for endpoint, name in self._names.items() if endpoint in self._given}
        self._names = {
            **kept,
            **{endpoint: names[endpoint] for endpoint in (*self._learned, *self._given) if endpoint in names},
        }
        if here:
            self._names[self.current] = here

    def set_name(self, identity: str) -> None:
        if identity:
            self._names[self.current] = identity

    def set_server_key(self, endpoint: str, key: str) -> None:
        if (
            key
            and ENDPOINT.fullmatch(endpoint) is not None
            and (endpoint in self._keys or len(self._keys) < MAX_ENDPOINTS)
        ):
            self._keys[endpoint] = key

    def announce_server_key(self, key: object) -> None:
        """The current broker announces its own key, to be expected at the next connection."""
        if isinstance(key, str) and key:
            self.set_server_key(self.current, key)
            self.on_server_key(self.current, key)

    def server_key(self, endpoint: str) -> str:
        return self._keys.get(endpoint, "")

    def set_owner(self, owner: object) -> None:
        """Set the owner of the current broker's tasks; no owner means the broker itself."""
        if isinstance(owner, str) and owner not in ("", self.name):
            if self.current in self._owners or len(self._owners) < MAX_ENDPOINTS:
                self._owners[self.current] = owner
        else:
            self._owners.pop(self.current, None)

    def redirect(self, endpoint: str, identity: str) -> bool:
        """Switch to the endpoint that a broker named; False if it is not a valid endpoint."""
        if ENDPOINT.fullmatch(endpoint) is None:
            return False
        if endpoint != self.current:
            self._redirected_by, self.current = self.current, endpoint
        if identity and (endpoint in self._given or len(self._names) < MAX_ENDPOINTS):
            self._names[endpoint] = identity
        return True

    def next_endpoint(self) -> bool:
        """The current endpoint failed: switch to the next one. True if all have been tried."""
        self._tried.add(self.current)
        redirected_by, self._redirected_by = self._redirected_by, None
        if redirected_by is not None and redirected_by not in self._tried:
            self.current = redirected_by
            return False
        order = self._order()
        untried = [endpoint for endpoint in order if endpoint not in self._tried]
        if untried:
            self.current = untried[0]
            return False
        self._tried.clear()
        self.current = next((endpoint for endpoint in order if endpoint != self.current), order[0])
        return True

    def mark_connected(self) -> None:
        self._tried.clear()
        self._redirected_by = None

    def _order(self) -> list[str]:
        """The home broker, the other given addresses, then learned ones; each broker once."""
        by_endpoint: dict[str, str] = {}
        for endpoint in (*self._given, *self._learned):
            name = self._names.get(endpoint, "")
            if endpoint not in by_endpoint and (not name or name not in by_endpoint.values()):
                by_endpoint[endpoint] = name
        return list(by_endpoint)
