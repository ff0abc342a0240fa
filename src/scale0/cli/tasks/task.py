"""`scale0 task`: submit durable tasks, and ask about them.

Lives here: the commands of whoever submits. Never here: those of an administrator (`task_list`), or how a wait looks
(`task_wait`). Exit codes: 0 yes; 1 no, failed, cancelled, or not ended in time.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import WATCH_SECONDS, json_option, watch_option, watched
from scale0.cli.network.call import SECONDS, arguments_of
from scale0.cli.tasks.connection import check_ids, client_option, failure_of, failure_step, task_client
from scale0.cli.tasks.list import cancel, list_tasks, retry
from scale0.cli.tasks.show import show

if TYPE_CHECKING:
    import datetime

    from scale0.client.client import Client
    from scale0.client.results import TaskStatus
    from scale0.client.task import Task

COLOURS: Final = {"finished": "green", "failed": "red", "cancelled": "yellow"}


@click.group()
def task() -> None:
    """Submit durable tasks, and ask about them.

    A task is on disk before its id is printed: it is done though workers and brokers die. Tasks belong to you, not to
    a shell: what was submitted in one is read in another.

    \b
    Examples:
      scale0 task submit thumbs.make cat.png width=100
      scale0 task wait ID
      scale0 task result ID
    """


def moment_of(_context: click.Context, _option: click.Parameter, value: str | None) -> datetime.datetime | None:
    """A time as somebody types it; without a zone it is this machine's."""
    import datetime

    if value is None:
        return None
    try:
        return datetime.datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{value!r} is no time; for example 2030-01-31T18:00, or 2030-01-31T18:00Z") from error


@task.command()
@click.argument("method", shell_complete=completion_values.services)
@click.argument("words", nargs=-1, metavar="[ARGS]...", type=click.UNPROCESSED)
@joins
@click.option("--priority", type=int, metavar="0..9", help="Higher first (4).")
@click.option("--delay", type=float, metavar="SECONDS", help="Not before so long from now.")
@click.option("--at", callback=moment_of, metavar="TIME", help="Not before this: 2030-01-31T18:00, or with a zone.")
@click.option("--timeout", type=float, metavar="SECONDS", help="What one attempt may take (3600).")
@click.option("--max-attempts", type=int, metavar="N", help="How often it is tried in all (3).")
@click.option("--backoff", type=float, metavar="SECONDS", help="Before the next attempt, doubled each time (0).")
@click.option("--result-ttl", type=float, metavar="SECONDS", help="How long its result is kept (86400).")
@click.option("--key", metavar="TEXT", help="The same key gives the first task back, in place of a second one.")
@click.option("--after", multiple=True, metavar="ID", help="A task of yours that must finish first; may be repeated.")
@click.option("--wait", "wants_result", is_flag=True, help="Wait for its end, and print its result.")
@json_option
def submit(
    method: str, words: tuple[str, ...], join: str, wants_result: bool, wants_json: bool, **options: Any
) -> None:
    """Have METHOD done for certain, and print the id of the task.

    ARGS are those of `scale0 call`: JSON or else text, key=value by name; after -- everything is an argument.

    \b
    With --json, an object: task_id; with --wait also status, and result or error

    \b
    Examples:
      scale0 task submit thumbs.make cat.png width=100
      scale0 task submit report.send --at 2030-01-31T18:00 --max-attempts 10 --backoff 60
      scale0 task submit math.add 2 3 --wait
    """
    check_ids(options["after"])
    args, kwargs = arguments_of(words)
    with task_client(join) as client:
        try:
            options = {name: value for name, value in options.items() if value not in (None, ())}
            submission = client.task(**options)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        made = submission.submit(method, *args, **kwargs)
        if not wants_result:
            output.say(output.as_json({"task_id": made.id}) if wants_json else made.id)
        else:
            output.note(f"task {made.id}")
        if not is_offered(client, method):
            output.note(f"nobody offers {method} yet: the task waits for a worker (see `scale0 services`)")
        if wants_result:
            await_one(made, wants_json)


def is_offered(client: Client, method: str) -> bool:
    """True if a worker of the network does it now."""
    return any(row["service"] == method and row["backends"] for row in client.services())


