"""`scale0 audit`: who changed what, when, and from where.

It only reads what brokers recorded on this machine; no process needs to run.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.options import json_option, with_watch
from scale0.cli.monitoring.silences import DurationType
from scale0.cli.network.events import exit_if_unread, last_of, open_histories, since_all

if TYPE_CHECKING:
    from scale0.history.events.audit import AuditChain
    from scale0.history.segments.reader import Event

DEFAULT_COUNT: Final = 50
MAX_COUNT: Final = 10_000
_MICRO: Final = 1_000_000
BEGINNINGS: Final = {
    "recorded": "; those before event {} are gone, as its store has recorded",
    "unknown": "; those before event {} are missing, and no store that was read says why",
}
"""The text about entries that are not there."""


@click.group(invoke_without_command=True)
@json_option
@click.option("--since", type=DurationType(), metavar="TIME", help="The last 90 (seconds), 30m, 2h or 1d.")
@click.option("-n", "count", type=click.IntRange(1, MAX_COUNT), help=f"The number of entries ({DEFAULT_COUNT}).")
@click.option("--who", default="", metavar="GLOB", help="Only changes by this admin, token or broker.")
@click.option("--command", default="", metavar="NAME", help="Only this management command, such as patch_config.")
@click.option(
    "--data-dir", "data_dirs", multiple=True, help="The folder of a broker; may be repeated (SCALE0_DATA_DIR, .scale0)."
)
@with_watch
@click.pass_context
def audit(
    context: click.Context,
    wants_json: bool,
    since: float | None,
    count: int | None,
    who: str,
    command: str,
    data_dirs: tuple[str, ...],
) -> None:
    """List changes of configuration, state and keys, and refused commands, the newest last.

    \b
    With --json, an array of objects:
      time      when it was recorded (seconds since the epoch)
      kind      management.commanded, config.changed, config.conflict, broker.state_changed, task.reopened,
                key.changed
      who       the admin, the token's name, the broker, or the user of a key
      command, code, origin    of a command: its name, the answer, and where it came from
      before, after            the change
      source    the broker that recorded it
      words     the same as text

    \b
    Examples:
      scale0 audit
      scale0 audit --since 1d --who alice
      scale0 audit --command patch_config --json | jq '.[].after'
      scale0 audit verify
    """
    if context.invoked_subcommand is not None:
        return
    unread: list[str] = []
    most = count or DEFAULT_COUNT
    # The filter by command is applied here: its last use may be older than many others.
    rows = [row_of(event) for event in found(since, MAX_COUNT if command else most, who, data_dirs, unread)]
    if command:
        rows = [row for row in rows if row["command"] == command][-most if since is None else -MAX_COUNT :]
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows and (who or command or since):
        output.say("No change matches. `scale0 audit` lists all that are recorded here.")
    elif not rows:
        output.say("No change is recorded here. `scale0 events tail` shows other events.")
    else:
        shown = [(output.moment(row["time"]), row["who"] or "-", row["words"]) for row in rows]
        output.table(("TIME", "WHO", "WHAT"), shown, cut="WHAT")
    exit_if_unread(unread)


@audit.command()
@json_option
@click.option("--since", type=DurationType(), metavar="TIME", help="Only the last 90 (seconds), 30m, 2h or 1d.")
@click.option(
    "--data-dir", "data_dirs", multiple=True, help="The folder of a broker; may be repeated (SCALE0_DATA_DIR, .scale0)."
)
@with_watch
def verify(wants_json: bool, since: float | None, data_dirs: tuple[str, ...]) -> None:
    """Check that no recorded change was altered, removed or inserted later.

    Each entry contains the hash of the one before it. The store has the hash of the newest, and of the last one that
    the retention removed. The command reads journal and segments, and reports the first entry of each source that does
    not follow, a missing end, and a beginning that was removed by anything but the retention of the source. A user who
    can write to both can compute all hashes again: note the last hash elsewhere. It exits with 1 if it finds anything,
    if something cannot be read, and if there is neither a store nor a segment.

    \b
    With --json, an array of objects:
      source     the broker that recorded them
      rows       how many entries follow each other
      unchained  how many are older than the chain: from a version before it
      complete   true: the first entry is there
      beginning  complete; recorded: it is where the store has recorded it, usually after the retention; unknown: no
                 store that was read has recorded it; null: not examined, because of --since or a break
      first_seq  the number of the first one
      head       the hash of the last one
      broken     null, or an object: boot, seq and time of the entry (0: none is left), and the reason

    \b
    Examples:
      scale0 audit verify
      scale0 audit verify --json | jq '.[].head'
    """
    from scale0.history.events.audit import AUDIT_KINDS
    from scale0.history.segments.reader import EventFilter

    since_us = None if since is None else int((time.time() - since) * _MICRO)
    unread: list[str] = []
    rows: list[dict[str, Any]] = []
    histories = open_histories(data_dirs, None, unread)
    for history in histories:
        chains = history.check_audit(EventFilter(kinds=AUDIT_KINDS, clock="time", since_us=since_us))
        rows += [chain_row(source, chain) for source, chain in sorted(chains.items())]
    if not rows and not unread and not any(history.live for history in histories):
        raise errors.CommandError("there is no store and no segment", "give the folder of a broker with --data-dir")
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say("No change is recorded here.")
    for row in () if wants_json else rows:
        output.say(chain_text(row))
    exit_if_unread(unread)
    if any(row["broken"] for row in rows):
        sys.exit(errors.NO)


def chain_row(source: str, chain: AuditChain) -> dict[str, Any]:
    broken = chain.broken
    return {
        "source": source,
        "rows": chain.rows,
        "unchained": chain.unchained,
        "complete": chain.starts,
        "beginning": chain.beginning or None,
        "first_seq": chain.first_seq or None,
        "head": chain.head or None,
        "broken": None if broken is None else {**broken._asdict(), "time": broken.time / _MICRO},
    }


def chain_text(row: dict[str, Any]) -> str:
    broken = row["broken"]
    source = row["source"] or "this store"
    if broken is None:
        older = f"; {row['unchained']} are older than the chain" if row["unchained"] else ""
        before = BEGINNINGS.get(row["beginning"], "").format(row["first_seq"]) if row["rows"] else "; none is left"
        return output.clean(
            f"{source}: {row['rows']} entries follow each other{older}{before}; last hash {row['head']}"
        )
    where = f" at event {broken['seq']} of {output.moment(broken['time'])}" if broken["seq"] else ""
    return output.clean(f"{source}: BROKEN{where}: {broken['reason']} ({row['rows']} entries follow each other)")


def found(since: float | None, count: int, who: str, data_dirs: tuple[str, ...], unread: list[str]) -> list[Event]:
    """The last changes of all kinds, in the order of their recording."""
    from scale0.history.events.audit import AUDIT_KINDS
    from scale0.history.segments.reader import EventFilter, key_of

    since_us = None if since is None else int((time.time() - since) * _MICRO)
    events: list[Event] = []
    for kind in AUDIT_KINDS:
        event_filter = EventFilter(kind=kind, identity=who, clock="time", since_us=since_us)
        # A reader remembers its position in the journal, so each kind needs its own.
        histories = open_histories(data_dirs, None, unread)
        events += since_all(histories, event_filter) if since is not None else last_of(histories, event_filter, count)
    return sorted(events, key=key_of)[-count if since is None else -MAX_COUNT :]


def row_of(event: Event) -> dict[str, Any]:
    try:
        data = json.loads(event["data"]) if event["data"] else {}
    except ValueError:
        data = {}  # a segment may come from any program
    row = {
        "time": event["time"] / _MICRO,
        "kind": event["kind"],
        "who": event["identity"],
        "command": data.get("command"),
        "code": event["code"] if event["kind"] == "management.commanded" else None,
        "origin": data.get("origin"),
        "before": data.get("before"),
        "after": data.get("after") if event["state"] is None else event["state"],
        "source": event["source"],
    }
    return {**row, "words": words_of(row, event, data)}


def words_of(row: dict[str, Any], event: Event, data: dict[str, Any]) -> str:
    match event["kind"]:
        case "management.commanded":
            change = "" if row["before"] is None and row["after"] is None else f": {arrow(row['before'], row['after'])}"
            refused = "" if row["code"] in (None, 200) else f" (refused with {row['code']})"
            return f"{row['command']}{refused}{change}"
        case "broker.state_changed":
            return f"broker {event['identity']}: {row['before']} -> {row['after']}"
        case "config.changed":
            return f"configuration version {data.get('version')} is current"
        case "key.changed":
            rules = "".join(f"; {name} {' '.join(data[name])}" for name in ("allow", "deny") if data.get(name))
            until = f"; expires {output.moment(float(data['expires']))}" if data.get("expires") else ""
            return f"key of {event['identity']} {event['state']}: {data.get('public_key')}{rules}{until}"
        case "task.reopened":
            return f"task {event['ref']} of {event['service']} was queued again"
        case kind:
            return f"{kind.replace('.', ' ')}: {output.as_json(data)}"


def arrow(before: Any, after: Any) -> str:
    texts = [text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in (before, after)]
    return texts[1] if before is None else f"{texts[0]} -> {texts[1]}"
