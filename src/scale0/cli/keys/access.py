"""`scale0 access`: ways in: a link for a browser, tokens for programs.

Lives here: what an admin does with tokens. Never here: a password (`scale0 password`), or who may what; the broker
decides that. Invariant: a token is printed once, when it is made, and kept nowhere.
"""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path
from typing import Any, Final

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.admin_client import managed, rows_of
from scale0.cli.common.endpoints import host_of, joins
from scale0.cli.common.watch_mode import json_option, watched
from scale0.cli.monitoring.silences import DurationType

ROLES: Final = ("viewer", "operator", "admin")
CONSOLE_PORT: Final = 5780
CONSOLE: Final = "SCALE0_CONSOLE"
"""Where the console is, unless --url says."""
LINK_SECONDS: Final = 600.0
"""How long a link is good."""
DEFAULT_SECONDS: Final = 3_600.0
TOKEN_ID: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_URL: Final = re.compile(r"https?://[^\s/#?]+/?", re.ASCII)


@click.group()
def access() -> None:
    """Let people and programs in: a link to the console that works once, and tokens.

    \b
    Examples:
      scale0 access link
      scale0 access issue grafana --role viewer --ttl 365d
      scale0 access list
      scale0 access revoke grafana
    """


def url_of(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """An address of a server, without anything behind it."""
    if value is None:
        return None
    if _URL.fullmatch(value) is None:
        raise click.BadParameter(f"{value!r} is not an address such as http://127.0.0.1:{CONSOLE_PORT}")
    return value.rstrip("/")


@access.command()
@joins
@json_option
@click.option("--url", envvar=CONSOLE, callback=url_of, metavar="URL", help=f"Where the console is ({CONSOLE}).")
@click.option("--role", type=click.Choice(ROLES), default="admin", show_default=True, help="What the link lets do.")
@authentication.commands
def link(join: str, wants_json: bool, url: str | None, role: str, authority: authentication.GivenCredentials) -> None:
    """Print a link that opens the console without a password: once, and within ten minutes.

    Whoever has the link is in: give it to nobody, and let no log have it.

    \b
    With --json, an object: link, name, role, expires

    \b
    Examples:
      scale0 access link
      scale0 access link --role viewer --url https://broker.example.com:5780
    """
    name = f"once-{secrets.token_hex(4)}"
    made = managed(join, authority, "issue_token", name=name, role=role, ttl=LINK_SECONDS)
    place = url or console_of(authority, join)
    text = f"{place}/#/login?once={made['token']}"
    if wants_json:
        output.say(output.as_json({"link": text, "name": name, "role": role, "expires": made["expires"]}))
        return
    output.say(text)
    output.note(f"good once, until {output.moment(made['expires'])}; `scale0 access revoke {name}` takes it back")


def console_of(given: authentication.GivenCredentials, join: str) -> str:
    """Where the console is: as the broker's folder says, or at the usual port of its host."""
    from scale0.broker.main.http_settings import STARTED_FILE

    folder = Path(given.data_dir or authentication.LOCAL_FOLDER)
    try:
        said = (folder / STARTED_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        said = ""
    if _URL.fullmatch(said):
        return said.rstrip("/")
    host = host_of(join)
    return f"http://{f'[{host}]' if ':' in host else host}:{CONSOLE_PORT}"


@access.command()
@click.argument("name")
@joins
@json_option
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What it lets do.")
@click.option(
    "--ttl",
    type=DurationType(),
    default=DEFAULT_SECONDS,
    metavar="TIME",
    help="How long it is good: 90, 30m, 2h, 365d (1h).",
)
@authentication.commands
def issue(
    name: str, join: str, wants_json: bool, role: str, ttl: float, authority: authentication.GivenCredentials
) -> None:
    """Make a token called NAME for a program, and print it: it is shown this once.

    \b
    With --json, an object: token, id, name, role, expires

    \b
    Examples:
      scale0 access issue grafana --ttl 365d
      export SCALE0_TOKEN=$(scale0 access issue deploy --role operator --ttl 10m)
    """
    made = managed(join, authority, "issue_token", name=name, role=role, ttl=ttl)
    if wants_json:
        output.say(output.as_json(made))
        return
    output.say(made["token"])
    article = "a" if role == "viewer" else "an"
    output.note(f"{name} may do what {article} {role} may, until {output.moment(made['expires'])}; this is shown once")


@access.command("list")
@joins
@json_option
@authentication.commands
@watched
def listing(join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Show every token that is good now; logins have some, too. The tokens themselves are known to nobody.

    \b
    With --json, an array of objects: id, name, role, expires

    \b
    Examples:
      scale0 access list
      scale0 access list --json | jq -r '.[] | select(.role == "admin") | .name'
    """
    rows = rows_of(join, authority, "list_tokens")
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say(
            "There is no token. Make one for a program:\n\n    scale0 access issue NAME --role viewer --ttl 365d"
        )
    else:
        now = time.time()
        rows.sort(key=lambda row: (row["name"], row["expires"]))
        shown = [(row["id"], row["name"], row["role"], output.span(row["expires"] - now)) for row in rows]
        output.table(("ID", "NAME", "ROLE", "GOOD FOR"), shown, numbers=("GOOD FOR",))


@access.command()
@click.argument("which", metavar="NAME|ID", shell_complete=completion_values.tokens)
@joins
@json_option
@authentication.commands
def revoke(which: str, join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Let a token be good no more: all of this NAME, or the one with this ID (`scale0 access list`).

    \b
    With --json, an object: revoked (how many)

    \b
    Examples:
      scale0 access revoke grafana
      scale0 access revoke 1f2e3d4c5b6a
    """
    from scale0.errors import NoSuchService

    done: dict[str, Any] = {}
    for asked in ({"token_id": which}, {"name": which}) if TOKEN_ID.fullmatch(which) else ({"name": which},):
        try:
            done = managed(join, authority, "revoke_token", **asked)
            break
        except NoSuchService:
            continue
    if not done:
        raise errors.CommandError(f"there is no token {which}", "`scale0 access list` shows those that are good")
    output.say(output.as_json(done) if wants_json else f"revoked {done['revoked']}")
