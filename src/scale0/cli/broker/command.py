"""`scale0 broker`: one broker in the foreground.

Lives here: a file and flags as one configuration. Never here: how a broker runs. Invariants: a flag wins over the file;
what is wrong is said before anything is opened.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from scale0.cli.common.joining import token_option
from scale0.cli.common.log_format import log_format

if TYPE_CHECKING:
    from scale0.broker.core.broker import Broker
    from scale0.broker.main.http_settings import HttpReady
    from scale0.config import BrokerConfig

Command = TypeVar("Command", bound=Callable[..., Any])

PORTS: Final = ("frontend", "backend", "peer", "config_pub", "task_pub")


def port_option(name: str, default: int) -> Callable[[Command], Command]:
    """`--frontend-port` and its like."""
    return click.option(
        f"--{name.replace('_', '-')}-port",
        type=click.IntRange(0, 65_535),
        metavar="PORT",
        help=f"{default} unless the file says; 0: any.",
    )


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Its file: .json, .xml or .zpl.")
@click.option("--identity", help="Its name in the network (default: from the file, else the host's name).")
@click.option("--data-dir", help="Where it keeps its store.")
@click.option("--bind", metavar="HOST", help="The address to listen on (127.0.0.1).")
@port_option("frontend", 5700)
@port_option("backend", 5701)
@port_option("peer", 5702)
@port_option("config_pub", 5703)
@port_option("task_pub", 5704)
@click.option("--group", help="The group that it belongs to.")
@click.option(
    "--join",
    "joined",
    multiple=True,
    metavar="HOST[:PORT]",
    help="Another broker (its peer port, 5702); may be repeated.",
)
@click.option("--standby-for", metavar="BROKER", help="Serve the clients of this one while it does not; needs --join.")
@click.option("--service", "services", multiple=True, help="Serve only this; may be repeated. Default: all.")
@click.option("--insecure", is_flag=True, default=None, help="Listen beyond loopback without keys: the net is trusted.")
@log_format
@click.option("--curve", is_flag=True, default=None, help="Let in those with a key alone; see `scale0 keys`.")
@token_option
def broker(
    config_file: Path | None,
    services: tuple[str, ...],
    joined: tuple[str, ...],
    token_text: str | None,
    **flags: Any,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    It prints one line that starts with `ready` when it serves, and logs to stderr. Flags win over the file.

    \b
    Examples:
      scale0 broker --config east-1.zpl
      scale0 broker --identity east-1 --data-dir var/east-1
      scale0 broker --data-dir trial --frontend-port 0 --backend-port 0 --peer-port 0 \\
          --config-pub-port 0 --task-pub-port 0
      scale0 broker --identity east-2 --group east --join 10.0.0.1 --token TOKEN
      scale0 broker --identity spare --group east --join 10.0.0.1 --standby-for east-1 --token TOKEN
    """
    from scale0.broker.main.process import run_broker
    from scale0.config import BrokerConfig
    from scale0.config.edge.files import read_config
    from scale0.kernel.edge.log_setup import log_to_stderr

    config = read_config(config_file, BrokerConfig) if config_file else BrokerConfig()
    changes = {name: value for name, value in flags.items() if value is not None}
    if services:
        changes["services"] = list(services)
    if joined:
        changes["peers"] = [*config.peers, *(peer_of(word) for word in joined)]
    changes.setdefault("identity", config.identity or default_identity())
    log_to_stderr(changes["identity"])
    if token_text:
        changes["curve"] = True
    config = changed(config, changes)
    if token_text:
        join_network(config, token_text)
    sys.exit(run_broker(config, config_file, say_ready, say_served))


def join_network(config: BrokerConfig, token_text: str) -> None:
    """Become a peer of the first broker of `peers`, by token."""
    from scale0.broker.edge.join_tokens import join_peer
    from scale0.broker.edge.key_folder import KeyFolder
    from scale0.cli.common.joining import read_token, trouble_of
    from scale0.transport.edge.joining import JoinError

    if not config.peers:
        raise click.UsageError("--token joins the broker of --join: name it")
    try:
        join_peer(config.peers[0], read_token(token_text, "peer"), config.identity, KeyFolder(Path(config.data_dir)))
    except JoinError as error:
        raise trouble_of(error, config.peers[0]) from error


def peer_of(word: str) -> str:
    """Another broker's address as an endpoint."""
    from scale0.cli.common.endpoints import PEER_PORT, endpoint_of

    try:
        return endpoint_of(word, PEER_PORT)
    except ValueError as error:
        raise click.BadParameter(
            f"{error}; for example 10.0.0.1, or east-1.example.com:5702", param_hint="--join"
        ) from error


def changed(config: BrokerConfig, changes: dict[str, Any]) -> BrokerConfig:
    """The configuration with flags on top, each checked as if it stood in the file."""
    import msgspec

    from scale0.config import BrokerConfig, parse
    from scale0.kernel.errors import ConfigError

    try:
        asked = parse(json.dumps(changes).encode(), "json", BrokerConfig)
    except ConfigError as error:
        reasons = [reason.removeprefix("line 1: ") for reason in error.reasons]
        raise ConfigError(reasons) from error
    return msgspec.structs.replace(config, **{name: getattr(asked, name) for name in changes})


def default_identity() -> str:
    """The host's name, as far as an identity may hold it."""
    import os

    name = os.uname().nodename
    return "".join(c if c.isascii() and (c.isalnum() or c in "._:-") else "-" for c in name)[:128] or "broker"


def say_served(now: HttpReady) -> None:
    """Where the console is, beside the line that scripts wait for; and on the first start a way in.

    A link is as good as a password until it is used: it goes to a terminal, and into no log that stderr may be.
    """
    click.echo(f"console: {now.url}", err=True)
    if now.link and sys.stderr.isatty():
        click.echo(f"open this within ten minutes; it works once: {now.link}", err=True)
    elif now.link:
        click.echo("a way in, for ten minutes: `scale0 access link` with this broker's --data-dir", err=True)


def say_ready(running: Broker) -> None:
    """The one line that scripts wait for; systemd is told, too."""
    from scale0.kernel.edge.systemd import tell_ready

    places = " ".join(f"{name}={place}" for name, place in running.state.endpoints.items() if "://" in place)
    click.echo(f"ready {running.state.identity} {places}")
    sys.stdout.flush()
    tell_ready()
