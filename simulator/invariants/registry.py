"""Combines all invariants of a simulated network and forwards each observation to them. Invariant: observing changes
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scale0.broker.core.connections import Connection
from scale0.history.events.clients import ClientLeft, ClientLost, ClientReplaced
from scale0.kernel.clock import Now
from scale0.kernel.effects import Message
from scale0.storage.interface import OpenedStore
from scale0.transport.core.backend_session import RequestReceived
from simulator.invariants.brokers import BrokerChecks
from simulator.invariants.calls import CallChecks
from simulator.invariants.storage import StoreChecks
from simulator.invariants.tasks import TaskChecks
from simulator.network.broker import BrokerNode, Mail
from simulator.network.calls import Call, Calls
from simulator.network.client_connection import SimLink
from simulator.network.clients import BackendNode, FrontendNode
from simulator.network.connections import Wire
from simulator.plan import Plan
from simulator.virtual_time import Agenda, Diary


class Checkers:
    def __init__(self, agenda: Agenda, diary: Diary, calls: Calls, plan: Plan) -> None:
        self._agenda = agenda
        self._diary = diary
        self.of_calls = CallChecks(agenda, calls, plan)
        self.of_broker = BrokerChecks(agenda, plan)
        self.of_store = StoreChecks()
        self.of_tasks: TaskChecks | None = None
        self.frontends: list[FrontendNode] = []
        self.acknowledged: dict[str, int] = {}
        """Replies to administrative commands, by command and code."""

    def lost(self, name: str) -> None:
        """Records that a participant lost a connection or its whole state."""
        self.of_calls.losses[name] = self._agenda.now

    def client_clock(self, name: str, offset: float) -> None:
        if self.of_broker.clocks.get(name, (0.0, 0.0))[0] != offset:
            self.of_broker.clocks[name] = (offset, self._agenda.now)

    def broker_clock(self, node: BrokerNode) -> None:
        """Handles a jump of the broker's wall clock."""
        if self.of_tasks is not None:
            self.of_tasks.of_order.clock_changed_at = self._agenda.now

    def woke(self) -> None:
        """Records that the broker was suspended until now."""
        self.of_broker.woke_at = self._agenda.now
        if self.of_tasks is not None:
            self.of_tasks.woke()

    def began(self, node: BrokerNode, opened: OpenedStore, with_disk: bool) -> None:
        self.lost(node.name)
        self.of_broker.began()
        self.of_store.began(opened, with_disk)
        if self.of_tasks is not None:
            self.of_tasks.began(node, with_disk)
            self.of_tasks.of_order.started_at = self._agenda.now

    def ended(self, node: BrokerNode) -> None:
        self.lost(node.name)

    def disk_lost(self, node: BrokerNode) -> None:
        self.of_store.journal(node.disk.store, None)

    def before_turn(self, node: BrokerNode, mail: Sequence[Mail], now: Now) -> None:
        self.of_broker.before_turn(node, mail, now)
        if self.of_tasks is not None:
            self.of_tasks.before_turn(mail)

    def decided(self, node: BrokerNode, writes: Sequence[Any], now: Now) -> None:
        if self.of_tasks is not None:
            self.of_tasks.decided(node, writes, now)

    def happened(self, node: BrokerNode, event: Any, now: Now) -> None:
        if isinstance(event, ClientLost | ClientLeft | ClientReplaced):
            self.lost(event.identity)
            self._diary.note(f"{node.name} records {event.kind} of {event.identity}")
        self.of_broker.happened(node, event, now)

    def sent(self, node: BrokerNode, wire: Wire | None, peer: Connection, messages: Sequence[Message]) -> None:
        if wire is None and peer.member is not None:
            self.lost(peer.member.identity)
        self.of_broker.sent(node, wire, peer, messages)
        self.of_store.sent(node, messages)
        if self.of_tasks is not None and wire is not None:
            self.of_tasks.sent(node, wire.client.name, messages)

    def after_turn(self, node: BrokerNode) -> None:
        self.of_broker.after_turn(node)

    def changed(self, link: SimLink) -> None:
        self.of_store.changed(link)

    def begun(self, node: BackendNode, call: Call, work: RequestReceived) -> None:
        self.of_calls.begun(node, call, work)

    def part_arrived(self, call: Call, bodies: Sequence[bytes]) -> None:
        self.of_calls.part_arrived(call, bodies)

    def answer_arrived(self, call: Call, bodies: Sequence[bytes]) -> None:
        self.of_calls.answer_arrived(call, bodies)

    def failed(self, call: Call, code: int, message: str) -> None:
        self._diary.note(f"call {call.nonce} of {call.frontend} fails: {code} {message}")
        self.of_calls.failed(call, code, message)

    def managed(self, node: FrontendNode, tag: str, code: int, body: bytes) -> None:
        key = f"{tag} {code}"
        self.acknowledged[key] = self.acknowledged.get(key, 0) + 1

    def sweep(self, node: BrokerNode) -> None:
        """Called once a second."""
        self.of_broker.sweep(node)
        self.of_calls.overdue(self.frontends)
        if self.of_tasks is not None:
            self.of_tasks.sweep(node)

    def everybody_back(self, node: BrokerNode) -> None:
        """Called when enough time has passed since everything was healed."""
        self.of_broker.everybody_back(node)
        self.of_calls.settled_at = self._agenda.now
        if self.of_tasks is not None:
            self.of_tasks.settled_at = self._agenda.now

    def at_the_end(self, node: BrokerNode, clients: int) -> None:
        """Final checks."""
        self.of_calls.at_the_end()
        self.of_broker.sweep(node)
        self.of_broker.at_the_end(node, clients)
        self.of_store.journal(node.disk.store, self.of_tasks)
        if self.of_tasks is not None:
            self.of_tasks.at_the_end(node)
