"""`scale0 config`: look at configuration, in a file or in the network.

Lives here: check, show, history. Never here: what is right; `config/` knows that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from scale0.cli import authority, faults, output
from scale0.cli.look import json_option
from scale0.cli.network import connect
from scale0.cli.places import joins


@click.group()
def config() -> None:
    """Check a configuration file, or show the network's configuration.

    \b
    Examples:
      scale0 config check broker.zpl
      scale0 config show --form zpl
      scale0 config history
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
def check(file: Path, kind: str, wants_json: bool) -> None:
    """Say whether FILE (.json, .xml or .zpl) can be used, with every reason why not and its line.

    Exits with 0 if it is right, with 1 if not, with 2 if it cannot be read.

    \b
    With --json, an object: file, kind, valid, reasons [text…]
    """
    from scale0.base.errors import ConfigError, Refusal
    from scale0.config import MAX_DOCUMENT_BYTES, form_of, parse

    try:
        form = form_of(file.name)
        with file.open("rb") as opened:
            data = opened.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise faults.Trouble(f"{file}: {error.strerror}", "name a file that can be read", faults.USAGE) from error
    except Refusal as refusal:
        raise faults.Trouble(refusal.message, "the ending says the form of a file", faults.USAGE) from refusal
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
@authority.commands
def show(join: str, form: str, wants_json: bool, authority: authority.Authority) -> None:
    """Show the network document that the broker has.

    \b
    With --json, an object: version, hash, config (the document)
    """
    import msgspec

    from scale0.config import NetworkDocument, parse, render

    found = managed(join, authority, "get_config")
    if wants_json:
        output.say(output.as_json(found))
        return
    document = parse(msgspec.json.encode(found["config"]), "json", NetworkDocument)
    click.echo(render(document, form).decode(), nl=False)


@config.command()
@joins
@json_option
@authority.commands
def history(join: str, wants_json: bool, authority: authority.Authority) -> None:
    """Show the versions of the network document, the newest first.

    \b
    With --json, an array of objects: version, hash, parent, time, author, current
    """
    rows = managed(join, authority, "config_history")["items"]
    if wants_json:
        output.say(output.as_json(rows))
        return
    shown = [
        (
            row["version"],
            output.moment(row["time"]),
            row["author"] or "-",
            row["hash"][:12],
            "current" if row["current"] else "",
        )
        for row in rows
    ]
    output.table(("VERSION", "TIME", "AUTHOR", "HASH", ""), shown, numbers=("VERSION",))


def managed(join: str, given: authority.Authority, command: str) -> Any:
    """One management command."""
    credentials = authority.need(given, join)
    with connect(join) as client:
        return client.manage(command, **credentials)
