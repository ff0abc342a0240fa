"""`scale0 helen`: run Helen, create her authority, and make enrolment tokens.

A token is the only secret that is shown, on stdout and alone on its line. Existing files are never overwritten.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.endpoints import default_identity, key_options
from scale0.cli.common.joining import join, token_option
from scale0.cli.common.options import json_option, log_format_option
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.edge.systemd import notify_ready
from scale0.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scale0.monitoring.helen.core.helen import Helen

DEFAULT_FOLDER: Final = "helen"
FOLDER_VARIABLE: Final = "SCALE0_HELEN_DIR"
CONFIG_FILE: Final = "helen.zpl"
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
MAX_MINUTES: Final = 7 * 24 * 60
"""A week."""

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    envvar=FOLDER_VARIABLE,
    show_default=True,
    help=f"Helen's folder, made by `scale0 helen init` ({FOLDER_VARIABLE}).",
)


@click.group(invoke_without_command=True)
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="Her configuration file: .json, .xml or .zpl."
)
@log_format_option
@key_options
@token_option
@click.pass_context
def helen(context: click.Context, config_file: Path | None, token_text: str | None) -> None:
    """Run Helen, the monitoring server for agents.

    She runs until SIGTERM or Ctrl-C. She prints one line that starts with `ready` when she serves, and logs to stderr.
    She reads the files of her certificate again on SIGHUP, and when they change.

    \b
    Examples:
      scale0 helen init helen --name helen.example.org
      scale0 helen --config helen/helen.zpl
      scale0 helen token --data-dir helen
    """
    if context.invoked_subcommand is not None:
        if config_file is not None:
            raise click.UsageError("--config belongs to `scale0 helen` itself, not to a subcommand")
        return
    if config_file is None:
        raise click.UsageError("--config FILE is required; `scale0 helen init` makes one")
    from scale0.config import HelenConfig
    from scale0.config.edge.files import read_config
    from scale0.kernel.edge.log_setup import log_to_stderr
    from scale0.monitoring.helen.edge.process import run_helen

    config = read_config(config_file, HelenConfig)
    log_to_stderr(config.identity)
    if token_text:
        join(config.broker_endpoint(), "helen", token_text, None, config.identity)
    sys.exit(run_helen(config, say_ready))


def say_ready(running: Helen, port: int) -> None:
    """Print the line that scripts wait for, and notify systemd."""
    settings = running.state.settings
    output.say(f"ready {settings.identity} agents={settings.advertise} port={port}")
    notify_ready()


@helen.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=DEFAULT_FOLDER)
@click.option(
    "--name", "names", multiple=True, metavar="HOST", help="A host name or address that agents use; may be repeated."
)
@click.option("--identity", help="Her name in the network (helen-HOSTNAME).")
@click.option(
    "--broker", default="127.0.0.1", show_default=True, metavar="HOST[:PORT]", help="A broker's backend address."
)
@click.option("--port", type=click.IntRange(0, 65_535), default=4166, show_default=True, help="The port for agents.")
def init(folder: Path, names: tuple[str, ...], identity: str | None, broker: str, port: int) -> None:
    """Create a certificate authority, Helen's certificate and her configuration file in DIR.

    With --name she listens on every address, without it on loopback only. Existing files are not changed. Protect the
    keys in DIR: with them one can make agents and Helens.

    \b
    Examples:
      scale0 helen init
      scale0 helen init /var/lib/scale0/helen --name helen.example.com
    """
    from scale0.config import HelenConfig, parse
    from scale0.monitoring.pki.authority import AuthorityError, create_authority
    from scale0.monitoring.pki.certificates import subject_alternative_names

    config = folder / CONFIG_FILE
    try:
        subject_alternative_names(names)
        text = config_text(folder.absolute(), identity or f"helen-{default_identity()}"[:128], broker, names, port)
        parse(text.encode("utf-8", "surrogateescape"), "zpl", HelenConfig)
        if config.exists():
            raise AuthorityError(f"{config} already exists, and nothing was changed; choose another folder")
        create_authority(folder, own_names(names), time.time())
        write_secret(config, text)
    except ValueError as error:
        raise errors.CommandError(str(error), "--name must be a host name or an address", errors.USAGE) from error
    except AuthorityError as error:
        raise errors.CommandError(str(error), f"scale0 helen --config {config}") from error
    output.say(f"created an authority, Helen's certificate and {config}")
    output.note(f"  next: scale0 helen --config {config}")
    output.note(f"        scale0 helen token --data-dir {folder}")


def own_names(names: Sequence[str]) -> list[str]:
    """The names in Helen's certificate: the given ones, the host name, and loopback."""
    import os

    host = os.uname().nodename
    known = [host] if host.isascii() and all(host.split(".")) else []
    return list(dict.fromkeys([*names, *known, *LOCAL_NAMES]))


