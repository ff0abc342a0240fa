"""`scale0 config`: configuration, in a file or in the network: look at it, and change it.

Lives here: check, show, history, diff, set, rollback. Never here: what is right; `config/` knows that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, watched
from scale0.cli.network import document_entries

if TYPE_CHECKING:
    from scale0.config import NetworkDocument


@click.group()
def config() -> None:
    """Check a configuration file, or show and change the network's configuration.

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
    help="Whose file it is.",
)
@json_option
@watched
def check(file: Path, kind: str, wants_json: bool) -> None:
    """Say whether FILE (.json, .xml or .zpl) can be used, with every reason why not and its line.

    Exits with 0 if it is right, with 1 if not, with 2 if it cannot be read.

    \b
    With --json, an object: file, kind, valid, reasons [text…]

    \b
    Examples:
      scale0 config check broker.zpl
      scale0 config check network.json --as network --watch
    """
    from scale0.config import MAX_DOCUMENT_BYTES, format_of_file, parse
    from scale0.kernel.errors import ConfigError, Refusal

    try:
        form = format_of_file(file.name)
        with file.open("rb") as opened:
            data = opened.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise errors.CommandError(f"{file}: {error.strerror}", "name a file that can be read", errors.USAGE) from error
    except Refusal as refusal:
        raise errors.CommandError(refusal.message, "the ending says the form of a file", errors.USAGE) from refusal
    reasons: list[str]
    try:
        reasons = beyond_shape(parse(data, form, schema_of(kind)))
    except ConfigError as error:
        reasons = error.reasons
    if wants_json:
        output.say(output.as_json({"file": str(file), "kind": kind, "valid": not reasons, "reasons": reasons}))
    elif reasons:
        for reason in reasons:
            output.say(output.clean(f"{file}: {reason}"))
        output.note(f"{len(reasons)} reason{'s' * (len(reasons) != 1)} why {file} cannot be used by a {kind}")
    else:
        output.say(f"{file} is right ({kind}, {form})")
    sys.exit(1 if reasons else 0)


def schema_of(kind: str) -> type[Any]:
    """The schema of a kind of file."""
    from scale0.config import AgentConfig, BrokerConfig, ClientConfig, HelenConfig, NetworkDocument

    return {
        "broker": BrokerConfig,
        "network": NetworkDocument,
        "client": ClientConfig,
        "helen": HelenConfig,
        "agent": AgentConfig,
    }[kind]


def beyond_shape(document: Any) -> list[str]:
    """What is wrong though each key by itself is right."""
    from scale0.config import BrokerConfig, NetworkDocument, check_broker, check_document

    match document:
        case BrokerConfig():
            return check_broker(document)
        case NetworkDocument():
            return check_document(document)
        case _:
            return []


@config.command()
@joins
@click.option("--form", type=click.Choice(["json", "xml", "zpl"]), default="json", show_default=True, help="How.")
@json_option
@authentication.commands
@click.option(
    "--version",
    type=click.IntRange(1),
    help="One of the history (default: the current one).",
    shell_complete=completion_values.versions,
)
@watched
def show(
    join: str, form: str, wants_json: bool, authority: authentication.GivenCredentials, version: int | None
) -> None:
    """Show the network document that the broker has.

    \b
    With --json, an object: version, hash, config (the document)

    \b
    Examples:
      scale0 config show --form zpl > network.zpl
      scale0 config show --version 7 --json | jq .config.services
    """
    from scale0.config import render

    found = managed(join, authority, "get_config", version=version)
    if wants_json:
        output.say(output.as_json(found))
        return
    click.echo(render(document_of(found), form).decode(), nl=False)


def document_of(found: dict[str, Any]) -> NetworkDocument:
    """What management gave, as the type that it is."""
    import msgspec

    from scale0.config import NetworkDocument, parse

    return parse(msgspec.json.encode(found["config"]), "json", NetworkDocument)


@config.command()
@click.argument("older", type=click.IntRange(1), shell_complete=completion_values.versions)
@click.argument("newer", type=click.IntRange(1), required=False, shell_complete=completion_values.versions)
@joins
@json_option
@authentication.commands
@watched
def diff(
    older: int, newer: int | None, join: str, wants_json: bool, authority: authentication.GivenCredentials
) -> None:
    """Show what changed from version OLDER to NEWER (default: the current one), key by key.

    Exits with 0 if nothing did, else with 1, as diff does.

    \b
    With --json, an array of objects: path, before, after (null: not there)

    \b
    Examples:
      scale0 config diff 7
      scale0 config diff 7 9 --json
    """
    from scale0.config import changed_paths

    one, other = (document_of(managed(join, authority, "get_config", version=number)) for number in (older, newer))
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
    "--expect", type=click.IntRange(1), metavar="VERSION", help="Only if this is the current version; else exit 1."
)


