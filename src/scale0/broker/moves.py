"""Clients on the move: sent away by a broker that drains, called home to one that is back (PROTOCOL 2.1).

Lives here: who belongs to which other broker, and when it is told to go. Never here: which broker is the best for
somebody (`failover`). Invariants: many are never told in one turn, and go at random times, the more of them the further
apart; nobody is called to a broker that is not heard, not active, or does not serve what it offers.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from scale0.base.identity import is_identity
from scale0.base.now import Now
from scale0.base.step import Step
from scale0.broker.connection import Connection
from scale0.broker.failover import Failover, serves, target_of
from scale0.broker.members import Member, Members
from scale0.broker.peers import Peer, Peers
from scale0.broker.state import ACTIVE, BrokerState

TOLD_AT_ONCE: Final = 500
"""Clients that are told to go in one turn."""
MOVES_PER_SECOND: Final = 500.0
"""How many are asked to go in one second: each of them negotiates where it comes to."""
MAX_HOMES: Final = 100_000
"""Clients that said where they belong, and have not negotiated yet."""

HOMESICK_SECONDS: Final = 60.0
"""How often those are called home who came although their broker never seemed to be away: they could not reach it."""

Key = tuple[str, str]


class Moves:
    """Who is to go where."""

    __slots__ = ("_failover", "_homes", "_leaving", "_members", "_peers", "_spread", "_state")

    def __init__(self, state: BrokerState, members: Members, peers: Peers, failover: Failover) -> None:
        self._state = state
        self._members = members
        self._peers = peers
        self._failover = failover
        self._homes: dict[Key, str] = {}
        self._leaving: deque[tuple[Member, str]] = deque()
        """Who is still to be told, and to which broker it goes; empty: to any other."""
        self._spread = 0.0
        """Over how many seconds they go."""

    def start(self, now: Now) -> None:
        """Begin to look for those who are not at home."""
        self._state.timers.add((self._look, None), now.mono + HOMESICK_SECONDS)

    def _look(self, _: None, now: Now, _step: Step) -> None:
        self._state.timers.add((self._look, None), now.mono + HOMESICK_SECONDS)
        if self._state.state == ACTIVE and not self._leaving:
            homes = {peer.identity for peer in self._peers.alive() if peer.serves}
            self._send([(one, one.home) for one in self._members.by_name.values() if one.home in homes], now)

    def prefers(self, connection: Connection, identity: str | None, broker: str) -> None:
        """A client said which broker it belongs to."""
        if broker == self._state.identity or not is_identity(broker):
            return
        member = connection.member
        if member is not None:
            member.home = broker
        elif identity is not None and is_identity(identity):
            while len(self._homes) >= MAX_HOMES:
                del self._homes[next(iter(self._homes))]
            self._homes[connection.door, identity] = broker

    def met(self, member: Member) -> None:
        """A client negotiates here. It may be one that another broker lost: that one told of it, or it says so."""
        key = (member.role, member.identity)
        home = self._homes.pop(key, "")
        if not home and not member.home:
            away = (peer for peer in self._peers.by_name.values() if not peer.serves)
            home = next((peer.identity for peer in away if key in peer.table.rows), "")
        member.home = home or member.home

    def heard(self, peer: Peer, _connection: Connection, now: Now, _step: Step) -> None:
        """A broker told how it is. If it is back, those who belong to it are called home."""
        was_back, peer.back = peer.back, peer.serves
        if peer.back and not was_back and self._state.state == ACTIVE:
            homesick = [member for member in self._members.by_name.values() if member.home == peer.identity]
            self._send([(member, peer.identity) for member in homesick], now)

    def send_away(self, now: Now) -> None:
        """This broker drains: everybody goes to another."""
        self._send([(member, "") for member in self._members.by_name.values()], now)

    def send_now(self, connection: Connection, step: Step) -> None:
        """It asks a broker that drains for something: at the latest now it is told where to go."""
        member = connection.member
        if member is not None and not member.told and self._may_be_told(member):
            self._tell(member, "", step)

    def _send(self, moves: list[tuple[Member, str]], now: Now) -> None:
        if moves and not self._leaving:
            self._state.timers.add((self._tell_some, None), now.mono)
        self._leaving.extend(moves)
        self._spread = max(self._state.interval, len(self._leaving) / MOVES_PER_SECOND)

    def _tell_some(self, _: None, now: Now, step: Step) -> None:
        for _turn in range(min(TOLD_AT_ONCE, len(self._leaving))):
            member, broker = self._leaving.popleft()
            if not member.gone and self._may_be_told(member):
                self._tell(member, broker, step)
        if self._leaving:
            self._state.timers.add((self._tell_some, None), now.mono)

    def _may_be_told(self, member: Member) -> bool:
        return not member.foreign and member.connection.takes_pushes

    def _tell(self, member: Member, broker: str, step: Step) -> None:
        if not broker:
            if self._state.draining:
                member.told = True
                self._failover.send_on(member.connection, member.services, self._spread, step)
            return
        peer = self._peers.by_name.get(broker)
        if peer is not None and peer.serves and serves(peer.services, member.services):
            after = self._state.chance.random() * self._spread
            self._failover.tell(member.connection, target_of(peer), after, step)
