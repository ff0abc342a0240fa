"""`scale0 silence` and `scale0 downtime`: suppress notifications while checks go on.

Both are part of the network document and change by management commands.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

import click

from scale0.cli.common import completion_values, output
from scale0.cli.common.authentication import AdminAccess, admin_options
from scale0.cli.common.options import json_option, with_options, with_watch
from scale0.cli.network import document_entries
from scale0.client.admin.rows import is_over
from scale0.kernel.time_text import duration_seconds, iso_seconds

MAX_SECONDS: Final = 366 * 86_400.0
"""A year."""

SOON_SECONDS: Final = 2 * 86_400.0
"""Times that are further away are shown as a date."""


class DurationType(click.ParamType[float]):
    """A duration: `90`, `30m`, `2h`, `1d`."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value)
        seconds = duration_seconds(f"{text}s" if text.isdigit() else text)
        if seconds is None or text.endswith("w") or not 0 < seconds <= MAX_SECONDS:
            self.fail(f"{text!r} is not a duration such as 90, 30m, 2h or 1d, at most a year", param, ctx)
        return float(seconds)


class TimeType(click.ParamType[float]):
    """A wall time: `2026-05-01T22:00`, in this machine's zone unless it says another."""

    name = "WHEN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = iso_seconds(str(value), zone=None)
        if seconds is None:
            self.fail(f"{value!r} is not a time such as 2026-05-01T22:00", param, ctx)
        return seconds


selector_options = with_options(
    click.option(
        "--agent",
        "agents",
        multiple=True,
        metavar="GLOB",
        help="Only these agents (all).",
        shell_complete=completion_values.agents,
    ),
    click.option(
        "--check",
        "checks",
        multiple=True,
        metavar="GLOB",
        help="Only these checks (all).",
        shell_complete=completion_values.checks,
    ),
    click.option("--label", "labels", multiple=True, metavar="NAME=GLOB", help="Only agents with this label."),
    click.option("--reason", default="", metavar="TEXT", help="The reason."),
)
"""The options that select checks."""


def selection(agents: tuple[str, ...], checks: tuple[str, ...], labels: tuple[str, ...], reason: str) -> dict[str, Any]:
    """The selector as in the document; an empty one is refused, as it would select everything by mistake."""
    if not (agents or checks or labels):
        raise click.UsageError("give --agent GLOB, --check GLOB or --label NAME=GLOB ('*' is all)")
    return {
        "agents": list(agents),
        "checks": list(checks),
        "labels": document_entries.texts(labels, "--label"),
        "reason": reason,
        "author": author(),
    }


def author() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def name_or_new(name: str | None, kind: str) -> str:
    return name or f"{kind}-{secrets.token_hex(4)}"


@click.group()
def silence() -> None:
    """Suppress notifications about checks.

    Checks go on, and everything is recorded.

    \b
    Examples:
      scale0 silence add --agent 'db-*' --for 2h --reason 'being moved' --name move
      scale0 silence list
      scale0 silence end move
    """


@silence.command("add")
@selector_options
@click.option(
    "--for",
    "seconds",
    type=DurationType(),
    metavar="TIME",
    help="How long: 90 (seconds), 30m, 2h, 1d (default: until `end`).",
)
@click.option("--name", help="Its name (default: a new one).")
@admin_options
def add_silence(access: AdminAccess, seconds: float | None, name: str | None, **which: Any) -> None:
    """Suppress the notifications of some checks from now on.

    \b
    Example:
      scale0 silence add --agent 'db-*' --check disk --for 2h --reason 'being moved'
    """
    named = name_or_new(name, "silence")
    ends = time.time() + seconds if seconds else 0
    entry = {"name": named, **selection(**which), "ends": ends}
    document_entries.put(access, {document_entries.path("silences", named): entry})
    output.say(f"{named}: silent {f'until {output.moment(ends)}' if seconds else 'until it is ended'}")
    output.note(f"  next: `scale0 silence end {named}` ends it")


@click.group()
def downtime() -> None:
    """Plan maintenance without notifications.

    The time counts as downtime, not as down.

    \b
    Examples:
      scale0 downtime add --agent web-1 --for 1h --reason 'new disks'
      scale0 downtime add --agent '*' --from 2030-05-01T22:00 --for 4h --name move
      scale0 downtime list
      scale0 downtime end move
    """


