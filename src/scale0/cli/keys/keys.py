"""`scale0 keys` and `scale0 token`: who is let into a broker that uses CURVE.

Lives here: the commands. Never here: files (`broker.edge.key_folder`) or the conversation
(`transport.edge.joining`). They work on the broker's own machine, on its folder; a broker that runs sees what they did
within a second. Invariant: the only secrets that are shown are those that were asked for: a token, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from scale0.cli.common import errors, joining, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.endpoints import BACKEND_PORT, FRONTEND_PORT, PEER_PORT, endpoint_of
from scale0.cli.common.watch_mode import json_option, watched

if TYPE_CHECKING:
    from scale0.broker.cluster.replicated_keys import AdmittedKey
    from scale0.broker.edge.key_folder import KeyFolder

Command = TypeVar("Command", bound=Callable[..., Any])

ROLES: Final = ("frontend", "backend", "peer")
PORTS: Final = {"frontend": FRONTEND_PORT, "backend": BACKEND_PORT, "peer": PEER_PORT}
BROKER_FOLDER: Final = Path("var")
"""Where a broker keeps its data unless it is told otherwise."""
JOINS: Final = {
    ("frontend", False): "scale0 call --join {place} --token {token}",
    ("frontend", True): "scale0 keys join frontend {place} --name {name} --token {token}",
    ("backend", False): "scale0 worker hello.py:worker --join {place} --token {token}",
    ("backend", True): "scale0 worker hello.py:worker --join {place} --name {name} --token {token}",
    ("peer", False): "scale0 broker --bind {bind} --join {place} --token {token}",
    ("peer", True): "scale0 broker --bind {bind} --identity {name} --join {place} --token {token}",
}
"""What is typed on the other machine, by role and whether the token is for one name."""
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
    """Keys of a broker that uses CURVE: whom it lets in. For its own machine, on its own folder.

    A key that comes or goes counts within a second, without a restart. `scale0 token` is the short way: one command
    there, one on the other machine.

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
    """Make the broker's own key and the folders for others'. A broker with `curve = true` also does so by itself.

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
    output.say(f"{'made' if new else 'there is'} a key in {folder.path}; its public half: {found['server_key']}")
    output.note(
        "  next: start the broker with curve = true in its file (or --curve), and let somebody in: scale0 token"
    )


@keys.command()
@role_argument
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), help="Where the pair goes (NAME.key_secret).")
@data_dir_option
@json_option
def new(role: str, name: str, out: Path | None, data_dir: Path, wants_json: bool) -> None:
    """Make a key for NAME and let it in. Its file is for whoever is called so: carry it there by a safe way.

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
        raise errors.CommandError(f"{path} is there already", "name another file with --out", errors.USAGE)
    metadata = {"name": name, "role": role, "server-key": folder.server().public}
    pair = new_certificate(**metadata)
    store(folder, role, name, CurveCertificate(public=pair.public, metadata={"name": name}))
    write_pair(path, pair)
    if wants_json:
        output.say(output.as_json({"role": role, "name": name, "public_key": pair.public, "file": str(path)}))
        return
    output.say(f"{name} is let in as a {role}; the key is in {path}")
    output.note(f"  next: on the other machine, SCALE0_KEY={path.name} (or --key-file {path.name})")


