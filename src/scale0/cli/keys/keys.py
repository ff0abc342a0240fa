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
from scale0.cli.common.endpoints import BACKEND_PORT, FRONTEND_PORT, PEER_PORT, endpoint_of
from scale0.cli.common.options import json_option, with_watch
from scale0.cli.keys.folder import (
    NEVER,
    Lifetime,
    data_dir_option,
    existing,
    refuse_elsewhere,
    refuse_reserved,
    role_argument,
    stored_in,
    stored_key,
)
from scale0.cli.keys.rotation import rotate_server
from scale0.transport.core.sockets import BACKEND, HELEN, ROLES

if TYPE_CHECKING:
    from scale0.broker.core.permissions import KeyRules
    from scale0.broker.edge.key_folder import KeyFolder

Command = TypeVar("Command", bound=Callable[..., Any])

TOKEN_ROLES: Final = (*ROLES, HELEN)
PORTS: Final = {"frontend": FRONTEND_PORT, "backend": BACKEND_PORT, "peer": PEER_PORT}
HELEN_JOINS: Final = "SCALE0_JOIN_TOKEN={token} scale0 helen --config helen/helen.zpl"
JOINS: Final = {
    ("frontend", False): "SCALE0_JOIN_TOKEN={token} scale0 call --join {address}",
    ("frontend", True): "SCALE0_JOIN_TOKEN={token} scale0 keys join frontend {address} --name {name}",
    ("backend", False): "SCALE0_JOIN_TOKEN={token} scale0 worker hello.py:worker --join {address}",
    ("backend", True): "SCALE0_JOIN_TOKEN={token} scale0 worker hello.py:worker --join {address} --name {name}",
    ("helen", False): HELEN_JOINS,
    ("helen", True): HELEN_JOINS,
    ("peer", False): "SCALE0_JOIN_TOKEN={token} scale0 broker --bind {bind} --join {address}",
    ("peer", True): "SCALE0_JOIN_TOKEN={token} scale0 broker --bind {bind} --identity {name} --join {address}",
}
"""The command for the other machine, by role and whether the token is for one name."""
allow_option = click.option(
    "--allow", multiple=True, metavar="RULE", help="What it may do, for example 'call:orders.*' (all but helen.…)."
)
deny_option = click.option("--deny", multiple=True, metavar="RULE", help="What it may not do; this wins over --allow.")


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