@downtime.command("add")
@selector_options
@click.option(
    "--from", "starts", type=TimeType(), metavar="WHEN", help="When it begins, such as 2026-05-01T22:00 (now)."
)
@click.option(
    "--for", "seconds", type=DurationType(), required=True, metavar="TIME", help="How long: 90 (seconds), 30m, 2h, 1d."
)
@click.option("--name", help="Its name (default: a new one).")
@admin_options
def add_downtime(
    access: AdminAccess,
    starts: float | None,
    seconds: float,
    name: str | None,
    **which: Any,
) -> None:
    """Plan a downtime.

    \b
    Examples:
      scale0 downtime add --agent web-1 --for 1h --reason 'new disks'
      scale0 downtime add --agent '*' --from 2030-05-01T22:00 --for 4h
    """
    named = name_or_new(name, "downtime")
    begins = time.time() if starts is None else starts
    if begins + seconds <= time.time():
        raise click.UsageError("it would already be over: give a later time with --from, or leave it out")
    entry = {"name": named, **selection(**which), "starts": begins, "ends": begins + seconds}
    document_entries.put(access, {document_entries.path("downtimes", named): entry})
    output.say(f"{named}: {output.moment(begins)} to {output.moment(begins + seconds)}")
    output.note(f"  next: `scale0 downtime end {named}` cancels it")


def state_of(row: dict[str, Any], now: float) -> str:
    """When an entry begins, or how long it still lasts."""
    starts, ends = row.get("starts", 0), row["ends"]
    if starts > now:
        soon = starts - now < SOON_SECONDS
        return f"{f'in {output.span(starts - now)}' if soon else output.moment(starts)}, {output.span(ends - starts)}"
    if not ends:
        return "until it is ended"
    return f"{output.span(ends - now)} left" if ends > now else "over"


def example(noun: str, words: str) -> str:
    return f"\n\n\b\nExample:\n  scale0 {noun} {words}"


def listing(noun: str, advice: str) -> click.Command:
    """The `list` command of one of both groups."""

    @click.command("list")
    @json_option
    @admin_options
    @with_watch
    def shown(wants_json: bool, access: AdminAccess) -> None:
        [rows] = document_entries.entries(access, f"{noun}s")
        now = time.time()
        if wants_json:
            output.say(output.as_json(rows))
        elif not rows:
            output.say(f"There is no {noun}. {advice}:\n\n    scale0 {noun} add --agent 'db-*' --for 2h")
        else:
            heads = ("NAME", "AGENTS", "CHECKS", "WHEN", "REASON")
            output.table(heads, [_row(row, now) for row in rows], cut="REASON")
            if any(is_over(row, now) for row in rows):
                output.note(f"  next: `scale0 {noun} end --over` removes those that are over")

    shown.help = f"List every {noun}, including past ones.\n\n\b\nWith --json, an array of the objects of the document."
    shown.help += example(noun, "list")
    return shown


def _row(row: dict[str, Any], now: float) -> tuple[str, ...]:
    labels = [f"{key}={value}" for key, value in row["labels"].items()]
    return (
        row["name"],
        " ".join([*row["agents"], *labels]) or "all",
        " ".join(row["checks"]) or "all",
        state_of(row, now),
        row["reason"] or "-",
    )


def ending(noun: str) -> click.Command:
    """The `end` command of one of both groups."""

    @click.command("end")
    @click.argument("name", required=False, shell_complete=getattr(completion_values, f"{noun}s"))
    @click.option("--over", is_flag=True, help="Remove all that are over.")
    @admin_options
    def end(name: str | None, over: bool, access: AdminAccess) -> None:
        if (name is not None) == over:
            raise click.UsageError(f"give the name of the {noun} to end (`scale0 {noun} list`), or --over")
        if name is not None:
            document_entries.remove(access, noun, [name])
            output.say(f"{name} is over")
            return
        [rows] = document_entries.entries(access, f"{noun}s")
        names = [row["name"] for row in rows if is_over(row, time.time())]
        if names:
            document_entries.remove(access, noun, names)
        output.say(f"{len(names)} removed")

    end.help = f"End the {noun} NAME now.{example(noun, 'end move')}"
    return end


for group, noun, advice in (
    (silence, "silence", "To suppress notifications for two hours"),
    (downtime, "downtime", "To plan one"),
):
    group.add_command(listing(noun, advice))
    group.add_command(ending(noun))
