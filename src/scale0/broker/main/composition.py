"""The composition root: builds a broker from its parts.

The real process and the simulator both use it, so that tests run the production wiring.
"""

from __future__ import annotations

import random

import msgspec

from scale0 import __version__
from scale0.broker.admin.access import Access
from scale0.broker.admin.check_commands import CheckCommands
from scale0.broker.admin.commands import STATE_SETTING, AdminCommands
from scale0.broker.admin.config_commands import ConfigCommands
from scale0.broker.admin.token_commands import TokenCommands
from scale0.broker.admin.views import Views
from scale0.broker.cluster.catalog import Catalog
from scale0.broker.cluster.catalog_replication import CatalogReplication
from scale0.broker.cluster.clock_skew import ClockSkew
from scale0.broker.cluster.config_replication import ConfigReplication
from scale0.broker.cluster.failover import Failover
from scale0.broker.cluster.forwarding import Forwarding
from scale0.broker.cluster.key_replication import KeyReplication
from scale0.broker.cluster.peers import Peers
from scale0.broker.cluster.rebalancing import Rebalancing
from scale0.broker.cluster.registration import Registration
from scale0.broker.cluster.standby import Standby
from scale0.broker.core.audit_limit import AuditLimit
from scale0.broker.core.broker import Broker
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connections
from scale0.broker.core.discovery import Discovery
from scale0.broker.core.key_audit import KeyAudit
from scale0.broker.core.keys import Keys
from scale0.broker.core.members import Members
from scale0.broker.core.negotiation import Negotiation
from scale0.broker.core.permission_check import PermissionCheck, refusals_of
from scale0.broker.core.protocol_handler import ClusterParts, Scale0Handler
from scale0.broker.core.rate_limits import RateLimits
from scale0.broker.core.request_stats import RequestStats
from scale0.broker.core.requests import Requests
from scale0.broker.core.scheduler import Scheduler
from scale0.broker.core.state import BrokerState
from scale0.broker.core.stored_times import CONFIRMED, LAG, RETENTION, StoredTimes, last_time_us, stored_us
from scale0.compat.majordomo.broker_adapter import MajordomoAdapter
from scale0.compat.majordomo.handlers import Majordomo
from scale0.compat.titanic.stored_requests import join_titanic
from scale0.config import BrokerConfig, Endpoints, NetworkDocument, document_bytes, first_document, parse_existing
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.time_text import MICROSECONDS
from scale0.storage.interface import OpenedStore
from scale0.tasks.core.admin_commands import TaskCommands
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.retention import LONGEST, Lag
from scale0.tasks.core.tasks import BrokerTasks
from scale0.transport.core.sockets import ACTIVE, BACKEND, CONFIG_SUB, DIALED, DISABLED, FRONTEND, JOINING, PEER


def compose_broker(
    config: BrokerConfig,
    endpoints: Endpoints,
    opened: OpenedStore,
    boot: int,
    rng: random.Random,
    local_digest: str | None,
    keys: Keys | None = None,
) -> Broker:
    """Build a broker. `start_broker` runs its first turn."""
    document, body = document_of(config, endpoints, opened)
    state = new_state(config, endpoints, opened, boot, rng, keys)
    connections = Connections(state.limits, (FRONTEND, BACKEND, PEER, DIALED, CONFIG_SUB))
    scheduler = Scheduler()
    requests = Requests(state, scheduler, RequestStats())
    refusals = AuditLimit(state, refusals_of)
    permission_check = PermissionCheck(state, refusals)
    members = Members(state, connections, scheduler, requests, permission_check)
    documents = ConfigDocument(state, document, body)
    peers = Peers(state, connections, documents, members)
    config_replication = ConfigReplication(state, documents, members, peers)
    registration = Registration(state, documents, members)
    clock_skew = ClockSkew(state, members)
    rate_limits = RateLimits(state, connections, members)
    failover = Failover(state, documents, members, peers)
    rebalancing = Rebalancing(state, members, peers, requests, failover)
    negotiation = Negotiation(state, connections, members, documents, clock_skew, rate_limits, failover, rebalancing)
    catalog = Catalog(state, peers)
    adapter = BrokerAdapter(state, connections, members, requests, rate_limits, permission_check)
    tasks = BrokerTasks(state, adapter, scheduler, opened.next_task_seq, opened.shared)
    task_views = (tasks.counts, tasks.queue.method_queues.backlog)
    views = Views(state, connections, members, peers, scheduler, requests, documents, catalog, *task_views)
    access = Access(state, opened.tokens, local_digest)
    management = AdminCommands(
        state, connections, members, peers, requests, views, access, rate_limits, rebalancing, refusals, __version__
    )
    TokenCommands(management, access)
    ConfigCommands(management, state, documents, members)
    CheckCommands(management, state, requests)
    TaskCommands(management, tasks)
    discovery = Discovery(views, permission_check, state.limits.max_service_bytes)
    catalog_replication = CatalogReplication(state, documents, members, peers, catalog, tasks.queue.method_queues.work)
    forwarding = Forwarding(state, documents, peers, requests, catalog, connections, rate_limits)
    standby = Standby(state, members, peers, requests, rebalancing)
    cluster = ClusterParts(peers, config_replication, catalog_replication, forwarding, rebalancing, standby)
    task_reports = {"TASKSTATUS": tasks.native.status, "TASKSDONE": tasks.native.done}
    rules = (rate_limits, permission_check)
    scale0 = Scale0Handler(state, requests, negotiation, discovery, management, *rules, cluster, task_reports)
    connect_cluster(cluster, registration, documents, requests, scale0)
    parts = (members, cluster, scheduler, requests, documents, management, scale0, rate_limits, clock_skew)
    audit, times = KeyAudit(state, opened.settings), times_to_store(access, tasks)
    more = (audit, times, tasks.rpc, permission_check, tasks.publisher.subscribe)
    broker = Broker(state, connections, *parts, *more, __version__)
    requests.tasks = broker.tasks = tasks
    broker.list_own_key = registration.list_own_key
    broker.key_replication = catalog_replication.keys = (
        KeyReplication(state) if keys is not None and config.share_keys else None
    )
    broker.handlers.update(Majordomo(MajordomoAdapter(broker, discovery), join_titanic(broker, tasks)).handlers)
    return broker