keys.add_command(rotate_server)


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
@click.option("--expires", type=Lifetime(), metavar="DURATION", default=NEVER, help="How long it is valid (for ever).")
@allow_option
@deny_option
@data_dir_option
@json_option
def new(
    role: str,
    name: str,
    out: Path | None,
    expires: float,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    data_dir: Path,
    wants_json: bool,
) -> None:
    """Make a key for NAME and accept it. Transfer the file to that client by a secure way.

    \b
    Examples:
      scale0 keys new backend web-1
      scale0 keys new frontend alice --out /media/stick/alice.key_secret
      scale0 keys new frontend build --expires 90d
      scale0 keys new frontend web --allow 'call:orders.*'
    With --json, an object: role, name, public_key, file, expires (null: never), allow, deny
    """
    from scale0.broker.core.permissions import KeyRules, rules_error
    from scale0.broker.edge.key_folder import expiry_metadata, rules_metadata
    from scale0.transport.edge.curve_certificates import SECRET_ENDING, CurveCertificate, new_certificate, write_pair

    rules = KeyRules(allow, deny)
    if fault := rules_error(role, rules):
        raise click.UsageError(fault)
    folder = existing(data_dir)
    refuse_reserved(folder, name)
    path = out or Path(f"{name}{SECRET_ENDING}")
    if path.exists():
        raise errors.CommandError(f"{path} already exists", "choose another file with --out", errors.USAGE)
    metadata = {"name": name, "role": role, "server-key": folder.server().public}
    pair = new_certificate(**metadata)
    until = time.time() + expires if expires else 0.0
    limits = {**expiry_metadata(until), **rules_metadata(rules)}
    store(folder, role, name, CurveCertificate(public=pair.public, metadata={"name": name, **limits}))
    write_pair(path, pair)
    if wants_json:
        shown = {"role": role, "name": name, "public_key": pair.public, "file": str(path), "expires": until or None}
        output.say(output.as_json({**shown, "allow": rules.allow, "deny": rules.deny}))
        return
    output.say(f"{name} is accepted as a {role}{until_text(until)}; the key is in {path}")
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
    stored_at (blank: here), allow, deny (`scale0 keys permissions`)

    \b
    Example:
      scale0 keys list --data-dir var/east-1
    """
    from scale0.broker.core.key_expiry import expiring, extend_command, left_text
    from scale0.broker.core.permissions import KeyRules

    folder, wall = existing(data_dir), time.time()
    server = folder.server().public
    rows: list[dict[str, Any]] = [
        {"role": "server", "name": "", "public_key": server, "expires": None, "stored_at": "", "allow": (), "deny": ()}
    ]
    stored = stored_in(folder)
    for key, broker in sorted(stored, key=lambda one: (one[0].is_token, one[0].role, one[0].name)):
        role = f"token for a {key.role}" if key.is_token and not wants_json else "token" if key.is_token else key.role
        until = key.expires or None
        row = {"role": role, "name": key.name, "public_key": key.public, "expires": until, "stored_at": broker}
        rows.append({**row, "allow": key.rules.allow, "deny": key.rules.deny})
    if wants_json:
        output.say(output.as_json(rows))
        return
    restricted = any(r["allow"] or r["deny"] for r in rows)
    shown = [
        (
            *(r["role"], r["name"], r["public_key"], r["stored_at"] or "here"),
            output.moment(float(r["expires"])) if r["expires"] else "",
            *((rules_text(KeyRules(r["allow"], r["deny"])),) if restricted else ()),
        )
        for r in rows
    ]
    columns = ("ROLE", "NAME", "PUBLIC KEY", "STORED AT", "EXPIRES")
    output.table((*columns, "PERMISSIONS") if restricted else columns, shown)
    for reason in [*folder.faults.values(), *folder.check()]:
        output.note(f"  warning: {reason}")
    for key in expiring((key for key, broker in stored if not broker), wall):
        output.note(f"  warning: {key.user} {left_text(key, wall)}: {extend_command(key)}")


@keys.command()
@role_argument
@click.argument("name")
@click.argument("lifetime", type=Lifetime(), metavar=f"DURATION|{NEVER}")
@data_dir_option
@json_option
def expire(role: str, name: str, lifetime: float, data_dir: Path, wants_json: bool) -> None:
    """Set how long the key of NAME is valid, from now on.

    An expired key is refused, and its connections end within a second, at other brokers a moment later. It remains
    stored: this command also makes an expired key valid again. `scale0 keys list` shows when keys expire.

    \b
    Examples:
      scale0 keys expire backend web-1 90d
      scale0 keys expire backend web-1 never
    With --json, an object: role, name, expires (null: never)
    """
    folder = existing(data_dir)
    refuse_elsewhere(stored_key(folder, role, name))
    until = time.time() + lifetime if lifetime else 0.0
    folder.set_expiry(role, name, until)
    if wants_json:
        output.say(output.as_json({"role": role, "name": name, "expires": until or None}))
    else:
        output.say(f"{name} is accepted as a {role}{until_text(until) or ', and does not expire'}")


def until_text(expires: float) -> str:
    return f" until {output.moment(expires)}" if expires else ""


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


@keys.command()
@role_argument
@click.argument("name")
@allow_option
@deny_option
@click.option("--add", multiple=True, metavar="RULE", help="Allow this as well, and keep the rest.")
@click.option("--reset", is_flag=True, help="Remove all rules: the defaults apply.")
@data_dir_option
@json_option
def permissions(
    role: str,
    name: str,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    add: tuple[str, ...],
    reset: bool,
    data_dir: Path,
    wants_json: bool,
) -> None:
    """Show or set what the key of NAME may do.

    A RULE is ACTION:GLOB. Actions of a frontend are call, submit (tasks) and discover; those of a backend are offer and
    take (tasks). `*` stands for any characters, `?` for one. --allow and --deny replace all rules of the key; a rule to
    deny wins. A key without a rule to allow for an action may do it with every service, but may not call or submit to
    `helen.…`: only a rule that begins with `helen.` allows that.

    \b
    Examples:
      scale0 keys permissions frontend web
      scale0 keys permissions frontend web --allow 'call:orders.*' --deny call:orders.delete
      scale0 keys permissions frontend helen-2 --add 'call:helen.*' --add 'submit:helen.*'
      scale0 keys permissions frontend web --reset
    With --json, an object: role, name, allow, deny
    """
    from scale0.broker.core.permissions import KeyRules, added

    folder = existing(data_dir)
    if (reset or add) and (allow or deny or (reset and add)):
        raise click.UsageError("give --reset, or --add, or --allow and --deny")
    found = stored_key(folder, role, name)
    rules = found.key.rules
    if reset or add or allow or deny:
        refuse_elsewhere(found)
        rules = added(rules, add) if add else KeyRules(allow, deny)
        try:
            folder.set_rules(role, name, rules)
        except ValueError as error:
            raise errors.CommandError(str(error), "write, for example, 'call:orders.*'", errors.USAGE) from error
    if wants_json:
        output.say(output.as_json({"role": role, "name": name, "allow": rules.allow, "deny": rules.deny}))
    else:
        output.say(f"{role} {name}: {rules_text(rules)}")


def rules_text(rules: KeyRules) -> str:
    parts = [f"{word} {' '.join(some)}" for word, some in (("allow", rules.allow), ("deny", rules.deny)) if some]
    return "; ".join(parts) or "the defaults"


@keys.command("forget-missing")
@data_dir_option
def forget_missing(data_dir: Path) -> None:
    """Let a broker revoke keys whose files vanished together.

    If most keys of a broker, or all of a role, are missing or invalid at once, and `scale0 keys revoke` did not remove
    them, the broker still accepts them, also after a restart, and logs that: a directory that is not mounted must not
    lock out everybody. This command confirms that they are gone.

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
      scale0 keys join frontend 10.0.0.1 --token - < token
      scale0 keys join backend 10.0.0.1 --token @token
    With --json, an object: role, name, endpoint, file
    """
    if role == "peer":
        raise click.UsageError("a broker joins when it starts: scale0 broker --join HOST --token -")
    if not token_text:
        raise click.UsageError(f"--token is required: {joining.MADE_BY}")
    endpoint = endpoint_of(host, PORTS[role])
    path, called = joining.join(endpoint, role, token_text, name, joining.default_name())
    if wants_json:
        output.say(output.as_json({"role": role, "name": called, "endpoint": endpoint, "file": str(path)}))


@click.command()
@click.argument("role", type=click.Choice(TOKEN_ROLES))
@click.option("--name", default="", help="The only name that it is valid for (any free name).")
@click.option(
    "--minutes", type=click.IntRange(1, 60 * 24 * 7), default=15, show_default=True, help="How long it is valid."
)
@click.option("--place", metavar="HOST[:PORT]", help="The broker's address in the printed command.")
@click.option(
    *("--key-expires", "lifetime"),
    type=Lifetime(),
    metavar="DURATION",
    default=NEVER,
    help="How long the key that it admits is valid, from then on (for ever).",
)
@allow_option
@deny_option
@data_dir_option
@json_option
def token(
    role: str,
    name: str,
    minutes: int,
    place: str | None,
    lifetime: float,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    data_dir: Path,
    wants_json: bool,
) -> None:
    """Print a token with which one client or broker can join.

    Roles are frontend, backend (workers), helen and peer (brokers); the token works once. The key of a Helen is stored
    as a frontend and as a backend, and may use `helen.…`. The command also prints the command that joins the encrypted
    network, to paste on the other machine; replace hello.py:worker with your own worker. The token is not shown again.

    \b
    Examples:
      scale0 token backend
      scale0 token backend --name web-1 --minutes 5 --data-dir var/east-1
      scale0 token helen --name helen-2
      scale0 token frontend --name web --allow 'call:orders.*' --allow 'discover:orders.*'
      scale0 token frontend --name build --key-expires 90d
      scale0 token peer --json
    With --json, an object: token, role, name, expires, command
    """
    from scale0.broker.core.permissions import NO_RULES, KeyRules, rules_error
    from scale0.broker.edge.join_tokens import new_join_token

    rules = KeyRules(allow, deny)
    if role == HELEN and rules != NO_RULES:
        raise click.UsageError("the key of a Helen has no rules when it joins; set them with `scale0 keys permissions`")
    if fault := rules_error(role, rules):
        raise click.UsageError(fault)
    if name and not is_name(name):
        raise click.UsageError(
            "a key's name is 1 to 64 characters of A-Z a-z 0-9 . _ : -, and does not begin with a dot"
        )
    folder = existing(data_dir)
    refuse_reserved(folder, name)
    made = new_join_token(folder, role, name, minutes * 60.0, rules, lifetime)
    where = place or folder.places().get(BACKEND if role == HELEN else role, "").removeprefix("tcp://")
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
    """The command that joins the network on another machine, with the token in its environment: only its user can see
    that."""
    bind = "127.0.0.1" if is_local(where) else "0.0.0.0"
    return JOINS[role, bool(name)].format(address=where or "HOST", name=name, token=token, bind=bind)


def is_local(where: str) -> bool:
    from scale0.config import is_loopback

    return bool(where) and is_loopback(where.rpartition(":")[0].strip("[]") or where)
