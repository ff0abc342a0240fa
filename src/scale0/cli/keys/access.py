"""`scale0 access`: links for browsers and tokens for programs; `scale0 password`: a hash for a broker's `admins`.

A token is printed once, when it is made, and stored nowhere.
"""

from __future__ import annotations

import re
import secrets
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.authentication import LOCAL_FOLDER, AdminAccess, admin_options
from scale0.cli.common.connection import list_all, manage
from scale0.cli.common.endpoints import CONSOLE_PORT, host_of
from scale0.cli.common.options import json_option, with_watch
from scale0.cli.monitoring.silences import DurationType

ROLES: Final = ("viewer", "operator", "admin")
CONSOLE: Final = "SCALE0_CONSOLE"
"""The console's address, without --url."""
LINK_SECONDS: Final = 600.0
DEFAULT_SECONDS: Final = 3_600.0
TOKEN_ID: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_URL: Final = re.compile(r"https?://[^\s/#?]+/?", re.ASCII)


@click.group()
def access() -> None:
    """Make links to the console, and manage tokens.

    \b
    Examples:
      scale0 access link
      scale0 access issue grafana --role viewer --ttl 365d
      scale0 access list
      scale0 access revoke grafana
    """


def url_of(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if _URL.fullmatch(value) is None:
        raise click.BadParameter(f"{value!r} is not an address such as http://127.0.0.1:{CONSOLE_PORT}")
    return value.rstrip("/")


@access.command()
@json_option
@click.option("--url", envvar=CONSOLE, callback=url_of, metavar="URL", help=f"The console's address ({CONSOLE}).")
@click.option("--role", type=click.Choice(ROLES), default="admin", show_default=True, help="The role of the link.")
@admin_options
def link(wants_json: bool, url: str | None, role: str, access: AdminAccess) -> None:
    """Print a link that opens the console without a password, once, within ten minutes.

    The link is as good as a password: keep it out of logs.

    \b
    With --json, an object: link, name, role, expires

    \b
    Examples:
      scale0 access link
      scale0 access link --role viewer --url https://broker.example.com:5780
    """
    name = f"link-{secrets.token_hex(4)}"
    made = manage(access, "issue_token", name=name, role=role, ttl=LINK_SECONDS, once=True)
    if not made.get("once"):
        manage(access, "revoke_token", token=made["token"])
        raise errors.CommandError("the broker's version issues no one-time links", "upgrade the broker")
    address = url or console_of(access)
    text = f"{address}/#/login?once={made['token']}"
    if wants_json:
        output.say(output.as_json({"link": text, "name": name, "role": role, "expires": made["expires"]}))
        return
    output.say(text)
    output.note(f"works once, until {output.moment(made['expires'])}; `scale0 access revoke {name}` revokes it")


def console_of(access: AdminAccess) -> str:
    """The console's address from the broker's folder, or the default port of its host."""
    from scale0.broker.main.http_settings import STARTED_FILE

    folder = Path(access.data_dir or LOCAL_FOLDER)
    try:
        text = (folder / STARTED_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = ""
    if _URL.fullmatch(text):
        return text.rstrip("/")
    host = host_of(access.join)
    return f"http://{f'[{host}]' if ':' in host else host}:{CONSOLE_PORT}"


@access.command()
@click.argument("name")
@json_option
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="Its role.")
@click.option(
    "--ttl",
    type=DurationType(),
    default=DEFAULT_SECONDS,
    metavar="TIME",
    help="How long it is valid: 90 (seconds), 30m, 2h, 365d (1h).",
)
@admin_options
def issue(name: str, wants_json: bool, role: str, ttl: float, access: AdminAccess) -> None:
    """Make a token with this NAME for a program, and print it once.

    \b
    With --json, an object: token, id, name, role, expires, once

    \b
    Examples:
      scale0 access issue grafana --ttl 365d
      export SCALE0_TOKEN=$(scale0 access issue deploy --role operator --ttl 10m)
    """
    made = manage(access, "issue_token", name=name, role=role, ttl=ttl)
    if wants_json:
        output.say(output.as_json(made))
        return
    output.say(made["token"])
    output.note(f"{name} has the role {role} until {output.moment(made['expires'])}; the token is not shown again")


@access.command("list")
@json_option
@admin_options
@with_watch
def listing(wants_json: bool, access: AdminAccess) -> None:
    """List the valid tokens, including those of logins. The tokens themselves are not stored.

    \b
    With --json, an array of objects: id, name, role, expires, once (a link that was not used yet)

    \b
    Examples:
      scale0 access list
      scale0 access list --json | jq -r '.[] | select(.role == "admin") | .name'
    """
    rows = list_all(access, "list_tokens")
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say(
            "There is no token. To make one for a program:\n\n    scale0 access issue NAME --role viewer --ttl 365d"
        )
    else:
        now = time.time()
        rows.sort(key=lambda row: (row["name"], row["expires"]))
        shown = [(row["id"], row["name"], role_shown(row), output.span(row["expires"] - now)) for row in rows]
        output.table(("ID", "NAME", "ROLE", "EXPIRES IN"), shown, numbers=("EXPIRES IN",))


def role_shown(row: dict[str, Any]) -> str:
    return f"{row['role']} (link)" if row.get("once") else str(row["role"])


@access.command()
@click.argument("which", metavar="NAME|ID", shell_complete=completion_values.tokens)
@json_option
@admin_options
def revoke(which: str, wants_json: bool, access: AdminAccess) -> None:
    """Revoke all tokens with this NAME, or the one with this ID (`scale0 access list`).

    \b
    With --json, an object: revoked (how many)

    \b
    Examples:
      scale0 access revoke grafana
      scale0 access revoke 1f2e3d4c5b6a
    """
    from scale0.errors import NoSuchService

    done: dict[str, Any] = {}
    for query in ({"token_id": which}, {"name": which}) if TOKEN_ID.fullmatch(which) else ({"name": which},):
        try:
            done = manage(access, "revoke_token", **query)
            break
        except NoSuchService:
            continue
    if not done:
        raise errors.CommandError(f"there is no token {which}", "`scale0 access list` lists the valid tokens")
    output.say(output.as_json(done) if wants_json else f"revoked {done['revoked']}")


@click.command()
def password() -> None:
    """Print the argon2id hash of a password for `admins`.

    `admins` are in a broker's file. The command asks for the password; without a terminal, the first line of stdin is
    the password.

    \b
    Example:
      scale0 password < secret.txt

    \b
    Its use in a ZPL file:
      admins
          auth_id = root
          password_hash = '$argon2id$...'
          role = admin
    """
    from scale0.kernel.edge.passwords import hash_password

    if sys.stdin.isatty():
        secret = click.prompt("password", hide_input=True, confirmation_prompt="again", err=True)
    else:
        secret = sys.stdin.readline().rstrip("\r\n")
    if not secret:
        raise errors.CommandError("the password is empty", "type one, or give it on stdin", errors.USAGE)
    output.say(hash_password(secret))
