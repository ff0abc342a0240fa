"""`scale0 helen init` and `scale0 helen token`: an authority, and tokens that let agents in.

Lives here: the two commands, and the text of a first helen.zpl. Never here: keys and certificates. Invariants: a token
is the only secret that is ever shown, on stdout and alone on its line; nothing that exists is written over.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.watch_mode import json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_FOLDER: Final = "helen"
FOLDER_VARIABLE: Final = "SCALE0_HELEN_DIR"
CONFIG_FILE: Final = "helen.zpl"
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
MAX_MINUTES: Final = 7 * 24 * 60
"""A week: a token that is valid longer is a password."""

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    envvar=FOLDER_VARIABLE,
    show_default=True,
    help=f"Helen's folder, as `scale0 helen init` made it ({FOLDER_VARIABLE}).",
)


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=DEFAULT_FOLDER)
@click.option("--name", "names", multiple=True, metavar="HOST", help="A name or address that agents use; repeatable.")
@click.option("--identity", help="Her name in the network (helen- and the host's name).")
@click.option(
    "--broker", default="127.0.0.1", show_default=True, metavar="HOST[:PORT]", help="A broker's backend port."
)
@click.option("--port", type=click.IntRange(0, 65_535), default=4166, show_default=True, help="Where agents connect.")
def init(folder: Path, names: tuple[str, ...], identity: str | None, broker: str, port: int) -> None:
    """Make an authority for agents in DIR, Helen's own certificate, and a file to start her with.

    With --name she listens on every address, without it on this machine alone. Nothing that exists is changed.
    Guard the keys in DIR: whoever has them can make agents, and Helens.

    \b
    Examples:
      scale0 helen init
      scale0 helen init /var/lib/scale0/helen --name helen.example.com
    """
    from scale0.cli.broker.command import default_identity
    from scale0.config import HelenConfig, parse
    from scale0.monitoring.pki.authority import AuthorityError, create_authority
    from scale0.monitoring.pki.certificates import subject_alternative_names

    config = folder / CONFIG_FILE
    try:
        subject_alternative_names(names)
        text = config_text(folder.absolute(), identity or f"helen-{default_identity()}"[:128], broker, names, port)
        parse(text.encode("utf-8", "surrogateescape"), "zpl", HelenConfig)
        if config.exists():
            raise AuthorityError(f"{config} is there already, and nothing was changed; choose another folder")
        create_authority(folder, own_names(names), time.time())
        write_config(config, text)
    except ValueError as error:
        raise errors.CommandError(str(error), "--name takes a host name or an address", errors.USAGE) from error
    except AuthorityError as error:
        raise errors.CommandError(str(error), f"scale0 helen --config {config}") from error
    output.say(f"an authority, Helen's certificate and {config} are made")
    output.note(f"  next: scale0 helen --config {config}")
    output.note(f"        scale0 helen token --data-dir {folder}")


def write_config(path: Path, text: str) -> None:
    """A new file; it holds no secret, but names where they are."""
    from scale0.kernel.edge.secret_files import write_secret

    write_secret(path, text)


def own_names(names: Sequence[str]) -> list[str]:
    """What Helen's certificate is for: the given names, this host's, and this machine by itself."""
    import os

    host = os.uname().nodename
    known = [host] if host.isascii() and all(host.split(".")) else []
    return list(dict.fromkeys([*names, *known, *LOCAL_NAMES]))


def config_text(folder: Path, identity: str, broker: str, names: Sequence[str], port: int) -> str:
    """A helen.zpl that is ready to run."""
    lines = [
        "# Helen: `scale0 helen --config` runs her. Every key is in docs/configuration.md.",
        f"identity = {identity}",
        f"broker = {broker}",
        f"bind = {'*' if names else '127.0.0.1'}",
        f"helen_port = {port}",
        *([f"advertise = {names[0]}"] if names else []),
        f"certificate = {quoted(folder / 'helen.pem')}",
        f"private_key = {quoted(folder / 'helen-key.pem')}",
        f"client_ca = {quoted(folder / 'agents-ca.pem')}",
        f"data_dir = {quoted(folder)}",
    ]
    return "".join(f"{line}\n" for line in lines)


def quoted(path: Path) -> str:
    """A path as a value of ZPL."""
    quote = '"' if "'" in str(path) else "'"
    return f"{quote}{path}{quote}"


@click.command()
@click.option("--name", default="", metavar="AGENT", help="The only name that it is for; without it, any that is free.")
@click.option(
    "--minutes", type=click.IntRange(1, MAX_MINUTES), default=60, show_default=True, help="How long it holds."
)
@click.option("--at", "place", metavar="HOST[:PORT]", help="Where agents find Helen (from DIR/helen.zpl, if it says).")
@data_dir_option
@json_option
def token(name: str, minutes: int, place: str | None, data_dir: Path, wants_json: bool) -> None:
    """Print a token that lets one agent in, once.

    It is shown this one time: Helen keeps its hash alone.

    \b
    Examples:
      scale0 helen token
      scale0 helen token --name web-1 --minutes 10 --data-dir /var/lib/scale0/helen
    With --json, an object: token, name, place, expires
    """
    from scale0.monitoring.pki.authority import AuthorityError, CertificateAuthority

    place = checked_place(place) if place is not None else place_of(data_dir / CONFIG_FILE)
    now = time.time()
    try:
        made = CertificateAuthority(data_dir).make_token(now, minutes, name, place)
    except ValueError as error:
        raise errors.CommandError(f"--name: {error}", "choose another", errors.USAGE) from error
    except AuthorityError as error:
        raise errors.CommandError(str(error), "name Helen's folder with --data-dir") from error
    if wants_json:
        expires = now + minutes * 60
        output.say(output.as_json({"token": made.text(), "name": name, "place": place, "expires": expires}))
        return
    output.say(made.text())
    if sys.stderr.isatty():
        host = "" if place else " HOST"
        output.note(f"for {name or 'one agent'}, once, within {minutes} min. On that machine:")
        output.note(f"  next: scale0 agent enrol{host} --token TOKEN")


def checked_place(place: str) -> str:
    """An address as a token has it."""
    from scale0.config.value_types import DEFAULT_HELEN_PORT, split_address

    parts = split_address(place, DEFAULT_HELEN_PORT)
    if parts is None:
        raise errors.CommandError(
            f"--at: {place!r} is not HOST or HOST:PORT", "give the address of Helen", errors.USAGE
        )
    return f"{parts[0]}:{parts[1]}"


def place_of(config: Path) -> str:
    """Where agents find Helen, as far as her file says it."""
    from scale0.config import HelenConfig
    from scale0.config.edge.files import read_config
    from scale0.kernel.errors import ConfigError

    try:
        found = read_config(config, HelenConfig)
    except ConfigError:
        return ""  # a token needs no file: the agent is told where Helen is
    host = f"[{found.advertise}]" if ":" in found.advertise else found.advertise
    return f"{host}:{found.helen_port}" if host and found.helen_port else ""
