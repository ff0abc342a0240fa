"""Errors that a call or a task can raise: one class for each code that a caller may want to catch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.kernel import codes
from scale0.kernel.errors import Scale0Error
from scale0.tasks.jsonrpc import messages

if TYPE_CHECKING:
    from collections.abc import Sequence


class CallError(Scale0Error):
    """A call failed. `code` is one of PROTOCOL section 5, `message` says more."""

    def __init__(self, code: int, message: str, service: str = "") -> None:
        where = f"{service}: " if service else ""
        super().__init__(f"{where}{message} ({code} {codes.MEANINGS.get(code, 'error')})")
        self.code = code
        self.message = message
        self.service = service
        self.detail: Any = None
        """Further details of a management command, such as `reasons`."""


class BadArguments(CallError):
    """400: the handler does not accept these arguments."""


class WrongCredentials(CallError):
    """401: the password or token is wrong."""


class NotAllowed(CallError):
    """403: the role does not permit it."""


class NoSuchService(CallError):
    """404: no worker offered the service in time."""


class Conflict(CallError):
    """409: another client has that identity, or changed it first."""


class TooBig(CallError):
    """413: a size limit is exceeded."""


class TooMany(CallError):
    """429: a queue is full."""


class ServiceFailed(CallError):
    """500: the handler raised an exception."""


class BackendDied(CallError):
    """502: the worker died while it ran the request; the request may or may not have run to its end."""


class NotServing(CallError):
    """503: the broker does not serve now."""


class NoAnswer(CallError):
    """504: no answer in time."""


class Unreachable(CallError):
    """No broker could be reached."""


BY_CODE: Final[dict[int, type[CallError]]] = {
    codes.MALFORMED: BadArguments,
    codes.WRONG_CREDENTIALS: WrongCredentials,
    codes.NOT_ALLOWED: NotAllowed,
    codes.NO_SUCH_SERVICE: NoSuchService,
    codes.IN_USE: Conflict,
    codes.TOO_BIG: TooBig,
    codes.TOO_MANY: TooMany,
    codes.FAILED: ServiceFailed,
    codes.BACKEND_DIED: BackendDied,
    codes.NOT_SERVING: NotServing,
    codes.NO_ANSWER: NoAnswer,
    codes.UNREACHABLE: Unreachable,
}


def error_of(code: int, message: str, service: str = "") -> CallError:
    return BY_CODE.get(code, CallError)(code, message, service)


class TaskError(CallError):
    """An operation on a task failed. `code` is of JSON-RPC (PROTOCOL 6), or one of PROTOCOL 5."""

    advice: str = ""
    """What to do next."""

    def __init__(self, code: int, message: str, service: str = "", task_id: str = "", data: Any = None) -> None:
        super().__init__(code, message, service)
        self.task_id = task_id
        self.data = data
        """Further details from the broker or the worker."""

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.service, f"task {self.task_id}" if self.task_id else "")))
        meaning = messages.MEANINGS.get(self.code) or codes.MEANINGS.get(self.code, "error")
        text = f"{what}: {self.message} ({self.code} {meaning})"
        return f"{text}; {self.advice}" if self.advice else text


class Unknown(TaskError):
    """No acknowledgement came: the task may be stored, or not."""

    advice = "ask later with task_of(task_id).status(), or submit it again with the same id: it will not run twice"


class BadTask(TaskError):
    """-32602: invalid options or arguments of a task."""

    advice = "see PROTOCOL 6 for the options of a task"


class ClientIdTaken(TaskError):
    """-32010: another connection uses this client's identity."""

    advice = "give each running client its own identity"


class TaskIdTaken(TaskError):
    """-32020 when submitting: the id is taken or invalid, or a task in `after` is unknown."""

    advice = "give another id, or none; tasks in `after` must be the same client's, and known"


class KeyConflict(TaskError):
    """-32022: the key belongs to a task with another method or other arguments: `existing`; `differs` says which."""

    advice = "submit with another key, or with the method and the arguments of that task"

    def __init__(self, code: int, message: str, service: str = "", task_id: str = "", data: Any = None) -> None:
        super().__init__(code, message, service, task_id, data)
        details = data if isinstance(data, dict) else {}
        self.key: str = str(details.get("key", ""))
        self.existing: str = str(details.get("task_id", ""))
        """The id of the task that has the key."""
        self.differs: list[str] = list(map(str, details.get("differs", ())))
        """`method`, `params`, or both."""


