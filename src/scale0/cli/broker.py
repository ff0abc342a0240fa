"""`scale0 broker`: one broker in the foreground."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click
import msgspec

from scale0.broker.broker import Broker
from scale0.config import BrokerConfig
from scale0.io.files import read_config
from scale0.io.process import run_broker


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Its file: .json, .xml or .zpl.")
@click.option("--identity", help="Its name in the network (default: from the file, else the host's name).")
@click.option("--data-dir", help="Where it keeps its store.")
def broker(config_file: Path | None, identity: str | None, data_dir: str | None) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    It prints one line that starts with `ready` when it serves, and logs to stderr.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = read_config(config_file, BrokerConfig) if config_file else BrokerConfig()
    changes = {"identity": identity or config.identity or default_identity()}
    if data_dir:
        changes["data_dir"] = data_dir
    config = msgspec.structs.replace(config, **changes)
    sys.exit(run_broker(config, config_file, say_ready))


def default_identity() -> str:
    """The host's name, as far as an identity may hold it."""
    import os

    name = os.uname().nodename
    return "".join(c if c.isascii() and (c.isalnum() or c in "._:-") else "-" for c in name)[:128] or "broker"


def say_ready(running: Broker) -> None:
    """The one line that scripts wait for."""
    places = " ".join(f"{name}={place}" for name, place in running.state.endpoints.items())
    click.echo(f"ready {running.state.identity} {places}")
    sys.stdout.flush()
