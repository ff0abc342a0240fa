"""Failover: chooses a broker for a client whose own broker is gone, or does not serve its services (PROTOCOL 2.1).

Handles NEEDBROKER and sends every CHANGEBROKER. Invariants: a client is sent only to a broker that is alive, active and
serves what it needs; many clients that ask at once are distributed over brokers and over time; a standby sends clients
to the active broker of its pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from scale0.broker.cluster.peer import Peer
from scale0.broker.cluster.peers import Peers
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection
from scale0.broker.core.members import Members
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import MAX_IDENTITY_CHARS
from scale0.transport.core import messages
from scale0.transport.core.session import RECHECK_SECONDS
from scale0.transport.core.sockets import ACTIVE, STANDBY

ALIVE_INTERVALS: Final = 1.5
"""In intervals: a broker that was heard from this recently counts as alive, whatever one client reports."""
ASKED_SECONDS: Final = 30.0
"""A client that reports again within this time is believed."""
LATE_INTERVALS: Final = 0.25
"""In intervals: the longest delay between the loss of the active broker and the takeover by its standby."""
MAX_ASKED: Final = 100_000


class FailoverTarget(NamedTuple):
    identity: str
    group: str
    endpoints: Mapping[str, str]
    load: float


class Failover:
    def __init__(self, state: BrokerState, documents: ConfigDocument, members: Members, peers: Peers) -> None:
        self._state = state
        self._documents = documents
        self._members = members
        self._peers = peers
        self._asked: dict[tuple[str, str], float] = {}
        """By client and broker: when the client reported that the broker does not answer."""

    def need_broker(
        self, connection: Connection, message: messages.NeedBroker, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """NEEDBROKER: if the client's broker is gone, send the client to another one."""
        preferred = message.preferred_broker or ""
        identity = message.identity or connection.name
        preferred_peer = self._peers.by_name.get(preferred)
        is_new = connection.member is None  # `rebalancing` redirects members to their preferred broker
        if (
            preferred_peer is not None
            and is_new
            and self._is_available(preferred_peer, message.services, now)
            and self._first_time(identity, preferred_peer, now)
        ):
            self.redirect(connection, target_of(preferred_peer), self._wait(), effects)
            return
        # A client that is registered here stays, if possible.
        own = None if is_new else self._own(message.services)
        # While this broker passes clients on, a member must go to the active broker, even if it reports that one as
        # gone.
        excluded = set() if self._state.redirects_to_active and not is_new else {preferred} - {self._state.identity}
        target = own or self.choose(message.services, excluded, self._group_of(preferred))
        if target is not None:
            self.redirect(connection, target, self._wait(), effects)
        elif preferred_peer is not None and self._state.standby and preferred == self._state.config.standby_for:
            # Its loss will be known soon; then the client must be here.
            self.redirect(connection, self._own_target(), self._until_known(preferred_peer, now), effects)
        else:
            raise Refusal(codes.NOT_SERVING, "no broker of this network serves these services now")

    def send_on(self, connection: Connection, services: Sequence[str], spread: float, effects: Effects) -> bool:
        """Send CHANGEBROKER to another broker that serves these, within `spread` seconds; False if there is none."""
        target = self.choose(services, {self._state.identity})
        if target is not None:
            self.redirect(connection, target, self._state.rng.random() * spread, effects)
        return target is not None

    def choose(self, services: Sequence[str], excluded: set[str], home: str | None = None) -> FailoverTarget | None:
        """The least loaded broker that serves these: in the client's group, then in each fallback group in order."""
        active = self._active(services) if self._state.redirects_to_active else None
        if active is not None and active.identity not in excluded:
            return target_of(active)
        groups = {group.name: group.fallback_groups for group in self._documents.document.group_config}
        ours = self._state.group
        first = ours if home is None else home
        for name in dict.fromkeys((first, *groups.get(first, ()), ours, *groups.get(ours, ()))):
            found = [one for one in self._candidates(name, services) if one.identity not in excluded]
            if found:
                best = min(found, key=lambda one: (one.load, self._state.rng.random()))
                peer = self._peers.by_name.get(best.identity)
                if peer is not None:
                    # An estimate until its next heartbeat; otherwise all clients that ask meanwhile would go to the
                    # same broker.
                    peer.load += 1
                return best
        return None

    def _active(self, services: Sequence[str]) -> Peer | None:
        peer = self._peers.by_name.get(self._state.config.standby_for)
        return peer if peer is not None and peer.serves and serves(peer.services, services) else None

    def _group_of(self, broker: str) -> str | None:
        peer = self._peers.by_name.get(broker)
        if peer is not None:
            return peer.group
        groups = self._documents.document.group_config
        return next((group.name for group in groups if any(one.identity == broker for one in group.brokers)), None)

    def _candidates(self, group: str, services: Sequence[str]) -> Iterator[FailoverTarget]:
        own = self._own(services)
        if own is not None and own.group == group:
            yield own
        for peer in self._peers.alive():
            if peer.group == group and (peer.serves or self._relieves(peer)) and serves(peer.services, services):
                yield target_of(peer)

    def _relieves(self, peer: Peer) -> bool:
        """True if it is our standby and we drain: it will be active before any client arrives."""
        return self._state.drain_requested and peer.standby_for == self._state.identity and peer.state == STANDBY

    def _own(self, services: Sequence[str]) -> FailoverTarget | None:
        state = self._state
        if state.shown != ACTIVE or state.draining or not serves(state.config.services, services):
            return None
        return self._own_target()

    def _own_target(self) -> FailoverTarget:
        state = self._state
        return FailoverTarget(state.identity, state.group, state.endpoints, float(len(self._members.by_name)))

    def _is_available(self, peer: Peer, services: Sequence[str], now: Now) -> bool:
        lately = now.mono - peer.last_received <= ALIVE_INTERVALS * self._state.interval
        return lately and peer.serves and serves(peer.services, services)

    def _first_time(self, identity: str, peer: Peer, now: Now) -> bool:
        key = (identity[:MAX_IDENTITY_CHARS], peer.identity)
        before = self._asked.get(key)
        if len(self._asked) >= MAX_ASKED:
            self._asked = {who: at for who, at in self._asked.items() if now.mono - at < ASKED_SECONDS}
        if len(self._asked) < MAX_ASKED:
            self._asked[key] = now.mono
        # A report from before the broker came back does not count.
        return before is None or before < peer.back_at or now.mono - before >= ASKED_SECONDS

    def _until_known(self, peer: Peer, now: Now) -> float:
        """How long until its silence is evaluated, with a margin: a client that is too early is redirected again."""
        state = self._state
        known = peer.last_received + state.interval * state.liveness + RECHECK_SECONDS
        return max(0.0, known - now.mono) + LATE_INTERVALS * state.interval * (1.0 + state.rng.random()) / 2

    def _wait(self) -> float:
        return self._state.rng.random() * self._state.interval

    def redirect(self, connection: Connection, target: FailoverTarget, after: float, effects: Effects) -> None:
        message = messages.ChangeBroker(
            broker=target.identity, group=target.group, endpoints=dict(target.endpoints), preferred=True, after=after
        )
        effects.send(connection, ("CHANGEBROKER", message))


def target_of(peer: Peer) -> FailoverTarget:
    return FailoverTarget(peer.identity, peer.group, peer.endpoints, peer.load)


def serves(offered: Sequence[str] | str, wanted: Sequence[str]) -> bool:
    return offered == "all" or set(wanted) <= set(offered)
