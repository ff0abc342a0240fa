"""The connection of `scale0 task`, and errors about tasks.

Tasks belong to the user and not to the process that submitted them. Two commands at once never share a connection.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import errors as faults
from scale0.cli.common.connection import client_id, connect, state_folder
from scale0.kernel import codes
from scale0.kernel.names import is_identity

if TYPE_CHECKING:
    from scale0.client.client import Client
    from scale0.errors import CallError

ANSWER_SECONDS: Final = 30.0
CLIENT_HELP: Final = "The client that it belongs to, as in `scale0 task list` (yourself)."

client_option = click.option("--client", "owner", metavar="ID", help=CLIENT_HELP)


def own_id(join: str) -> str:
    """The client id to which this user's tasks in a network belong."""
    return client_id(join, state_folder(dict(os.environ)))


@contextlib.contextmanager
def task_client(join: str, owner: str | None = None) -> Iterator[Client]:
    """A client for the tasks of `owner` or of this user; its errors have a next step."""
    from scale0.errors import CallError

    if owner is not None and not is_identity(owner):
        raise click.UsageError(f"--client: {owner!r} is not a client id (1 to 128 characters of A-Z a-z 0-9 . _ : -)")
    whose = owner or own_id(join)
    # Tasks outlive the connection, whose identity belongs to this process only.
    with connect(join, ANSWER_SECONDS, task_client=whose) as client:
        try:
            yield client
        except CallError as error:
            raise task_error(error, whose) from error


def check_ids(ids: tuple[str, ...]) -> None:
    for one in ids:
        if not is_identity(one):
            raise click.UsageError(f"{one!r} is not a task id (1 to 128 characters of A-Z a-z 0-9 . _ : -)")


def task_error(error: CallError, whose: str) -> faults.CommandError:
    """An error about a task, with the next step."""
    from scale0 import errors

    id_ = getattr(error, "task_id", "")
    reached = faults.UNREACHABLE if error.code == codes.UNREACHABLE else faults.NO
    match error:
        case errors.Unknown():
            what = f"no broker has acknowledged task {id_}: {error.message}"
            return faults.CommandError(what, f"`scale0 task status {id_}` shows later whether it was accepted", reached)
        case errors.NoSuchTask():
            step = (
                f"check the id; you are {whose}: give --client ID for a task of another client, if its result is kept"
            )
            return faults.CommandError(f"{whose} has no task {id_}", step)
        case errors.TaskIdTaken():
            step = "tasks in --after must exist and be your own: check with `scale0 task status ID`"
            return faults.CommandError(f"the task was not accepted: {error.message}", step)
        case errors.TaskFailed() | errors.TaskCancelled():
            return faults.CommandError(failure_of(error), failure_step(error))
        case errors.TaskError():
            return faults.CommandError(f"{error.message} ({error.code})", error.advice)
        case _:
            return faults.command_error(error)


def failure_of(error: Any) -> str:
    """Why an ended task has no result."""
    from scale0.errors import TaskCancelled

    if isinstance(error, TaskCancelled):
        return f"task {error.task_id} was cancelled"
    return f"task {error.task_id} failed: {error.message}"


def failure_step(error: Any) -> str:
    """The next step after it."""
    from scale0 import errors
    from scale0.tasks.jsonrpc.messages import INVALID_PARAMS

    match error:
        case errors.TaskFailed() if error.code == INVALID_PARAMS:
            return faults.NEXT[codes.MALFORMED]
        case errors.TaskCancelled():
            return f"`scale0 task retry {error.task_id}` runs it again"
        case errors.AfterFailed():
            return "find out why the task before it failed, and submit both again"
        case errors.TaskLost():
            return f"all attempts were lost or timed out; `scale0 task retry {error.task_id}` tries it again"
        case _:
            return f"the traceback is in the worker's log; `scale0 task retry {error.task_id}` tries it again"
