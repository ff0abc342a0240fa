"""The catalogue: every metric that there is, with its words, by Prometheus's conventions.

Lives here: names, kinds, units, labels and help, said once for every wire, the documentation and the dashboard. Never
here: a value. Invariants: a name has its unit, and `_total` if it is a counter; no label has a value per client, task
or request, so that the number of series is bounded.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram", "info"]

PREFIX: Final = "scale0_"


class MetricDefinition(msgspec.Struct, frozen=True):
    """One metric, without its values."""

    name: str
    kind: Kind
    unit: str
    """A base unit as OpenMetrics has them; empty for plain numbers."""
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
    "Which broker this is: its identity, group and version.",
    ("broker", "group", "version"),
)
BROKER_STATE: Final = _gauge("broker_state", "1 for the state that the broker is in, 0 for the others.", "state")
BROKER_UPTIME: Final = _gauge("broker_uptime_seconds", "Since the broker's start.", unit="seconds")
BROKER_COUNTS: Final = _counter(
    "broker_oddities", "What the broker counts of bad input, floods and repetitions, by its own word for it.", "kind"
)
CONFIG_VERSION: Final = _gauge("config_version", "The version of the network document that the broker has.")
CONNECTIONS: Final = _gauge("connections", "Connections on the broker's sockets.")
CLIENTS: Final = _gauge("clients", "Registered clients, by role.", "role")
ERROR_CLIENTS: Final = _gauge("error_clients", "Clients that are ignored now, for what they sent.")
SERVICES: Final = _gauge("services", "Services that somebody offers at this broker.")
SERVICES_FOLDED: Final = _gauge("services_folded", 'Services that have no label of their own: they are in "other".')
WAITING: Final = _gauge("requests_waiting", "Requests that wait for a free slot.")
UNDER_WAY: Final = _gauge("requests_under_way", "Requests that a backend has in hand.")

ANSWERED: Final = _counter("requests_answered", "Requests that were answered.", "service")
FAILED: Final = _counter("requests_failed", "Requests that ended with an error.", "service")
BYTES: Final = _counter("request_bytes", "Bytes of requests that were answered.", "service", unit="bytes")
DURATION: Final = MetricDefinition(
    f"{PREFIX}request_duration_seconds",
    "histogram",
    "seconds",
    "From a request's acceptance to its answer.",
    ("service",),
)
SERVICE_BACKENDS: Final = _gauge("service_backends", "Backends that offer the service at this broker.", "service")
SERVICE_SLOTS: Final = _gauge("service_slots", "What those backends can do at once.", "service")
SERVICE_BUSY: Final = _gauge("service_busy_slots", "Slots that are taken.", "service")
SERVICE_WAITING: Final = _gauge("service_waiting_requests", "Requests that wait for the service.", "service")
SERVICE_OLDEST: Final = _gauge(
    "service_oldest_waiting_seconds", "How long the oldest of them has waited.", "service", unit="seconds"
)
SERVICE_TASKS: Final = _gauge("service_queued_tasks", "Tasks of that method that wait, in memory.", "service")

PEERS: Final = _gauge("peers", "Other brokers that this one knows, by state.", "state")
PEER_UP: Final = _gauge("peer_up", "1 while this broker hears that one.", "peer")

TASKS_OPEN: Final = _gauge("tasks_open", "Tasks that have not ended.")
TASKS_LEASED: Final = _gauge("tasks_leased", "Tasks that a node has in hand.")
TASKS_IN_MEMORY: Final = _gauge("tasks_in_memory", "Tasks that the broker has in memory.")
TASK_WAITS: Final = _gauge("task_waits", "Clients that wait for the end of a task.")
TASKS_SUBMITTED: Final = _counter("tasks_submitted", "Tasks that were accepted.")
TASKS_FINISHED: Final = _counter("tasks_finished", "Tasks that ended well.")
TASKS_FAILED: Final = _counter("tasks_failed", "Tasks that failed for good.")

HELENS: Final = _gauge("helens", "Helens that answer.")
AGENTS: Final = _gauge("agents", "Agents that the Helens know, by state.", "state")
CHECKS: Final = _gauge("checks", "Checks by the state that they are in.", "state")
INCIDENTS: Final = _gauge("open_incidents", "Incidents that are not over, by the state of their check.", "state")

EXPORT_UP: Final = _gauge("export_up", "1 if the last batch reached its receiver.", "kind", "address")
EXPORT_PUSHED: Final = _counter("export_pushed", "Batches that reached their receiver.", "kind", "address")
EXPORT_DROPPED: Final = _counter("export_dropped", "Batches that were thrown away.", "kind", "address")
EXPORT_FAILURES: Final = _counter("export_failures", "Tries that failed.", "kind", "address")

SAMPLE_TIME: Final = _gauge("sample_timestamp_seconds", "When these values were read, since 1970.", unit="seconds")
SAMPLE_SECONDS: Final = _gauge("sample_duration_seconds", "What it took to read them.", unit="seconds")
SAMPLE_FAILURES: Final = _counter("sample_failures", "Times that the broker did not answer with its values.")

CATALOGUE: Final = tuple(value for value in dict(globals()).values() if isinstance(value, MetricDefinition))
"""All of them, in the order of this file."""
