"""`scale0 config`: check a configuration file, and show and change the network document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.authentication import AdminAccess, admin_options
from scale0.cli.common.options import json_option, with_watch
from scale0.cli.network import document_entries
from scale0.cli.network.document_entries import config_command
from scale0.cli.network.listing import counted
from scale0.kernel.errors import ConfigError, Refusal

if TYPE_CHECKING:
    from scale0.config import NetworkDocument


@click.group()
def config() -> None:
    """Check a file, or show and change the network document.

    \b
    Examples:
      scale0 config check broker.zpl
      scale0 config show --form zpl
      scale0 config set default_heartbeat_interval=2 --expect 7
      scale0 config diff 7
      scale0 config rollback 7
    """


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["broker", "network", "client", "helen", "agent"]),
    default="broker",
    show_default=True,
    help="The kind of file.",
)
@json_option
@with_watch
def check(file: Path, kind: str, wants_json: bool) -> None:
    """Check that FILE (.json, .xml or .zpl) is valid, and list each problem with its line.

    Exits with 0 if it is valid, with 1 if not, with 2 if it cannot be read.

    \b
    With --json, an object: file, kind, valid, reasons [text…]

    \b
    Examples:
      scale0 config check broker.zpl
      scale0 config check network.json --as network --watch
    """
    from scale0.config import MAX_DOCUMENT_BYTES, NetworkDocument, format_of_file, parse
    from scale0.config.literal_secrets import literal_secrets

    try:
        form = format_of_file(file.name)
        with file.open("rb") as opened:
            data = opened.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise errors.CommandError(
            f"{file}: {error.strerror}", "give the path of a readable file", errors.USAGE
        ) from error
    except Refusal as refusal:
        raise errors.CommandError(refusal.message, "the suffix must be .json, .xml or .zpl", errors.USAGE) from refusal
    reasons: list[str]
    try:
        document = parse(data, form, schema_of(kind))
        reasons = semantic_errors(document)
        for warning in literal_secrets(document) if isinstance(document, NetworkDocument) else ():
            output.note(f"warning: {output.clean(warning)}")
    except ConfigError as error:
        reasons = error.reasons
    if wants_json:
        output.say(output.as_json({"file": str(file), "kind": kind, "valid": not reasons, "reasons": reasons}))
    elif reasons:
        for reason in reasons:
            output.say(output.clean(f"{file}: {reason}"))
        output.note(f"{file}: invalid {kind} configuration, {counted(len(reasons), 'problem')}")
    else:
        output.say(f"{file}: valid {kind} configuration ({form.upper()})")
    sys.exit(1 if reasons else 0)


def schema_of(kind: str) -> type[Any]:
    from scale0.config import AgentConfig, BrokerConfig, ClientConfig, HelenConfig, NetworkDocument

    return {
        "broker": BrokerConfig,
        "network": NetworkDocument,
        "client": ClientConfig,
        "helen": HelenConfig,
        "agent": AgentConfig,
    }[kind]


def semantic_errors(document: Any) -> list[str]:
    """Problems of a document whose single keys are valid."""
    from scale0.config import BrokerConfig, NetworkDocument, check_broker, check_document

    match document:
        case BrokerConfig():
            return check_broker(document)
        case NetworkDocument():
            return check_document(document)
        case _:
            return []


@config.command()
@click.option(
    "--form", type=click.Choice(["json", "xml", "zpl"]), default="json", show_default=True, help="The format."
)
@json_option
@admin_options
@click.option(
    "--version",
    type=click.IntRange(1),
    help="A version of the history (default: the current one).",
    shell_complete=completion_values.versions,
)
@with_watch
def show(form: str, wants_json: bool, access: AdminAccess, version: int | None) -> None:
    """Show the network document.

    \b
    With --json, an object: version, hash, config (the document)

    \b
    Examples:
      scale0 config show --form zpl > network.zpl
      scale0 config show --version 7 --json | jq .config.services
    """
    from scale0.config import render

    found = config_command(access, "get_config", version=version)
    if wants_json:
        output.say(output.as_json(found))
        return
    click.echo(render(document_of(found), form).decode(), nl=False)


def document_of(found: dict[str, Any]) -> NetworkDocument:
    import msgspec

    from scale0.config import NetworkDocument, parse_existing

    return parse_existing(msgspec.json.encode(found["config"]), NetworkDocument)


@config.command()
@click.argument("older", type=click.IntRange(1), shell_complete=completion_values.versions)
@click.argument("newer", type=click.IntRange(1), required=False, shell_complete=completion_values.versions)
@json_option
@admin_options
@with_watch
def diff(older: int, newer: int | None, wants_json: bool, access: AdminAccess) -> None:
    """Show what changed from version OLDER to NEWER (default: the current one), by key.

    Exits with 0 if nothing changed, otherwise with 1, as diff does.

    \b
    With --json, an array of objects: path, before, after (null: absent)

    \b
    Examples:
      scale0 config diff 7
      scale0 config diff 7 9 --json
    """
    from scale0.config import changed_paths

    one, other = (document_of(config_command(access, "get_config", version=number)) for number in (older, newer))
    rows = [
        {"path": path, "before": before, "after": after}
        for path, before, after in changed_paths(one, other)
        if path not in ("version", "parent")
    ]
    if wants_json:
        output.say(output.as_json(rows))
    for row in rows if not wants_json else ():
        for sign, value in (("-", row["before"]), ("+", row["after"])):
            if value is not None:
                output.say(output.clean(f"{sign} {row['path']} = {output.as_json(value)}"))
    sys.exit(1 if rows else 0)


expect_option = click.option(
    "--expect", type=click.IntRange(1), metavar="VERSION", help="Only if this is the current version; otherwise exit 1."
)


@config.command(name="set")
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--remove", "removed", multiple=True, metavar="KEY", help="Remove this key; may be repeated.")
@click.option("--file", type=click.Path(path_type=Path), help="A file with the whole new document.")
@expect_option
@json_option
@admin_options
def set_(
    changes: tuple[str, ...],
    removed: tuple[str, ...],
    file: Path | None,
    expect: int | None,
    wants_json: bool,
    access: AdminAccess,
) -> None:
    """Change the network document, which creates a new version.

    It reaches every broker within two heartbeats.

    A KEY is a path such as services.hello.timeout; a VALUE is JSON if it is valid JSON, else text. Nothing is changed
    unless all changes are valid. With --expect, the second of two concurrent changes is refused (409).

    \b
    Examples:
      scale0 config set services.hello='{"name": "hello", "timeout": 5}'
      scale0 config set default_heartbeat_interval=2 --expect 7
      scale0 config set --remove services.hello
      scale0 config set --file network.zpl --expect 7

    \b
    With --json, an object: version, hash
    """
    from scale0.config import NetworkDocument
    from scale0.config.edge.files import read_config

    if file is not None:
        if changes or removed:
            raise click.UsageError("--file is the whole document: give no other changes with it")
        import msgspec

        base = expect or config_command(access, "get_config")["version"]
        document = msgspec.to_builtins(read_config(file, NetworkDocument))
        done = config_command(access, "set_config", config=document, base=base)
    elif changes or removed:
        patch: dict[str, Any] = {"set": document_entries.pairs(changes, "set"), "remove": list(removed), "base": expect}
        done = config_command(access, "patch_config", **patch)
    else:
        raise click.UsageError("give a change: KEY=VALUE, --remove KEY, or --file FILE")
    show_version(done, wants_json)


@config.command()
@click.argument("version", type=click.IntRange(1), shell_complete=completion_values.versions)
@expect_option
@json_option
@admin_options
def rollback(version: int, expect: int | None, wants_json: bool, access: AdminAccess) -> None:
    """Make a copy of VERSION the current version; the history stays.

    \b
    With --json, an object: version, hash

    \b
    Example:
      scale0 config rollback 7 --expect 9
    """
    show_version(config_command(access, "rollback_config", version=version, base=expect), wants_json)


def show_version(done: dict[str, Any], wants_json: bool) -> None:
    output.say(output.as_json(done) if wants_json else f"version {done['version']} is current")


@config.command()
@json_option
@admin_options
@with_watch
def history(wants_json: bool, access: AdminAccess) -> None:
    """List the versions of the network document, the newest first.

    Of two that were made at the same time, on two sides of a network partition, one lost and is marked.

    \b
    With --json, an array of objects: version, hash, parent, time, author, current

    \b
    Example:
      scale0 config history
    """
    rows = config_command(access, "config_history")["items"]
    if wants_json:
        output.say(output.as_json(rows))
        return
    lost = lost_versions(rows)
    shown = [
        (
            row["version"],
            output.moment(row["time"]),
            row["author"] or "-",
            row["hash"][:12],
            "current" if row["current"] else "lost" if row["hash"] in lost else "",
        )
        for row in rows
    ]
    output.table(("VERSION", "TIME", "AUTHOR", "HASH", ""), shown, numbers=("VERSION",))
    if lost:
        output.note("A version that lost against another one is not in effect: repeat the change if you still need it.")


def lost_versions(rows: list[dict[str, Any]]) -> set[str]:
    """Hashes of versions that the current one does not descend from, as far as the rows show."""
    by_hash = {row["hash"]: row for row in rows}
    one = next((row for row in rows if row["current"]), None)
    ancestors: list[dict[str, Any]] = []
    while one is not None:
        ancestors.append(one)
        one = by_hash.get(one["parent"])
    # A parent is one version older, so the hash of the one before the oldest row is known.
    oldest = min((row["version"] for row in ancestors), default=1) - 1
    return (
        by_hash.keys() - {row["hash"] for row in ancestors} - {row["hash"] for row in rows if row["version"] < oldest}
    )
