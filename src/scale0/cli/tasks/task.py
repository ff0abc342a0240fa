"""`scale0 task`: submit durable tasks, and query them.

Exit codes: 0 yes; 1 no, failed, cancelled, or not ended in time.

Progress bars go to stderr and disappear at the end, so that stdout has the result alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.endpoints import join_option
from scale0.cli.common.options import WATCH_SECONDS, json_option, watch_option, with_watch
from scale0.cli.network.call import SECONDS, arguments_of
from scale0.cli.tasks.connection import ANSWER_SECONDS, check_ids, client_option, failure_of, failure_step, task_client
from scale0.cli.tasks.list import COLOURS, cancel, list_tasks, retry, show

if TYPE_CHECKING:
    import datetime

    from rich.progress import Progress

    from scale0.client.results import TaskStatus
    from scale0.client.task import Task

QUICK_SECONDS: Final = 0.3
"""A shorter wait has no progress bar."""
POLL_SECONDS: Final = 0.2
"""Between two queries of the progress."""
MAX_BARS: Final = 8
"""With more tasks, a single bar counts them."""
LONG_SECONDS: Final = 86_400 * 366.0
"""A wait without a limit."""
NOTE_CHARS: Final = 40


@click.group()
def task() -> None:
    """Submit durable tasks, and query their state and results.

    A task is on disk before its id is printed, and it runs even if workers and brokers die. Tasks belong to the user,
    not to a shell.

    \b
    Examples:
      scale0 task submit thumbs.make cat.png width=100
      scale0 task wait ID
      scale0 task result ID
    """


def time_of(_context: click.Context, _option: click.Parameter, value: str | None) -> datetime.datetime | None:
    import datetime

    if value is None:
        return None
    try:
        return datetime.datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{value!r} is not a time; for example 2030-01-31T18:00, or 2030-01-31T18:00Z"
        ) from error


@task.command()
@click.argument("method", shell_complete=completion_values.services)
@click.argument("words", nargs=-1, metavar="[ARGS]...", type=click.UNPROCESSED)
@join_option
@click.option("--priority", type=int, metavar="0..9", help="Higher ones run first (4).")
@click.option("--delay", type=float, metavar="SECONDS", help="Run it after this delay.")
@click.option(
    "--at", callback=time_of, metavar="TIME", help="Run it at this time: 2030-01-31T18:00, or with an offset."
)
@click.option("--timeout", type=float, metavar="SECONDS", help="How long one attempt may take (3600).")
@click.option("--max-attempts", type=int, metavar="N", help="The maximum number of attempts (3).")
@click.option("--backoff", type=float, metavar="SECONDS", help="The pause before the next attempt; it doubles (0).")
@click.option("--result-ttl", type=float, metavar="SECONDS", help="How long its result is kept (86400).")
@click.option("--key", metavar="TEXT", help="The same submission again returns the first task; another is refused.")
@click.option("--after", multiple=True, metavar="ID", help="One of your tasks that must finish first; may be repeated.")
@click.option("--wait", "wants_result", is_flag=True, help="Wait for the result, and print it.")
@json_option
def submit(
    method: str, words: tuple[str, ...], join: str, wants_result: bool, wants_json: bool, **options: Any
) -> None:
    """Submit a task for METHOD, and print its id.

    ARGS are those of `scale0 call`: JSON or else text, key=value by name; after -- every word is an argument.

    \b
    With --json, an object: task_id; with --wait also status, and result or error

    \b
    Examples:
      scale0 task submit thumbs.make cat.png width=100
      scale0 task submit report.send --at 2030-01-31T18:00 --max-attempts 10 --backoff 60
      scale0 task submit math.add 2 3 --wait
    """
    from scale0.client.task_options import TaskOptions

    check_ids(options["after"])
    args, kwargs = arguments_of(words)
    options = {name: value for name, value in options.items() if value not in (None, ())}
    try:
        TaskOptions(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with task_client(join) as client:
        made = client.task(**options).submit(method, *args, **kwargs)
        if not wants_result:
            output.say(output.as_json({"task_id": made.id}) if wants_json else made.id)
        else:
            output.note(f"task {made.id}")
        if not any(row["service"] == method and row["backends"] for row in client.services()):
            output.note(f"no worker offers {method} yet: the task waits for one (see `scale0 services`)")
        if wants_result:
            await_one(made, wants_json)


def await_one(made: Task, wants_json: bool) -> None:
    try:
        wait_for([made], None)
    except KeyboardInterrupt:
        output.note(f"\nthe task continues: `scale0 task wait {made.id}` waits for it")
        raise
    show_result(made, wants_json)


def show_result(ended: Task, wants_json: bool) -> None:
    """Print the result of a task that has ended; if it has none, its error, with exit code 1."""
    outcome, error = outcome_of(ended)
    if wants_json:
        output.say(output.as_json(outcome))
        if error is not None:
            sys.exit(errors.NO)
    elif error is not None:
        raise errors.CommandError(failure_of(error), failure_step(error))
    else:
        output.say(output.as_value(outcome["result"]))


@task.command()
@click.argument("task_id", metavar="ID", shell_complete=completion_values.tasks)
@join_option
@client_option
@json_option
@watch_option
def status(task_id: str, join: str, owner: str | None, wants_json: bool, watch: bool) -> None:
    """Show the state of a task. Exits with 1 if it failed, was cancelled, or is unknown.

    With --watch, until it has ended.

    \b
    With --json, an object:
      task_id, status, code  scheduled, queued, assigned, running, finished, failed or cancelled
      attempt, node_id       the number of attempts, and the last node
      submitted, started, finished
      info                   the last report of its worker: progress (0 to 1), note
      error                  if it failed or was cancelled: code, message, data

    \b
    Examples:
      scale0 task status 0f3a9c
      scale0 task status 0f3a9c --watch
    """
    check_ids((task_id,))
    with task_client(join, owner) as client:
        one = client.task_of(task_id)
        while True:
            found = one.status()
            show_status(one, found, wants_json)
            if not watch or found.ended:
                break
            time.sleep(WATCH_SECONDS)
            if output.on_terminal() and not wants_json:
                click.clear()
    if found.status in ("failed", "cancelled"):
        sys.exit(errors.NO)


def show_status(one: Task, found: TaskStatus, wants_json: bool) -> None:
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(found)
    if found.ended and found.status != "finished":
        value["error"] = outcome_of(one)[0].get("error")
    if wants_json:
        output.say(output.as_json(value))
        return
    share, note = found.progress
    lines: list[tuple[str, object]] = [("task", found.task_id), ("status", found.status)]
    lines += [("attempt", found.attempt)] * (found.attempt > 0) + [("node", found.node_id)] * bool(found.node_id)
    times = (("submitted", found.submitted), ("started", found.started), ("finished", found.finished))
    lines += [(name, output.moment(when)) for name, when in times if when]
    if share is not None and not found.ended:
        lines.append(("progress", f"{share:.0%}"))
    lines += [("note", note)] * bool(note)
    if value.get("error"):
        lines.append(("error", f"{value['error']['message']} ({value['error']['code']})"))
    output.facts(lines, {"status": COLOURS.get(found.status, "cyan")})
    if found.status == "finished":
        output.note(f"`scale0 task result {found.task_id}` prints its result")


@task.command()
@click.argument("task_id", metavar="ID", shell_complete=completion_values.tasks)
@join_option
@client_option
@json_option
@with_watch
def result(task_id: str, join: str, owner: str | None, wants_json: bool) -> None:
    """Print the result of a task; text as it is, other values as JSON. Exits with 1 if there is none yet.

    \b
    With --json, an object: task_id, status, result or error {code, message, data}

    \b
    Example:
      scale0 task result 0f3a9c | jq .
    """
    check_ids((task_id,))
    with task_client(join, owner) as client:
        one = client.task_of(task_id)
        found = one.status()
        if found.ended:
            show_result(one, wants_json)
        elif wants_json:
            output.say(output.as_json({"task_id": task_id, "status": found.status}))
            sys.exit(errors.NO)
        else:
            what = f"task {task_id} has no result yet: it is {found.status}"
            raise errors.CommandError(what, f"`scale0 task wait {task_id}` waits for it")


@task.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completion_values.tasks)
@join_option
@client_option
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="How long to wait (without limit).")
@json_option
def wait(ids: tuple[str, ...], join: str, owner: str | None, timeout: float | None, wants_json: bool) -> None:
    """Wait until tasks have ended, and print how. Exits with 0 if all have finished.

    On a terminal it shows the progress of each task.

    \b
    With --json, an array of objects: task_id, status, result or error {code, message, data}

    \b
    Example:
      scale0 task wait 0f3a9c 1b2c3d --timeout 60
    """
    check_ids(ids)
    with task_client(join, owner) as client:
        tasks = [client.task_of(one) for one in ids]
        for one in tasks:
            one.status()  # report an unknown one now, and not at the end
        wait_for(tasks, timeout)
        rows = [ended_row(one) for one in tasks]
    if wants_json:
        output.say(output.as_json(rows))
    else:
        for row in rows:
            error = row.get("error")
            output.say(output.clean(f"{row['task_id']} {row['status']}{': ' + error['message'] if error else ''}"))
        if any(row["status"] not in ("finished", "failed", "cancelled") for row in rows):
            output.note("not all have ended in time; the others continue")
    if any(row["status"] != "finished" for row in rows):
        sys.exit(errors.NO)


def ended_row(one: Task) -> dict[str, Any]:
    found = one.status()
    return outcome_of(one)[0] if found.ended else {"task_id": one.id, "status": found.status}


def wait_for(tasks: Sequence[Task], timeout: float | None) -> bool:
    """Wait until all have ended; False if that takes longer than `timeout`."""
    until = time.monotonic() + (LONG_SECONDS if timeout is None else timeout)
    quick = min(until, time.monotonic() + QUICK_SECONDS) if sys.stderr.isatty() else until
    if all(task.wait(max(0.0, quick - time.monotonic())) for task in tasks):
        return True
    return sys.stderr.isatty() and _show(tasks, until)


def _show(tasks: Sequence[Task], until: float) -> bool:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, highlight=False, no_color=not output.coloured())
    with Progress(*columns, console=console, transient=True) as shown:
        return _watch_each(tasks, until, shown) if len(tasks) <= MAX_BARS else _count(tasks, until, shown)


def _watch_each(tasks: Sequence[Task], until: float, shown: Progress) -> bool:
    bars = {task: shown.add_task(task.id, total=None, note="") for task in tasks}
    while bars and time.monotonic() < until:
        for task, bar in tuple(bars.items()):
            status = task.status()
            share, note = status.progress
            done = 1.0 if status.ended else share
            shown.update(bar, total=None if done is None else 1.0, completed=done or 0.0, note=_note(status, note))
            if status.ended:
                del bars[task]
        if bars:
            time.sleep(max(0.0, min(POLL_SECONDS, until - time.monotonic())))
    return not bars


def _count(tasks: Sequence[Task], until: float, shown: Progress) -> bool:
    bar = shown.add_task(f"{len(tasks)} tasks", total=len(tasks), note="")
    running = list(tasks)
    while running and time.monotonic() < until:
        running = [task for task in running if not task.status().ended]
        ended = len(tasks) - len(running)
        shown.update(bar, completed=ended, note=f"{ended} have ended")
        if running:
            time.sleep(max(0.0, min(POLL_SECONDS, until - time.monotonic())))
    return not running


def _note(status: TaskStatus, note: str) -> str:
    text = status.status if status.attempt < 2 else f"{status.status}, attempt {status.attempt}"
    return output.clean(f"{text}: {note}" if note else text).replace("\n", " ")[:NOTE_CHARS]


def outcome_of(task: Task) -> tuple[dict[str, Any], Exception | None]:
    """The outcome of an ended task as an object and, if it has no result, as an error."""
    from scale0.errors import TaskCancelled, TaskFailed

    try:
        value = task.result(timeout=ANSWER_SECONDS)
    except (TaskFailed, TaskCancelled) as error:
        state = "cancelled" if isinstance(error, TaskCancelled) else "failed"
        value = {"code": error.code, "message": error.message, "data": error.data}
        return {"task_id": task.id, "status": state, "error": value}, error
    return {"task_id": task.id, "status": "finished", "result": value}, None


for command in (cancel, list_tasks, retry, show):
    task.add_command(command)
