"""The catalog of metrics: name, kind, unit, labels and help of each, for every format, the documentation and the
dashboard.

Names follow Prometheus's conventions. No label has a value per client, task or request, so that the number of series
is bounded.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram", "info"]

PREFIX: Final = "scale0_"


class MetricDefinition(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    unit: str
    """A base unit of OpenMetrics; empty for plain numbers."""
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, help_: str, *labels: str, unit: str = "") -> MetricDefinition:
    return MetricDefinition(f"{PREFIX}{name}_total", "counter", unit, help_, labels)


def _gauge(name: str, help_: str, *labels: str, unit: str = "") -> MetricDefinition:
    return MetricDefinition(f"{PREFIX}{name}", "gauge", unit, help_, labels)


BROKER_UP: Final = _gauge("broker_up", "1 while the broker answers the management server.")
BROKER_INFO: Final = MetricDefinition(
    f"{PREFIX}broker_info",
    "info",
    "",
    "The identity, group and version of the broker.",
    ("broker", "group", "version"),
)
BROKER_STATE: Final = _gauge("broker_state", "1 for the current state of the broker, 0 for the others.", "state")
BROKER_UPTIME: Final = _gauge("broker_uptime_seconds", "Time since the broker's start.", unit="seconds")
BROKER_COUNTS: Final = _counter(
    "broker_oddities", "Counts of invalid input, floods and repetitions, by the broker's name for each.", "kind"
)
CONFIG_VERSION: Final = _gauge("config_version", "The broker's version of the network document.")
CONNECTIONS: Final = _gauge("connections", "Connections on the broker's sockets.")
CLIENTS: Final = _gauge("clients", "Registered clients, by role.", "role")
ERROR_CLIENTS: Final = _gauge("error_clients", "Clients that the broker ignores because of invalid input.")
SERVICES: Final = _gauge("services", "Services with a backend at this broker.")
SERVICES_FOLDED: Final = _gauge(
    "services_folded", 'Services without a label of their own: they are counted as "other".'
)
WAITING: Final = _gauge("requests_waiting", "Requests that wait for a free slot.")
UNDER_WAY: Final = _gauge("requests_under_way", "Requests in flight at a backend.")

ANSWERED: Final = _counter("requests_answered", "Answered requests.", "service")
FAILED: Final = _counter("requests_failed", "Requests that ended with an error.", "service")
BYTES: Final = _counter("request_bytes", "Bytes of answered requests.", "service", unit="bytes")
DURATION: Final = MetricDefinition(
    f"{PREFIX}request_duration_seconds",
    "histogram",
    "seconds",
    "Time from the acceptance of a request to its answer.",
    ("service",),
)
SERVICE_BACKENDS: Final = _gauge("service_backends", "Backends of the service at this broker.", "service")
SERVICE_SLOTS: Final = _gauge("service_slots", "Slots of these backends for the service.", "service")
SERVICE_BUSY: Final = _gauge("service_busy_slots", "Busy slots of these backends for the service.", "service")
SERVICE_WAITING: Final = _gauge("service_waiting_requests", "Requests that wait for the service.", "service")
SERVICE_OLDEST: Final = _gauge(
    "service_oldest_waiting_seconds", "Waiting time of the oldest of these requests.", "service", unit="seconds"
)
SERVICE_TASKS: Final = _gauge("service_queued_tasks", "Queued tasks of the method, in memory.", "service")

PEERS: Final = _gauge("peers", "Other brokers that this one knows, by state.", "state")
PEER_UP: Final = _gauge("peer_up", "1 while this broker receives heartbeats of the peer.", "peer")

TASKS_OPEN: Final = _gauge("tasks_open", "Tasks that have not ended.")
TASKS_LEASED: Final = _gauge("tasks_leased", "Tasks that are leased to a node.")
TASKS_IN_MEMORY: Final = _gauge("tasks_in_memory", "Tasks in the broker's memory.")
TASK_WAITS: Final = _gauge("task_waits", "Clients that wait for the end of a task.")
TASKS_SUBMITTED: Final = _counter("tasks_submitted", "Accepted tasks.")
TASKS_FINISHED: Final = _counter("tasks_finished", "Tasks that finished successfully.")
TASKS_FAILED: Final = _counter("tasks_failed", "Tasks that failed permanently.")

HELENS: Final = _gauge("helens", "Helens that answer.")
AGENTS: Final = _gauge("agents", "Agents that the Helens know, by state.", "state")
CHECKS: Final = _gauge("checks", "Checks, by state.", "state")
INCIDENTS: Final = _gauge("open_incidents", "Open incidents, by the state of their check.", "state")

EXPORT_UP: Final = _gauge("export_up", "1 if the last batch reached its receiver.", "kind", "address")
EXPORT_PUSHED: Final = _counter("export_pushed", "Batches that reached their receiver.", "kind", "address")
EXPORT_DROPPED: Final = _counter("export_dropped", "Dropped batches.", "kind", "address")
EXPORT_FAILURES: Final = _counter("export_failures", "Failed attempts to push a batch.", "kind", "address")

SAMPLE_TIME: Final = _gauge(
    "sample_timestamp_seconds", "Time at which these values were read, since 1970.", unit="seconds"
)
SAMPLE_SECONDS: Final = _gauge("sample_duration_seconds", "Duration of reading these values.", unit="seconds")
SAMPLE_FAILURES: Final = _counter("sample_failures", "Attempts to read these values that failed.")

CATALOG: Final = tuple(value for value in dict(globals()).values() if isinstance(value, MetricDefinition))
"""In the order of this file."""