@config.command(name="set")
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--remove", "removed", multiple=True, metavar="KEY", help="Take this away; may be repeated.")
@click.option("--file", type=click.Path(path_type=Path), help="The whole document, in place of the current one.")
@expect_option
@joins
@json_option
@authentication.commands
def set_(
    changes: tuple[str, ...],
    removed: tuple[str, ...],
    file: Path | None,
    expect: int | None,
    join: str,
    wants_json: bool,
    authority: authentication.GivenCredentials,
) -> None:
    """Change the network document; it is a new version, and reaches every broker within two heartbeats.

    A KEY is a path such as services.hello.timeout; a VALUE is JSON if it is valid JSON, else text. Nothing is changed
    unless all of it is right. Two who change at once: with --expect the second is told (409) in place of winning.

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
            raise click.UsageError("--file is all of the document: give no changes beside it")
        import msgspec

        base = expect or managed(join, authority, "get_config")["version"]
        document = msgspec.to_builtins(read_config(file, NetworkDocument))
        done = managed(join, authority, "set_config", config=document, base=base)
    elif changes or removed:
        asked = {"set": document_entries.pairs(changes, "set"), "remove": list(removed), "base": expect}
        done = managed(join, authority, "patch_config", **asked)
    else:
        raise click.UsageError("say what to change: KEY=VALUE, --remove KEY, or --file FILE")
    tell_change(done, wants_json)


@config.command()
@click.argument("version", type=click.IntRange(1), shell_complete=completion_values.versions)
@expect_option
@joins
@json_option
@authentication.commands
def rollback(
    version: int, expect: int | None, join: str, wants_json: bool, authority: authentication.GivenCredentials
) -> None:
    """Make what VERSION said current again, as a new version: nothing goes back, and nothing is lost.

    \b
    With --json, an object: version, hash

    \b
    Example:
      scale0 config rollback 7 --expect 9
    """
    tell_change(managed(join, authority, "rollback_config", version=version, base=expect), wants_json)


def tell_change(done: dict[str, Any], wants_json: bool) -> None:
    """The version that it became."""
    output.say(output.as_json(done) if wants_json else f"version {done['version']} is current")


@config.command()
@joins
@json_option
@authentication.commands
@watched
def history(join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Show the versions of the network document, the newest first.

    Of two that were made at the same time, on two sides of a cut, one lost: it is marked.

    \b
    With --json, an array of objects: version, hash, parent, time, author, current

    \b
    Example:
      scale0 config history
    """
    rows = managed(join, authority, "config_history")["items"]
    if wants_json:
        output.say(output.as_json(rows))
        return
    lost = losers(rows)
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
        output.note("What lost against another version is not in force: make the change again if it is still wanted.")


def losers(rows: list[dict[str, Any]]) -> set[str]:
    """The hashes of those that the current one does not descend from, as far back as the rows tell."""
    by_hash = {row["hash"]: row for row in rows}
    one = next((row for row in rows if row["current"]), None)
    line: list[dict[str, Any]] = []
    while one is not None:
        line.append(one)
        one = by_hash.get(one["parent"])
    # A parent is one version older, so the one before the oldest that we have is known by its hash.
    oldest = min((row["version"] for row in line), default=1) - 1
    return by_hash.keys() - {row["hash"] for row in line} - {row["hash"] for row in rows if row["version"] < oldest}


def managed(join: str, given: authentication.GivenCredentials, command: str, **arguments: Any) -> Any:
    """One management command; what is None is left out."""
    from scale0.errors import CallError
    from scale0.kernel import codes

    credentials = authentication.need(given, join)
    words = {name: value for name, value in arguments.items() if value is not None}
    with connect(join) as client:
        try:
            return client.manage(command, **words, **credentials)
        except CallError as error:
            if error.code == codes.MALFORMED:
                raise errors.CommandError(f"nothing was changed: {error.message}", document_entries.MORE) from error
            if error.code == codes.IN_USE:
                step = "look at it with `scale0 config diff VERSION`, and say --expect with the current version"
                raise errors.CommandError(f"nothing was changed: {error.message}", step) from error
            raise
