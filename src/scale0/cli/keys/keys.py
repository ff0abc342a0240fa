"""`scale0 keys` and `scale0 token`: the keys of a broker that uses CURVE.

The commands work on the broker's own machine, on its folder; a running broker sees a change within a second. The only
secret that they show is a token, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from scale0.broker.core.keys import is_name
from scale0.cli.common import errors, joining, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.endpoints import BACKEND_PORT, FRONTEND_PORT, PEER_PORT, endpoint_of
from scale0.cli.common.options import json_option, with_watch

if TYPE_CHECKING:
    from scale0.broker.cluster.replicated_keys import AdmittedKey
    from scale0.broker.edge.key_folder import KeyFolder

Command = TypeVar("Command", bound=Callable[..., Any])

ROLES: Final = ("frontend", "backend", "peer")
PORTS: Final = {"frontend": FRONTEND_PORT, "backend": BACKEND_PORT, "peer": PEER_PORT}
BROKER_FOLDER: Final = Path("var")
"""The default data folder of a broker."""
JOINS: Final = {
    ("frontend", False): "scale0 call --join {address} --token {token}",
    ("frontend", True): "scale0 keys join frontend {address} --name {name} --token {token}",
    ("backend", False): "scale0 worker hello.py:worker --join {address} --token {token}",
    ("backend", True): "scale0 worker hello.py:worker --join {address} --name {name} --token {token}",
    ("peer", False): "scale0 broker --bind {bind} --join {address} --token {token}",
    ("peer", True): "scale0 broker --bind {bind} --identity {name} --join {address} --token {token}",
}
"""The command for the other machine, by role and whether the token is for one name."""
role_argument = click.argument("role", type=click.Choice(ROLES))
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=LOCAL_FOLDER,
    envvar=DATA_DIR,
    show_default=True,
    help=f"The broker's folder ({DATA_DIR}).",
)


@click.group()
def keys() -> None:
    """Manage the keys that a broker with CURVE accepts.

    Run it on the broker's own machine. A change takes effect within a second, without a restart. `scale0 token` is
    simpler: one command here, and one on the other machine.

    \b
    Examples:
      scale0 keys init
      scale0 keys new backend web-1
      scale0 keys list
      scale0 keys revoke backend web-1
    """


@keys.command()
@data_dir_option
@json_option
def init(data_dir: Path, wants_json: bool) -> None:
    """Make the broker's own key and the folders for other keys.

    A broker with `curve = true` also does this when it starts.

    \b
    Examples:
      scale0 keys init
      scale0 keys init --data-dir var/east-1 --json
    With --json, an object: server_key, folder, new
    """
    from scale0.broker.edge.key_folder import KeyFolder

    folder = KeyFolder(data_dir)
    new = folder.init()
    found = {"server_key": folder.server().public, "folder": str(folder.path), "new": new}
    if wants_json:
        output.say(output.as_json(found))
        return
    output.say(f"{'made a key' if new else 'a key exists'} in {folder.path}; its public key: {found['server_key']}")
    output.note(
        "  next: start the broker with curve = true in its file (or --curve), and add a client with `scale0 token`"
    )


@keys.command()
@role_argument
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), help="The file for the key pair (NAME.key_secret).")
@data_dir_option
@json_option
def new(role: str, name: str, out: Path | None, data_dir: Path, wants_json: bool) -> None:
    """Make a key for NAME and accept it. Transfer the file to that client by a secure way.

    \b
    Examples:
      scale0 keys new backend web-1
      scale0 keys new frontend alice --out /media/stick/alice.key_secret
    With --json, an object: role, name, public_key, file
    """
    from scale0.transport.edge.curve_certificates import SECRET_ENDING, CurveCertificate, new_certificate, write_pair

    folder = existing(data_dir)
    path = out or Path(f"{name}{SECRET_ENDING}")
    if path.exists():
        raise errors.CommandError(f"{path} already exists", "choose another file with --out", errors.USAGE)
    metadata = {"name": name, "role": role, "server-key": folder.server().public}
    pair = new_certificate(**metadata)
    store(folder, role, name, CurveCertificate(public=pair.public, metadata={"name": name}))
    write_pair(path, pair)
    if wants_json:
        output.say(output.as_json({"role": role, "name": name, "public_key": pair.public, "file": str(path)}))
        return
    output.say(f"{name} is accepted as a {role}; the key is in {path}")
    output.note(f"  next: on the other machine, SCALE0_KEY={path.name} (or --key-file {path.name})")


def store(folder: KeyFolder, role: str, name: str, certificate: Any) -> None:
    """Accept a key, or raise an error with the reason."""
    from scale0.broker.cluster.replicated_keys import clash
    from scale0.broker.edge.key_folder import KeyTakenError

    elsewhere = clash(role, name, certificate.public, stored_in(folder))
    if elsewhere is not None:
        raise errors.CommandError(
            f"there is a key {elsewhere.key.name} in the files of {elsewhere.broker}",
            "choose another name, or revoke it there",
        )
    try:
        folder.store(role, name, certificate)
    except KeyTakenError as error:
        raise errors.CommandError(str(error), f"choose another name, or: scale0 keys revoke {role} {name}") from error
    except ValueError as error:
        raise errors.CommandError(str(error), "choose another name", errors.USAGE) from error


@keys.command("list")
@data_dir_option
@json_option
@with_watch
def list_(data_dir: Path, wants_json: bool) -> None:
    """List the broker's own key, the keys that it accepts, and unused tokens.

    It also accepts keys that other brokers store and replicate: STORED AT names the broker, where to revoke them.

    \b
    With --json, an array of objects: role (server, frontend, backend, peer, token), name, public_key, expires,
    stored_at (blank: here)

    \b
    Example:
      scale0 keys list --data-dir var/east-1
    """
    folder = existing(data_dir)
    server = folder.server().public
    rows: list[dict[str, Any]] = [
        {"role": "server", "name": "", "public_key": server, "expires": None, "stored_at": ""}
    ]
    for key, broker in sorted(stored_in(folder), key=lambda one: (bool(one[0].expires), one[0].role, one[0].name)):
        role = f"token for a {key.role}" if key.expires and not wants_json else "token" if key.expires else key.role
        until = key.expires or None
        rows.append({"role": role, "name": key.name, "public_key": key.public, "expires": until, "stored_at": broker})
    if wants_json:
        output.say(output.as_json(rows))
        return
    shown = [
        (
            *(r["role"], r["name"], r["public_key"], r["stored_at"] or "here"),
            output.moment(float(r["expires"])) if r["expires"] else "",
        )
        for r in rows
    ]
    output.table(("ROLE", "NAME", "PUBLIC KEY", "STORED AT", "EXPIRES"), shown)
    for reason in [*folder.faults.values(), *folder.check()]:
        output.note(f"  warning: {reason}")


@keys.command()
@role_argument
@click.argument("name")
@data_dir_option
@json_option
def revoke(role: str, name: str, data_dir: Path, wants_json: bool) -> None:
    """Revoke the key of NAME; its connections end within a second, at other brokers a moment later.

    Revoke a key at the broker that stores it, which `scale0 keys list` shows.

    \b
    Examples:
      scale0 keys revoke backend web-1
    With --json, an object: role, name
    """
    folder = existing(data_dir)
    try:
        gone = folder.revoke(role, name)
    except ValueError as error:
        raise errors.CommandError(str(error), "`scale0 keys list` lists the keys", errors.USAGE) from error
    broker = next((at for key, at in stored_in(folder) if at and (key.role, key.name) == (role, name)), "")
    if broker and not gone:
        raise errors.CommandError(f"{name} is stored at the broker {broker}, not here", "revoke it there")
    if not gone:
        raise errors.CommandError(f"there is no {role} key {name}", "`scale0 keys list` lists the keys")
    if broker:
        output.note(f"  warning: the broker {broker} also stores a key {name} and accepts it: revoke it there, too")
    if wants_json:
        output.say(output.as_json({"role": role, "name": name}))
    else:
        output.say(f"{name} is no longer accepted as a {role}")


@keys.command("forget-missing")
@data_dir_option
def forget_missing(data_dir: Path) -> None:
    """Let a broker revoke keys whose files vanished together.

    If most keys of a broker are missing at once, and `scale0 keys revoke` did not remove them, the broker still accepts
    them and logs an error: a directory that is not mounted must not lock out everybody. This command confirms that they
    are gone. A broker that starts reads what is there.

    \b
    Examples:
      scale0 keys forget-missing
      scale0 keys forget-missing --data-dir var/east-1
    """
    existing(data_dir).confirm_missing()
    output.say("keys whose files are missing are no longer accepted")


@keys.command("join")
@role_argument
@click.argument("host", metavar="HOST[:PORT]")
@joining.token_option
@click.option("--name", help="The name of the key (the host name).")
@json_option
def join_(role: str, host: str, token_text: str | None, name: str | None, wants_json: bool) -> None:
    """Exchange a token for a key of this user, and do nothing else.

    \b
    Examples:
      scale0 keys join frontend 10.0.0.1 --token TOKEN
      scale0 keys join backend 10.0.0.1 --token - < token
    With --json, an object: role, name, endpoint, file
    """
    if role == "peer":
        raise click.UsageError("a broker joins when it starts: scale0 broker --join HOST --token TOKEN")
    if not token_text:
        raise click.UsageError(f"--token is required: {joining.MADE_BY}")
    endpoint = endpoint_of(host, PORTS[role])
    path, called = joining.join(endpoint, role, token_text, name, joining.default_name())
    if wants_json:
        output.say(output.as_json({"role": role, "name": called, "endpoint": endpoint, "file": str(path)}))


@click.command()
@role_argument
@click.option("--name", default="", help="The only name that it is valid for (any free name).")
@click.option(
    "--minutes", type=click.IntRange(1, 60 * 24 * 7), default=15, show_default=True, help="How long it is valid."
)
@click.option("--place", metavar="HOST[:PORT]", help="The broker's address in the printed command.")
@data_dir_option
@json_option
def token(role: str, name: str, minutes: int, place: str | None, data_dir: Path, wants_json: bool) -> None:
    """Print a token with which one client or broker can join.

    Roles are frontend, backend (workers, Helen) and peer (brokers); the token works once. The command also prints the
    command that joins the encrypted network, to paste on the other machine; replace hello.py:worker with your own
    worker. The token is not shown again.

    \b
    Examples:
      scale0 token backend
      scale0 token backend --name web-1 --minutes 5 --data-dir var/east-1
      scale0 token peer --json
    With --json, an object: token, role, name, expires, command
    """
    from scale0.broker.edge.join_tokens import new_join_token

    if name and not is_name(name):
        raise click.UsageError(
            "a key's name is 1 to 64 characters of A-Z a-z 0-9 . _ : -, and does not begin with a dot"
        )
    folder = existing(data_dir)
    made = new_join_token(folder, role, name, minutes * 60.0)
    where = place or folder.places().get(role, "").removeprefix("tcp://")
    command = command_of(role, name, where, made.text())
    if wants_json:
        shown = {"token": made.text(), "role": role, "name": name, "expires": made.expires, "command": command}
        output.say(output.as_json(shown))
        return
    output.say(made.text())
    output.note(f"  it is valid once, until {output.moment(made.expires)}. On the other machine:")
    output.note(f"  {command}")
    if is_local(where):
        output.note(f"  warning: only this machine can reach the broker at {where}; see --bind of scale0 broker")
    elif not where:
        output.note("  the broker's address is not known yet: replace HOST with it, or give --place")


def command_of(role: str, name: str, where: str, token: str) -> str:
    """The command that joins the network on another machine; the program scrubs the token from its command line."""
    bind = "127.0.0.1" if is_local(where) else "0.0.0.0"
    return JOINS[role, bool(name)].format(address=where or "HOST", name=name, token=token, bind=bind)


def is_local(where: str) -> bool:
    from scale0.config import is_loopback

    return bool(where) and is_loopback(where.rpartition(":")[0].strip("[]") or where)


def stored_in(folder: KeyFolder) -> list[AdmittedKey]:
    """The keys that this folder accepts, and which broker stores each: this one, or those that replicated it."""
    from scale0.broker.cluster.replicated_keys import admitted_keys
    from scale0.broker.edge.replicated_key_folder import read_replicated_keys

    return admitted_keys(folder.table(time.time()).keys, read_replicated_keys(folder.path), "", folder.server().public)


def existing(data_dir: Path) -> KeyFolder:
    """The folder of keys, or an error with the command that makes one."""
    from scale0.broker.edge.key_folder import KeyFolder

    folder = KeyFolder(data_dir)
    if not folder.server_file.exists() and data_dir == Path(LOCAL_FOLDER):
        folder = KeyFolder(BROKER_FOLDER)
    if not folder.server_file.exists():
        raise errors.CommandError(
            f"there are no keys in {data_dir}", "make them with `scale0 keys init --data-dir FOLDER`", errors.USAGE
        )
    return folder
