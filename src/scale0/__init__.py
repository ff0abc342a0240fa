"""Scale0: a service network in one install.

The public API is this module, `scale0.errors` and `scale0.testing`; every other module is internal. Names are imported
on first use, so that `import scale0` alone is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

__version__: Final = "0.1.0"

if TYPE_CHECKING:
    from scale0.client.async_client import AsyncClient
    from scale0.client.client import Client, Pending
    from scale0.client.results import TaskStatus
    from scale0.client.task import AsyncTask, Task
    from scale0.client.task_context import GiveUp, Retry, attempt, cancelled, progress
    from scale0.client.worker import Worker
    from scale0.errors import CallError, TaskCancelled, TaskError, TaskFailed

_MODULES: Final = {
    "AsyncClient": "scale0.client.async_client",
    "AsyncTask": "scale0.client.task",
    "CallError": "scale0.errors",
    "Client": "scale0.client.client",
    "GiveUp": "scale0.client.task_context",
    "Pending": "scale0.client.client",
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
    if name not in _MODULES:
        raise AttributeError(f"module 'scale0' has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # the point of this function

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
