"""Scale0: a service network in one install.

Lives here: the names that users import. Never here: code of its own, or an import that a user who
only wants the version must pay for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

__version__: Final = "0.1.0"

if TYPE_CHECKING:
    from scale0.client.async_client import AsyncClient
    from scale0.client.async_task import AsyncTask
    from scale0.client.client import Client
    from scale0.client.pending import Pending
    from scale0.client.results import TaskStatus
    from scale0.client.task import Task
    from scale0.client.task_context import GiveUp, Retry, attempt, cancelled, progress
    from scale0.client.worker import Worker
    from scale0.errors import CallError, TaskCancelled, TaskError, TaskFailed

_HOMES: Final = {
    "AsyncClient": "scale0.client.async_client",
    "AsyncTask": "scale0.client.async_task",
    "CallError": "scale0.errors",
    "Client": "scale0.client.client",
    "GiveUp": "scale0.client.task_context",
    "Pending": "scale0.client.pending",
    "Retry": "scale0.client.task_context",
    "Task": "scale0.client.task",
    "TaskCancelled": "scale0.errors",
    "TaskError": "scale0.errors",
    "TaskFailed": "scale0.errors",
    "TaskStatus": "scale0.client.results",
    "Worker": "scale0.client.worker",
    "attempt": "scale0.client.task_context",
    "cancelled": "scale0.client.task_context",
    "progress": "scale0.client.task_context",
}

__all__ = [
    "AsyncClient",
    "AsyncTask",
    "CallError",
    "Client",
    "GiveUp",
    "Pending",
    "Retry",
    "Task",
    "TaskCancelled",
    "TaskError",
    "TaskFailed",
    "TaskStatus",
    "Worker",
    "__version__",
    "attempt",
    "cancelled",
    "progress",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'scale0' has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # the point of this function

    return getattr(importlib.import_module(_HOMES[name]), name)
