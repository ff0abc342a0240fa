"""The standby of a pair: when it takes over from the active broker, and when it gives way (PROTOCOL 7).

Invariants: while the active broker is alive and active, the standby serves no client; it takes over when that broker is
lost or reports that it does not serve, and because of silence never before the liveness time; when the active broker is
back, clients are served here until they have moved. The standby relies on heartbeats only: if the two brokers cannot
reach each other, both serve.
"""

from __future__ import annotations

import logging
from typing import Final

from scale0.broker.cluster.failover import LATE_INTERVALS
from scale0.broker.cluster.peer import Peer
from scale0.broker.cluster.peers import Peers
from scale0.broker.cluster.rebalancing import Rebalancing
from scale0.broker.core.connections import Connection
from scale0.broker.core.members import Members
from scale0.broker.core.requests import Requests
from scale0.broker.core.state import BrokerState
from scale0.history.events.sources import BrokerStateChanged
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.log_context import about
from scale0.transport.core.sockets import ACTIVE

MOMENT_SECONDS: Final = 0.001
"""How long after the end of the liveness time silence is evaluated."""

log: Final = logging.getLogger("scale0.pair")


class Standby:
    """The standby's side; the active broker only sends it its client table."""

    def __init__(
        self, state: BrokerState, members: Members, peers: Peers, requests: Requests, rebalancing: Rebalancing
    ) -> None:
        self._state = state
        self._members = members
        self._peers = peers
        self._requests = requests
        self._rebalancing = rebalancing
        self._since: float | None = None
        """Since when this broker runs and could have received a heartbeat of the active one."""
        self._call_at = 0.0
        """When remaining clients are called again."""

    def start(self, now: Now) -> None:
        """Start the check on every broker: a configuration reload may make any broker a standby."""
        self._state.timers.add((self._check_active, None), now.mono + self._state.interval * LATE_INTERVALS)

    def peer_reported(self, peer: Peer, _connection: Connection, now: Now, effects: Effects) -> None:
        if peer.identity == self._state.config.standby_for:
            self._decide(now, effects)

    def lost(self, peer: Peer, now: Now, effects: Effects) -> None:
        if peer.identity == self._state.config.standby_for:
            self._decide(now, effects)

    def _check_active(self, _: None, now: Now, effects: Effects) -> None:
        wait = self._state.interval * LATE_INTERVALS
        active = self._peers.by_name.get(self._state.config.standby_for)
        if active is not None and not active.lost:
            self._peers.check_silence(active, now)
            overdue = active.last_received + self._state.interval * self._state.liveness - now.mono
            wait = overdue + MOMENT_SECONDS if 0.0 <= overdue < wait else wait
        self._state.timers.add((self._check_active, None), now.mono + wait)
        self._decide(now, effects)

    def _decide(self, now: Now, effects: Effects) -> None:
        state = self._state
        if state.state != ACTIVE:
            self._since = None
            return
        self._since = now.mono if self._since is None else self._since
        active = self._peers.by_name.get(state.config.standby_for)
        if active is None or not active.serves:
            if state.redirects_to_active and (active is not None or self._has_waited(now)):
                self._become(now, effects, standby=False)
        elif state.hands_back and self._is_empty():
            self._become(now, effects, standby=True)
        elif not state.standby:
            self._become(now, effects, standby=False, hands_back=True)
            if now.mono >= self._call_at:
                self._call_at = now.mono + state.interval
                self._rebalancing.hand_back(active.identity, now)

    def _has_waited(self, now: Now) -> bool:
        """The active broker was never heard from: wait for the liveness time, unless the pair was dissolved."""
        assert self._since is not None
        silent = now.mono - self._since > self._state.interval * self._state.liveness
        return silent or not self._state.config.standby_for

    def _is_empty(self) -> bool:
        """No backend is left here. Frontends are redirected with their next request."""
        working = any(member.backend is not None and not member.foreign for member in self._members.by_name.values())
        return not (working or self._requests.in_flight or self._requests.queues)

    def _become(self, now: Now, effects: Effects, *, standby: bool, hands_back: bool = False) -> None:
        before = self._state.shown
        self._state.stand(standby=standby, hands_back=hands_back)
        after = self._state.shown
        if before != after:
            log.info(
                "%s, which stands by for %s, is %s",
                self._state.identity,
                self._state.config.standby_for,
                after,
                extra=about(broker=self._state.identity, standby_for=self._state.config.standby_for),
            )
            effects.record(BrokerStateChanged(identity=self._state.identity, before=before, after=after))
            self._peers.announce_state(now, effects)
