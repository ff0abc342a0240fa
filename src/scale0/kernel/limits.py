"""Every limit of a broker, with its name and default. The broker's configuration may change each of them by the same
name."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_HEARTBEAT_INTERVAL: Final = 86_400.0
"""Seconds between two heartbeats, whoever asks for them: a silent client is noticed within days."""
MAX_LIVENESS: Final = 1_000
"""Intervals of silence until a client is dead."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """PROTOCOL section 5. Sizes in bytes, times in seconds."""

    max_message_bytes: int = 8 * 1024 * 1024
    """One message, all frames. Only a frame of more than twice that ends the connection, so that the broker can still
    answer 413."""
    max_options_bytes: int = 64 * 1024
    """One options frame: it is parsed, so it must be small."""
    max_batch_messages: int = 10_000
    """Messages in one BATCH, and calls in one array of JSON-RPC."""
    max_parts: int = 1_000
    """Frames in one message: each costs an object."""
    max_services: int = 1_000
    """Services of one backend."""
    max_service_bytes: int = 255
    """Length of a service name."""
    max_clients: int = 100_000
    """Connections that a broker tracks."""
    max_key_connections: int = 10_000
    """Connections of one key, counted at the handshake."""
    max_client_bytes: int = 16 * 1024 * 1024
    """Bytes queued for one client that does not read, and bytes of its requests that wait for a backend."""
    max_buffered_bytes: int = 512 * 1024 * 1024
    """Messages that are incomplete, not handled or not read, and subscriptions, of all clients."""
    max_key_buffered_bytes: int = 0
    """Those of one key, or of one connection without keys; 0: half of `max_buffered_bytes`."""
    max_waiting_bytes: int = 1024**3
    """Requests without an answer, bodies and records, and the parts of answers that a broker keeps: in memory."""
    max_key_waiting_bytes: int = 0
    """Those of one key, or of one connection without keys; 0: half of `max_waiting_bytes`."""
    max_wait_bytes: int = 512 * 1024 * 1024
    """Task ids in all unanswered `client_task_wait` calls: they are in memory."""
    max_key_wait_bytes: int = 0
    """Those of one key, or of one connection without keys; 0: half of `max_wait_bytes`."""
    max_offer_bytes: int = 1024**3
    """What a broker keeps of the services that all clients offer or name, and of the statuses of task nodes."""
    max_key_offer_bytes: int = 0
    """That of one key, or of one connection without keys; 0: half of `max_offer_bytes`."""
    max_json_depth: int = 64
    """Nesting of any JSON that is parsed."""
    max_slots: int = 10_000
    """Slots of one backend."""
    request_queue_limit: int = 10_000
    """Queued requests of one service."""
    task_queue_limit: int = 10_000_000
    """Open tasks of all clients: they are on disk, so this limits disk use."""
    task_queue_bytes: int = 64 * 1024**3
    """Params of open tasks of all clients, on disk: few large tasks fill it before many small ones do."""
    delayed_task_limit: int = 5_000_000
    """Open tasks of all clients that are not due yet: nothing ends them before, however many workers there are."""
    max_key_tasks: int = 0
    """Open tasks of one key, or of one client id without keys; 0: half of `task_queue_limit`, so that no key fills the
    queue alone."""
    max_key_task_bytes: int = 0
    """Params of open tasks of one key; 0: half of `task_queue_bytes`."""
    max_key_delayed: int = 0
    """Delayed tasks of one key; 0: half of `delayed_task_limit`."""
    kept_bytes: int = 64 * 1024**3
    """Results, and rows, of ended tasks of all clients, on disk until they expire."""
    max_key_kept_bytes: int = 0
    """Of one key; 0: half of `kept_bytes`."""
    task_client_limit: int = 1_000_000
    """Client ids of all clients: they are on disk until they are disconnected, or unused for a week."""
    max_key_task_clients: int = 0
    """Client ids of one key; 0: half of `task_client_limit`."""
    request_timeout: float = 30.0
    """Default timeout of a request."""
    max_request_timeout: float = 86_400.0
    """Longest timeout of a request."""
    max_outstanding: int = 100_000
    """Unanswered requests of one frontend."""
    max_hops: int = 2
    """Brokers that one request may pass through after the first."""
    error_client_limit: int = 10
    """Bad messages in the window before a client is ignored."""
    error_client_window: float = 60.0
    """The window of `error_client_limit`."""
    error_client_ban: float = 300.0
    """How long such a client is ignored."""
    max_heartbeats_per_second: float = 2_000.0
    """All clients together; the heartbeat interval is lengthened to stay below it."""
    max_control_per_second: int = 200
    """Negotiation and heartbeats of one connection; more counts as bad input."""
    max_service_changes_per_second: int = 10_000
    """Services that the backends of one key, or one connection without keys, add, change or withdraw, over 10 s; more
    are refused. Each costs about 10 µs."""
    max_requests_per_second: int = 200_000
    """REQUESTs of one key, or of one connection without keys; more are refused. The default exceeds what one core
    handles: lower it."""
    max_clock_skew: float = 30.0
    """How far a client's clock may be from the broker's."""
    frontend_idle: float = 60.0
    """When a silent frontend that never sent a heartbeat is dropped."""
    min_free_bytes: int = 64 * 1024 * 1024
    """Free disk space below which writes are refused."""
    mdp_heartbeat_interval: float = 2.5
    """Majordomo's heartbeat interval; a peer that misses three is dead."""