def times_to_store(access: Access, tasks: BrokerTasks) -> StoredTimes:
    queue = tasks.queue
    return StoredTimes(
        {
            CONFIRMED: lambda now: (access.time_us(now),),
            RETENTION: lambda now: (queue.retained_us(now),),
            LAG: lambda _: queue.retention.lag,
        }
    )


def connect_cluster(
    cluster: ClusterParts,
    registration: Registration,
    documents: ConfigDocument,
    requests: Requests,
    handler: Scale0Handler,
) -> None:
    """Connect the callbacks of parts that refer to each other."""
    peers, forwarding = cluster.peers, cluster.forwarding
    peers.handler = handler
    peers.on_report = (
        cluster.config_replication.peer_reported,
        registration.peer_reported,
        cluster.rebalancing.peer_reported,
        cluster.standby.peer_reported,
    )
    peers.on_lost = cluster.standby.lost
    peers.on_gone = forwarding.gone
    documents.on_taken = peers.announce_version
    cluster.catalog_replication.on_table = forwarding.forward_waiting
    requests.elsewhere, requests.not_there = forwarding.elsewhere, forwarding.not_there


def document_of(config: BrokerConfig, endpoints: Endpoints, opened: OpenedStore) -> tuple[NetworkDocument, bytes]:
    """The stored document, or an initial one, and its bytes: those that were published, whatever was lowered in it."""
    if opened.document is not None:
        return parse_existing(opened.document.body, NetworkDocument), opened.document.body
    document = first_document(config, endpoints)
    return document, document_bytes(document)


def new_state(
    config: BrokerConfig, endpoints: Endpoints, opened: OpenedStore, boot: int, rng: random.Random, keys: Keys | None
) -> BrokerState:
    state = BrokerState(config.identity, config, boot, rng, first_state(config, opened))
    state.keys = keys
    if opened.shared is not None:
        state.owner = config.group
    state.endpoints = {name: place for name, place in msgspec.structs.asdict(endpoints).items() if place}
    return state


def start_broker(broker: Broker, opened: OpenedStore, now: Now, effects: Effects) -> None:
    """The first turn: initialise a new store, and record the start."""
    if opened.document is None and broker.state.state != JOINING:
        broker.documents.store(broker.state.identity, now, effects)
    broker.management.start(last_time_us(opened, CONFIRMED) / MICROSECONDS, now)
    broker.start(opened.boots, now, effects)
    lag, longest = Lag(*stored_us(opened, LAG)), opened.settings.get(LONGEST)
    longest_us = None if longest is None else int(longest)
    broker.tasks.queue.retention.start(
        int(now.wall * MICROSECONDS), last_time_us(opened, RETENTION), lag, longest_us, now
    )
    broker.tasks.start(opened.leased, opened.usage, now, effects)


def first_state(config: BrokerConfig, opened: OpenedStore) -> str:
    """A disabled broker stays disabled after a restart; a broker without peers to learn from is active at once."""
    if opened.settings.get(STATE_SETTING) == DISABLED.encode() or config.state == DISABLED:
        return DISABLED
    if config.state == ACTIVE or opened.document is not None or not config.peers:
        return ACTIVE
    return JOINING