def await_one(made: Task, wants_json: bool) -> None:
    """Until it has ended; its result on stdout."""
    from scale0.cli.tasks.wait import wait_for

    try:
        wait_for([made], None)
    except KeyboardInterrupt:
        output.note(f"\nthe task goes on: `scale0 task wait {made.id}` waits for it")
        raise
    show_result(made, wants_json)


def show_result(ended: Task, wants_json: bool) -> None:
    """The result of a task that has ended; if it has none, its error, and exit code 1."""
    from scale0.cli.tasks.wait import outcome_of

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
@joins
@client_option
@json_option
@watch_option
def status(task_id: str, join: str, owner: str | None, wants_json: bool, watch: bool) -> None:
    """Show how a task is. Exits with 1 if it has failed, was cancelled, or is unknown.

    With --watch until it has ended.

    \b
    With --json, an object:
      task_id, status, code  scheduled, queued, assigned, running, finished, failed or cancelled
      attempt, node_id       how often it was handed out, and to whom last
      submitted, started, finished
      info                   what its worker said last: progress (0 to 1), note
      error                  of one that failed or was cancelled: code, message, data

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
    """A task on one screen."""
    import msgspec

    from scale0.cli.tasks.wait import outcome_of

    told: dict[str, Any] = msgspec.to_builtins(found)
    if found.ended and found.status != "finished":
        told["error"] = outcome_of(one)[0].get("error")
    if wants_json:
        output.say(output.as_json(told))
        return
    share, note = found.progress
    lines: list[tuple[str, object]] = [("task", found.task_id), ("status", found.status)]
    lines += [("attempt", found.attempt)] * (found.attempt > 0) + [("node", found.node_id)] * bool(found.node_id)
    times = (("submitted", found.submitted), ("started", found.started), ("finished", found.finished))
    lines += [(name, output.moment(when)) for name, when in times if when]
    if share is not None and not found.ended:
        lines.append(("progress", f"{share:.0%}"))
    lines += [("note", note)] * bool(note)
    if told.get("error"):
        lines.append(("error", f"{told['error']['message']} ({told['error']['code']})"))
    output.facts(lines, {"status": COLOURS.get(found.status, "cyan")})
    if found.status == "finished":
        output.note(f"`scale0 task result {found.task_id}` prints what it returned")


@task.command()
@click.argument("task_id", metavar="ID", shell_complete=completion_values.tasks)
@joins
@client_option
@json_option
@watched
def result(task_id: str, join: str, owner: str | None, wants_json: bool) -> None:
    """Print what a task returned; text as it is, the rest as JSON. Exits with 1 if there is nothing (yet).

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
@joins
@client_option
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="How long to wait (for ever).")
@json_option
def wait(ids: tuple[str, ...], join: str, owner: str | None, timeout: float | None, wants_json: bool) -> None:
    """Wait until tasks have ended, and say how. Exits with 0 if all have finished.

    On a terminal it shows how far each is, and what its worker says of it.

    \b
    With --json, an array of objects: task_id, status, result or error {code, message, data}

    \b
    Example:
      scale0 task wait 0f3a9c 1b2c3d --timeout 60
    """
    from scale0.cli.tasks.wait import wait_for

    check_ids(ids)
    with task_client(join, owner) as client:
        tasks = [client.task_of(one) for one in ids]
        for one in tasks:
            one.status()  # an unknown one is an error now, and not at the end
        wait_for(tasks, timeout)
        rows = [ended_row(one) for one in tasks]
    if wants_json:
        output.say(output.as_json(rows))
    else:
        for row in rows:
            error = row.get("error")
            output.say(output.clean(f"{row['task_id']} {row['status']}{': ' + error['message'] if error else ''}"))
        if any(row["status"] not in ("finished", "failed", "cancelled") for row in rows):
            output.note("not all have ended in time: they go on")
    if any(row["status"] != "finished" for row in rows):
        sys.exit(errors.NO)


def ended_row(one: Task) -> dict[str, Any]:
    """How a task ended, or how it is."""
    from scale0.cli.tasks.wait import outcome_of

    found = one.status()
    return outcome_of(one)[0] if found.ended else {"task_id": one.id, "status": found.status}


for command in (cancel, list_tasks, retry, show):
    task.add_command(command)