def store(folder: KeyFolder, role: str, name: str, certificate: Any) -> None:
    """Let a key in, or say why not."""
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
@watched
def list_(data_dir: Path, wants_json: bool) -> None:
    """Show the broker's own key, and whom it lets in; tokens that nobody has used, too.

    Keys are also let in that other brokers store and told of: STORED AT names the broker, and there they are revoked.

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
        output.note(f"  beware: {reason}")


@keys.command()
@role_argument
@click.argument("name")
@data_dir_option
@json_option
def revoke(role: str, name: str, data_dir: Path, wants_json: bool) -> None:
    """Let NAME in no more; its connections end within a second, at brokers that were told of it a moment later.

    A key is revoked at the broker that stores it: `scale0 keys list` says which one that is.

    \b
    Examples:
      scale0 keys revoke backend web-1
    With --json, an object: role, name
    """
    folder = existing(data_dir)
    try:
        gone = folder.revoke(role, name)
    except ValueError as error:
        raise errors.CommandError(str(error), "`scale0 keys list` shows those that are there", errors.USAGE) from error
    broker = next((at for key, at in stored_in(folder) if at and (key.role, key.name) == (role, name)), "")
    if broker and not gone:
        raise errors.CommandError(f"{name} is stored at the broker {broker}, not here", "revoke it there")
    if not gone:
        raise errors.CommandError(
            f"there is no key {name} among the {role}s", "`scale0 keys list` shows those that are there"
        )
    if broker:
        output.note(f"  beware: the broker {broker} stores a key {name}, too, and lets it in: revoke it there as well")
    if wants_json:
        output.say(output.as_json({"role": role, "name": name}))
    else:
        output.say(f"{name} is let in no more as a {role}")


@keys.command("join")
@role_argument
@click.argument("host", metavar="HOST[:PORT]")
@joining.token_option
@click.option("--name", help="What to be called (the host's name).")
@json_option
def join_(role: str, host: str, token_text: str | None, name: str | None, wants_json: bool) -> None:
    """Trade a token for a key of this user's own, without doing anything else.

    \b
    Examples:
      scale0 keys join frontend 10.0.0.1 --token TOKEN
      scale0 keys join backend 10.0.0.1 --token - < token
    With --json, an object: role, name, endpoint, file
    """
    if role == "peer":
        raise click.UsageError("a broker joins as it starts: scale0 broker --join HOST --token TOKEN")
    if not token_text:
        raise click.UsageError(f"give --token: {joining.MADE_BY}")
    endpoint, called = endpoint_of(host, PORTS[role]), name or joining.default_name()
    path = joining.join(endpoint, role, token_text, called)
    if wants_json:
        output.say(output.as_json({"role": role, "name": called, "endpoint": endpoint, "file": str(path)}))


@click.command()
@role_argument
@click.option("--name", default="", help="The only name that it is for (any that is free).")
@click.option(
    "--minutes", type=click.IntRange(1, 60 * 24 * 7), default=15, show_default=True, help="How long it works."
)
@click.option("--place", metavar="HOST[:PORT]", help="Where the newcomer finds the broker, for the line that is shown.")
@data_dir_option
@json_option
def token(role: str, name: str, minutes: int, place: str | None, data_dir: Path, wants_json: bool) -> None:
    """Print a token that lets one newcomer in, once: a frontend (calls), a backend (workers, Helen), a peer (brokers).

    Under it stands the one command that joins the encrypted network, to be pasted on the other machine as it is; where
    it says hello.py:worker, name your own. The token is shown this one time.

    \b
    Examples:
      scale0 token backend
      scale0 token backend --name web-1 --minutes 5 --data-dir var/east-1
      scale0 token peer --json
    With --json, an object: token, role, name, expires, command
    """
    from scale0.broker.core.keys import is_name
    from scale0.broker.edge.join_tokens import new_join_token

    if name and not is_name(name):
        raise click.UsageError("a key's name is 1 to 64 characters of A-Z a-z 0-9 . _ : -, and begins with no dot")
    folder = existing(data_dir)
    made = new_join_token(folder, role, name, minutes * 60.0)
    where = place or folder.places().get(role, "").removeprefix("tcp://")
    command = command_of(role, name, where, made.text())
    if wants_json:
        shown = {"token": made.text(), "role": role, "name": name, "expires": made.expires, "command": command}
        output.say(output.as_json(shown))
        return
    output.say(made.text())
    output.note(f"  it works once, until {output.moment(made.expires)}. On the other machine:")
    output.note(f"  {command}")
    if is_local(where):
        output.note(f"  beware: the broker is at {where}, which only this machine reaches; see --bind of scale0 broker")
    elif not where:
        output.note("  the broker has not said yet where it is: put its address in place of HOST, or give --place")


def command_of(role: str, name: str, where: str, token: str) -> str:
    """What joins the network on another machine; the program wipes the token out of the list of processes."""
    bind = "127.0.0.1" if is_local(where) else "0.0.0.0"
    return JOINS[role, bool(name)].format(place=where or "HOST", name=name, token=token, bind=bind)


def is_local(where: str) -> bool:
    """True for a place that other machines do not reach."""
    from scale0.config import is_loopback

    return bool(where) and is_loopback(where.rpartition(":")[0].strip("[]") or where)


def stored_in(folder: KeyFolder) -> list[AdmittedKey]:
    """Whom this folder lets in, and which broker's files say so: its own, or those that it was told of."""
    from scale0.broker.cluster.replicated_keys import let_in
    from scale0.broker.edge.replicated_key_folder import read_told

    return let_in(folder.table(time.time()).keys, read_told(folder.path), "", folder.server().public)


def existing(data_dir: Path) -> KeyFolder:
    """The folder of keys, or an error that says how to make one."""
    from scale0.broker.edge.key_folder import KeyFolder

    folder = KeyFolder(data_dir)
    if not folder.server_file.exists() and data_dir == Path(LOCAL_FOLDER):
        folder = KeyFolder(BROKER_FOLDER)
    if not folder.server_file.exists():
        raise errors.CommandError(
            f"there are no keys in {data_dir}", "`scale0 keys init --data-dir FOLDER` makes them", errors.USAGE
        )
    return folder
