"""`scale0 broker`: run one broker in the foreground.

An option overrides the file. Errors in the configuration are reported before anything is opened.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from scale0.cli.common.endpoints import PEER_PORT, default_identity, endpoint_of
from scale0.cli.common.joining import join_error, read_token, token_option
from scale0.cli.common.options import log_format_option
from scale0.kernel.edge.systemd import notify_ready
from scale0.kernel.errors import ConfigError

if TYPE_CHECKING:
    from scale0.broker.core.broker import Broker
    from scale0.broker.main.http_settings import HttpReady
    from scale0.config import BrokerConfig

Command = TypeVar("Command", bound=Callable[..., Any])

PORTS: Final = ("frontend", "backend", "peer", "config_pub", "task_pub")


def port_option(name: str, default: int) -> Callable[[Command], Command]:
    return click.option(
        f"--{name.replace('_', '-')}-port",
        type=click.IntRange(0, 65_535),
        metavar="PORT",
        help=f"Default: from the file, else {default}; 0: any.",
    )


@click.command()
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="Its configuration file: .json, .xml or .zpl."
)
@click.option("--identity", help="Its name in the network (default: from the file, else the host name).")
@click.option("--data-dir", help="The folder for its data.")
@click.option("--bind", metavar="HOST", help="The address to listen on (127.0.0.1).")
@port_option("frontend", 5700)
@port_option("backend", 5701)
@port_option("peer", 5702)
@port_option("config_pub", 5703)
@port_option("task_pub", 5704)
@click.option("--group", help="Its group.")
@click.option(
    "--join",
    "joined",
    multiple=True,
    metavar="HOST[:PORT]",
    help="The peer address of another broker (port 5702); may be repeated.",
)
@click.option("--standby-for", metavar="BROKER", help="Be the standby of this broker; needs --join.")
@click.option("--service", "services", multiple=True, help="Serve only this service; may be repeated (all).")
@click.option("--insecure", is_flag=True, default=None, help="Accept every client without keys, in a trusted network.")
@log_format_option
@click.option(
    "--curve", is_flag=True, default=None, help="Accept only clients with a key (the default of new data directories)."
)
@token_option
def broker(
    config_file: Path | None,
    services: tuple[str, ...],
    joined: tuple[str, ...],
    token_text: str | None,
    **flags: Any,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    It prints one line that starts with `ready` when it serves, and logs to stderr. Options override the file.

    \b
    Examples:
      scale0 broker --config east-1.zpl
      scale0 broker --identity east-1 --data-dir var/east-1
      scale0 broker --data-dir trial --frontend-port 0 --backend-port 0 --peer-port 0 \\
          --config-pub-port 0 --task-pub-port 0
      scale0 broker --identity east-2 --group east --join 10.0.0.1 --token - < token
      scale0 broker --identity spare --group east --join 10.0.0.1 --standby-for east-1 --token - < token
    """
    from scale0.broker.main.preflight import with_keys_decided
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
    config = with_keys_decided(changed(config, changes))
    if token_text:
        join_network(config, token_text)
    elif config.curve:
        join_local_brokers(config)
    sys.exit(run_broker(config, config_file, say_ready, say_console))


def join_network(config: BrokerConfig, token_text: str) -> None:
    """Become a peer of the first broker in `peers`, with a token."""
    from scale0.broker.edge.join_tokens import join_peer
    from scale0.broker.edge.key_folder import KeyFolder
    from scale0.transport.edge.joining import JoinError

    if not config.peers:
        raise click.UsageError("--token needs --join HOST, the broker to join")
    try:
        join_peer(config.peers[0], read_token(token_text, "peer"), config.identity, KeyFolder(Path(config.data_dir)))
    except JoinError as error:
        raise join_error(error, config.peers[0]) from error


def join_local_brokers(config: BrokerConfig) -> None:
    """Become a peer of the brokers in `peers` that the same user runs on this machine."""
    from scale0.broker.edge.join_tokens import join_local_peer
    from scale0.broker.edge.key_folder import KeyFolder
    from scale0.transport.edge.joining import JoinError
    from scale0.transport.edge.local_keys import key_folder_of

    for endpoint in config.peers:
        found = key_folder_of(endpoint)
        if found is not None:
            try:
                join_local_peer(endpoint, KeyFolder(found.parent), config.identity, KeyFolder(Path(config.data_dir)))
            except JoinError as error:
                raise join_error(error, endpoint) from error


def peer_of(word: str) -> str:
    try:
        return endpoint_of(word, PEER_PORT)
    except ValueError as error:
        raise click.BadParameter(
            f"{error}; for example 10.0.0.1, or east-1.example.com:5702", param_hint="--join"
        ) from error


def changed(config: BrokerConfig, changes: dict[str, Any]) -> BrokerConfig:
    """The configuration with the options on top, each checked as if it were in the file."""
    import msgspec

    from scale0.config import BrokerConfig, parse

    try:
        parsed = parse(json.dumps(changes).encode(), "json", BrokerConfig)
    except ConfigError as error:
        reasons = [reason.removeprefix("line 1: ") for reason in error.reasons]
        raise ConfigError(reasons) from error
    return msgspec.structs.replace(config, **{name: getattr(parsed, name) for name in changes})


def say_console(now: HttpReady) -> None:
    """Print the console's address, and on the first start how to log in.

    A link is as good as a password until it is used, so it goes to a terminal only, and never into a log.
    """
    click.echo(f"console: {now.url}", err=True)
    if now.link and sys.stderr.isatty():
        click.echo(f"this link opens it once, within ten minutes: {now.link}", err=True)
    elif now.link:
        click.echo("to log in, make a link with `scale0 access link` and this broker's --data-dir", err=True)


def say_ready(running: Broker) -> None:
    """Print the line that scripts wait for, and notify systemd."""
    endpoints = " ".join(f"{name}={value}" for name, value in running.state.endpoints.items() if "://" in value)
    click.echo(f"ready {running.state.identity} {endpoints}")
    sys.stdout.flush()
    notify_ready()