def config_text(folder: Path, identity: str, broker: str, names: Sequence[str], port: int) -> str:
    lines = [
        "# Helen: run her with `scale0 helen --config`. docs/configuration.md describes every key.",
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
    quote = '"' if "'" in str(path) else "'"
    return f"{quote}{path}{quote}"


@helen.command()
@click.option("--name", default="", metavar="AGENT", help="The only name that it is valid for; default: any free name.")
@click.option(
    "--minutes", type=click.IntRange(1, MAX_MINUTES), default=60, show_default=True, help="How long it is valid."
)
@click.option(
    "--at", "address", metavar="HOST[:PORT]", help="Helen's address for agents (default: from DIR/helen.zpl)."
)
@data_dir_option
@json_option
def token(name: str, minutes: int, address: str | None, data_dir: Path, wants_json: bool) -> None:
    """Print a token with which one agent can enrol, once.

    It is shown only now: Helen stores only its hash.

    \b
    Examples:
      scale0 helen token
      scale0 helen token --name web-1 --minutes 10 --data-dir /var/lib/scale0/helen
    With --json, an object: token, name, place, expires
    """
    from scale0.monitoring.pki.authority import AuthorityError, CertificateAuthority

    address = checked_address(address) if address is not None else address_of(data_dir / CONFIG_FILE)
    now = time.time()
    try:
        made = CertificateAuthority(data_dir).make_token(now, minutes, name, address)
    except ValueError as error:
        raise errors.CommandError(f"--name: {error}", "choose another name", errors.USAGE) from error
    except AuthorityError as error:
        raise errors.CommandError(str(error), "give Helen's folder with --data-dir") from error
    if wants_json:
        expires = now + minutes * 60
        output.say(output.as_json({"token": made.text(), "name": name, "place": address, "expires": expires}))
        return
    output.say(made.text())
    if sys.stderr.isatty():
        host = "" if address else " HOST"
        output.note(f"valid for {name or 'one agent'}, once, for {minutes} min. On that machine:")
        output.note(f"  next: scale0 agent enrol{host} --token -")


def checked_address(text: str) -> str:
    from scale0.config.value_types import DEFAULT_HELEN_PORT, split_address

    parts = split_address(text, DEFAULT_HELEN_PORT)
    if parts is None:
        raise errors.CommandError(f"--at: {text!r} is not HOST or HOST:PORT", "give the address of Helen", errors.USAGE)
    return f"{parts[0]}:{parts[1]}"


def address_of(config: Path) -> str:
    """Helen's address for agents from her file; blank: not known."""
    from scale0.config import HelenConfig
    from scale0.config.edge.files import read_config

    try:
        found = read_config(config, HelenConfig)
    except ConfigError:
        return ""  # a token needs no file: the address can be given to the agent
    host = f"[{found.advertise}]" if ":" in found.advertise else found.advertise
    return f"{host}:{found.helen_port}" if host and found.helen_port else ""
