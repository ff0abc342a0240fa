"""The address book of a client: where brokers are, and which one it tries next.

Lives here: the addresses that the user gave, those that the configuration told, and where a broker sent us. Never here:
when anything is tried. Invariants: the first address that was given is home; what was given is never forgotten; brokers
of a group are tried in a random order, so that many clients do not all go to the same one; the book is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import random

MAX_ENDPOINTS: Final = 1_024
"""Brokers that a client knows."""
MATES_FIRST: Final = 1
"""Brokers of the own group that are tried before one of each fallback group: if a whole group is gone without a word,
each of its addresses costs seconds, and any broker outside knows better than a list who of it is there."""
SERVER_KEY: Final = "server_key"
"""Beside the endpoints of a broker."""
PLACE: Final = re.compile(
    r"tcp://(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\]):[0-9]{1,5}", re.ASCII
)
"""What a broker may call an endpoint: anything else would only break when it is used."""


class KnownBroker(msgspec.Struct, frozen=True):
    """A broker in a client's configuration."""

    identity: str = ""
    endpoints: dict[str, str] = {}


class KnownGroup(msgspec.Struct, frozen=True):
    """A group in a client's configuration: the own one, or one to fall back to."""

    name: str = ""
    brokers: list[KnownBroker] = []


class OwnPart(msgspec.Struct, frozen=True):
    """What a line itself needs of its configuration."""

    heartbeat_interval: float = 1.0
    preferred_broker: str = ""
    group_config: list[KnownGroup] = []


class AddressBook:
    """The addresses of one client."""

    __slots__ = ("_asker", "_chance", "_given", "_keys", "_learnt", "_names", "_owners", "_role", "_tried", "at")

    def __init__(self, role: str, given: Sequence[str], chance: random.Random) -> None:
        self._role = role
        self._given = list(dict.fromkeys(given))
        self._chance = chance
        self._learnt: list[str] = []
        """Told by the configuration: one of the own group and of each fallback group, then all others in this order."""
        self._names: dict[str, str] = {}
        """By endpoint: who is there."""
        self._keys: dict[str, str] = {}
        """By endpoint: the public key of whoever is there, where CURVE is used."""
        self._owners: dict[str, str] = {}
        """By endpoint: the group whose brokers share the store there, if they do."""
        self._tried: set[str] = set()
        """In this round."""
        self._asker: str | None = None
        """Who sent us to where we are: it knows better than a list, if nobody is there."""
        self.at = self._given[0]

    @property
    def home(self) -> str:
        """The identity of the broker that we belong to; empty while nobody told."""
        return self._names.get(self._given[0], "")

    @property
    def name(self) -> str:
        """The identity of the broker where we are; empty while nobody told."""
        return self._names.get(self.at, "")

    @property
    def owner(self) -> str:
        """Whose tasks are told where we are: a group's that shares a store, or that one broker's; empty: unknown."""
        return self._owners.get(self.at) or self.name

    @property
    def is_shared(self) -> bool:
        """True where others of the group could tell of the same tasks."""
        return self.at in self._owners

    @property
    def is_home(self) -> bool:
        """True where we belong."""
        return self.at == self._given[0] or (self.home != "" and self.name == self.home)

    @property
    def was_given(self) -> bool:
        """True at an address that the user chose: what is meant for one broker goes to no other."""
        return self.at in self._given

    @property
    def has_others(self) -> bool:
        """True if there is anywhere else to go."""
        return len(self._order()) > 1

    def learn(self, groups: Sequence[KnownGroup], here: str) -> None:
        """The configuration tells of brokers; `here` is the one that we are at."""
        names: dict[str, str] = {}
        places_of: list[list[str]] = []
        for group in groups:
            places = [(broker.endpoints.get(self._role, ""), broker.identity) for broker in group.brokers]
            found = {place: name for place, name in places if PLACE.fullmatch(place) is not None}
            names.update(found)
            for broker in group.brokers:
                self.told_key(broker.endpoints.get(self._role, ""), broker.endpoints.get(SERVER_KEY, ""))
            some = sorted(found)
            self._chance.shuffle(some)
            places_of.append(some)
        mates = [place for place in (places_of[0] if places_of else ()) if place not in self._given]
        first = mates[:MATES_FIRST] + [places[0] for places in places_of[1:] if places]
        self._learnt = list(dict.fromkeys((*first, *(place for places in places_of for place in places))))
        del self._learnt[MAX_ENDPOINTS:]
        kept = {place: name for place, name in self._names.items() if place in self._given}
        self._names = {**kept, **{place: names[place] for place in (*self._learnt, *self._given) if place in names}}
        if here:
            self._names[self.at] = here

    def met(self, identity: str) -> None:
        """Whoever is where we are told its name."""
        if identity:
            self._names[self.at] = identity

    def told_key(self, place: str, key: str) -> None:
        """A broker says which key the one there has."""
        if key and PLACE.fullmatch(place) is not None and (place in self._keys or len(self._keys) < MAX_ENDPOINTS):
            self._keys[place] = key

    def server_key(self, place: str) -> str:
        """The key of whoever is there; empty while nobody told."""
        return self._keys.get(place, "")

    def told_owner(self, owner: object) -> None:
        """Whoever is where we are says whose tasks it tells of; nothing: its own alone."""
        if isinstance(owner, str) and owner not in ("", self.name):
            if self.at in self._owners or len(self._owners) < MAX_ENDPOINTS:
                self._owners[self.at] = owner
        else:
            self._owners.pop(self.at, None)

    def go(self, place: str, identity: str) -> bool:
        """A broker sends us there; False: that is no address."""
        if PLACE.fullmatch(place) is None:
            return False
        if place != self.at:
            self._asker, self.at = self.at, place
        if identity and (place in self._given or len(self._names) < MAX_ENDPOINTS):
            self._names[place] = identity
        return True

    def fail(self) -> bool:
        """Nobody is where we are: the next one; True: all were tried."""
        self._tried.add(self.at)
        asker, self._asker = self._asker, None
        if asker is not None and asker not in self._tried:
            self.at = asker
            return False
        order = self._order()
        fresh = [place for place in order if place not in self._tried]
        if fresh:
            self.at = fresh[0]
            return False
        self._tried.clear()
        self.at = next((place for place in order if place != self.at), order[0])
        return True

    def succeed(self) -> None:
        """Somebody is where we are, and took us in."""
        self._tried.clear()
        self._asker = None

    def _order(self) -> list[str]:
        """Home, then the others that were given, then those that we learnt of; each broker once."""
        out: dict[str, str] = {}
        for place in (*self._given, *self._learnt):
            name = self._names.get(place, "")
            if place not in out and (not name or name not in out.values()):
                out[place] = name
        return list(out)