class NoSuchTask(TaskError):
    """-32020: the task does not exist, or belongs to another client."""

    advice = "check its id, that the client's identity is that of the submitter, and that its result_ttl is not over"


class NotYours(TaskError):
    """-32021: another attempt owns the task."""


class NotComplete(TaskError):
    """-32050: the task has no result yet."""

    advice = "wait for it"


STORE_ADVICE: Final = {
    "disk": "make space on the broker's disk, and try again",
    "database": "start or resume the database of the broker, and try again",
}
"""By the cause of NotStored."""


class NotStored(TaskError):
    """-32060: the broker could not store or read the task: `cause` says why, `disk` or `database`."""

    advice = "try again"

    def __init__(self, code: int, message: str, service: str = "", task_id: str = "", data: Any = None) -> None:
        super().__init__(code, message, service, task_id, data)
        self.cause: str = str(data.get("cause", "")) if isinstance(data, dict) else ""
        """Empty: another broker holds the task, or is accepting it."""
        self.advice = STORE_ADVICE.get(self.cause, self.advice)


class QueueFull(TaskError):
    """-32070: too many tasks wait for this service."""

    advice = "submit it again later, or start more workers"


class TaskTooBig(TaskError):
    """-32071: a size limit is exceeded."""

    advice = "store the data elsewhere, and submit a reference to it"


class TasksNotServed(TaskError):
    """-32080: the broker does not serve tasks now."""

    advice = "submit it again later"


class TaskFailed(TaskError):
    """The task ended without a result: `code`, `message` and `data` are its own."""

    def __init__(self, code: int, message: str, service: str = "", task_id: str = "", data: Any = None) -> None:
        super().__init__(code, message, service, task_id, data)
        history = data.get("attempts") if isinstance(data, dict) else None
        self.history: list[Any] = history if isinstance(history, list) else []
        """Its attempts, as far as the broker reported them."""


class TaskLost(TaskFailed):
    """-32090: every attempt died with its worker, or timed out."""

    advice = "see its history: a task that kills its worker will do so again"


class TaskDamaged(TaskFailed):
    """-32093: its params or its result were damaged where they are stored."""

    advice = "submit it again if it may run twice; `scale0 store check` lists what is damaged"


class AfterFailed(TaskFailed):
    """-32091: a task in `after` failed."""

    advice = "find out why that task failed, and submit both again"


class TaskCancelled(TaskError):
    """The task was cancelled."""


class NotAllSubmitted(TaskError):
    """Some of many tasks were rejected. `tasks` holds all in order, `refused` the errors by index."""

    def __init__(self, tasks: Sequence[Any], refused: dict[int, CallError]) -> None:
        first = next(iter(refused.values()))
        message = f"{len(refused)} of {len(tasks)} tasks were rejected; the first: {first.message}"
        super().__init__(first.code, message, first.service)
        self.tasks = list(tasks)
        self.refused = refused


TASK_ERRORS: Final[dict[int, type[TaskError]]] = {
    messages.INVALID_PARAMS: BadTask,
    messages.BAD_CLIENT: ClientIdTaken,
    messages.BAD_TASK: NoSuchTask,
    messages.NOT_YOURS: NotYours,
    messages.KEY_CONFLICT: KeyConflict,
    messages.NOT_COMPLETE: NotComplete,
    messages.NOT_STORED: NotStored,
    messages.QUEUE_FULL: QueueFull,
    messages.TOO_BIG: TaskTooBig,
    messages.NOT_SERVING: TasksNotServed,
}
TASK_FAILURES: Final[dict[int, type[TaskFailed]]] = {
    messages.ATTEMPTS_LOST: TaskLost,
    messages.AFTER_FAILED: AfterFailed,
    messages.DAMAGED: TaskDamaged,
}


def task_error(code: int, message: str, service: str, task_id: str, data: Any = None) -> CallError:
    """The error of a query about a task."""
    if code > 0:
        return error_of(code, message, service)
    return TASK_ERRORS.get(code, TaskError)(code, message, service, task_id, data)


def submit_error(code: int, message: str, service: str, task_id: str, data: Any = None) -> CallError:
    """The error of a rejected task."""
    if code == messages.BAD_TASK:
        return TaskIdTaken(code, message, service, task_id, data)
    return task_error(code, message, service, task_id, data)


def task_failed(code: int, message: str, service: str, task_id: str, data: Any = None) -> TaskFailed:
    """The error of a failed task."""
    return TASK_FAILURES.get(code, TaskFailed)(code, message, service, task_id, data)
