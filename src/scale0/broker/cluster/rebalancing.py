"""Rebalancing: a draining broker sends its clients away, and clients are called home when their broker is back
(PROTOCOL 2.1).

Invariants: a turn notifies a bounded number of clients, and they move at random times over a period that grows with
their number; a client is called only to a broker that is alive, active and serves its services; an unsuccessful call is
repeated with increasing delays; a worker is not called away while work waits for it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from scale0.broker.cluster.failover import Failover, serves, target_of
from scale0.broker.cluster.peer import Peer
from scale0.broker.cluster.peers import Peers
from scale0.broker.core.connections import Connection
from scale0.broker.core.members import Member, Members
from scale0.broker.core.requests import Requests
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import is_identity
from scale0.transport.core.sockets import ACTIVE

REDIRECTS_PER_TURN: Final = 500
"""Clients that are told to move in one turn."""
MOVES_PER_SECOND: Final = 500.0
"""Limits the load of negotiation on the target brokers."""
MAX_SPREAD_SECONDS: Final = 600.0
"""The longest period over which clients move, whatever their number."""
REVIEW_SECONDS: Final = 60.0
MAX_PAUSE_SECONDS: Final = 3_600.0
"""The longest pause after an unsuccessful call home; it doubles from LOOK_SECONDS."""

Key = tuple[str, str]


class RedirectAttempt(NamedTuple):
    at: float
    pause: float


class Rebalancing:
    def __init__(
        self, state: BrokerState, members: Members, peers: Peers, requests: Requests, failover: Failover
    ) -> None:
        self._state = state
        self._members = members
        self._peers = peers
        self._requests = requests
        self._failover = failover
        self._redirects: dict[Key, RedirectAttempt] = {}
        self._leaving: deque[tuple[Member, str]] = deque()
        """Clients still to be notified, and their target broker; blank: any other."""
        self._drain_seconds = 0.0
        """The period over which they move, in seconds."""

    def start(self, now: Now) -> None:
        self._state.timers.add((self._review, None), now.mono + REVIEW_SECONDS)

    def _review(self, _: None, now: Now, _step: Effects) -> None:
        self._state.timers.add((self._review, None), now.mono + REVIEW_SECONDS)
        self._redirects = {
            key: one for key, one in self._redirects.items() if now.mono - one.at < 2 * MAX_PAUSE_SECONDS
        }
        if self._state.state != ACTIVE or self._leaving:
            return
        if self._state.draining:
            self.send_away(now)
        if self._state.hands_back:
            return  # all clients already move to one broker
        homes = {peer.identity for peer in self._peers.alive() if peer.serves}
        self._call([one for one in self._members.by_name.values() if one.home in homes], False, now)

    def prefers(self, connection: Connection, broker: str, now: Now) -> None:
        """A client named its own broker. If that one is available, the client is called home like any other."""
        if broker == self._state.identity or not is_identity(broker):
            return
        connection.prefers, connection.prefers_at = broker, now.mono
        member, peer = connection.member, self._peers.by_name.get(broker)
        if member is not None:
            member.home = broker
            if peer is not None and peer.serves:
                self._call([member], False, now)

    def negotiated(self, member: Member, now: Now) -> None:
        """A client negotiates here that may belong to another broker, by its own message or by that broker's table.

        It was told to stay because its own broker was away. If that one came back meanwhile, no other event would show
        it.
        """
        home = member.connection.prefers or member.home
        if not home:
            key = (member.role, member.identity)
            away = (peer for peer in self._peers.by_name.values() if not peer.serves)
            rows = ((peer.identity, peer.table.rows.get(key)) for peer in away)
            home = next((name for name, row in rows if row is not None and not row.gone), "")
        member.home = home
        peer = self._peers.by_name.get(member.connection.prefers)
        if peer is not None and peer.serves and peer.back_at > member.connection.prefers_at:
            self._call([member], False, now)

    def peer_reported(self, peer: Peer, _connection: Connection, now: Now, _step: Effects) -> None:
        """A broker reported its state. If it is back, call its clients home."""
        was_back, peer.back = peer.back, peer.serves
        if peer.back and not was_back and self._state.state == ACTIVE:
            peer.back_at = now.mono
            members = self._members.by_name.values()
            self._call([member for member in members if member.home == peer.identity], True, now)
            if self._state.draining:
                self.send_away(now)

    def hand_back(self, active: str, now: Now) -> None:
        """The active broker of our pair is back: send all clients there that were not sent recently."""
        if not self._leaving:
            self._call(list(self._members.by_name.values()), False, now, active)

    def _call(self, members: list[Member], back: bool, now: Now, to: str = "") -> None:
        """Call members home, with increasing pauses after unsuccessful calls, unless their broker was away since.

        A client that is between two brokers when its own comes back misses the call; it is called when it arrives here.
        """
        moving: list[tuple[Member, str]] = []
        for member in members:
            key = (member.role, member.identity)
            called, peer = self._redirects.get(key), self._peers.by_name.get(to or member.home)
            if called is None or back or (peer is not None and called.at < peer.back_at):
                self._redirects[key] = RedirectAttempt(now.mono, REVIEW_SECONDS)
            elif now.mono - called.at >= called.pause:
                self._redirects[key] = RedirectAttempt(now.mono, min(2 * called.pause, MAX_PAUSE_SECONDS))
            else:
                continue
            moving.append((member, to or member.home))
        self._send(moving, now)

    def send_away(self, now: Now) -> None:
        """This broker drains: send all clients to other brokers."""
        self._send([(member, "") for member in self._members.by_name.values()], now)

    def send_now(self, connection: Connection, effects: Effects) -> None:
        """A client sends a request to a draining broker: redirect it now, if that has not happened yet."""
        member = connection.member
        if member is not None and not member.move_sent and self._may_move(member):
            self._move(member, "", effects)

    def _send(self, moving: list[tuple[Member, str]], now: Now) -> None:
        if moving and not self._leaving:
            self._state.timers.add((self._move_some, None), now.mono)
        self._leaving.extend(moving)
        self._drain_seconds = min(MAX_SPREAD_SECONDS, max(self._state.interval, len(self._leaving) / MOVES_PER_SECOND))

    def _move_some(self, _: None, now: Now, effects: Effects) -> None:
        for _turn in range(min(REDIRECTS_PER_TURN, len(self._leaving))):
            member, broker = self._leaving.popleft()
            if not member.gone and self._may_move(member):
                self._move(member, broker, effects)
        if self._leaving:
            self._state.timers.add((self._move_some, None), now.mono)

    def _is_wanted(self, service: str) -> bool:
        # When this broker gives way, the active broker finds backends for the requests that wait here.
        waits = service in self._requests.queues and not self._state.hands_back
        return waits or self._requests.tasks.waits(service)

    def _may_move(self, member: Member) -> bool:
        return not member.foreign and member.connection.takes_pushes

    def _move(self, member: Member, broker: str, effects: Effects) -> None:
        if not broker:
            if self._state.draining:
                member.move_sent = self._failover.send_on(
                    member.connection, member.services, self._drain_seconds, effects
                )
            return
        peer = self._peers.by_name.get(broker)
        if peer is None or not peer.serves or not serves(peer.services, member.services):
            return
        if member.backend is not None and any(map(self._is_wanted, member.services)):
            self._redirects.pop((member.role, member.identity), None)
            return  # the backend is needed here; it will be called again
        self._failover.redirect(
            member.connection, target_of(peer), self._state.rng.random() * self._drain_seconds, effects
        )
