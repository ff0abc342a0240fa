"""`scale0 helen`: Helen in the foreground, and what belongs to her.

Lives here: the command and its subcommands. Never here: how she runs (`monitoring.helen.edge`), or how an authority is
made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scale0.cli.common.endpoints import keyed
from scale0.cli.common.joining import join, token_option
from scale0.cli.common.log_format import log_format
from scale0.cli.monitoring.helen_init import init, token

if TYPE_CHECKING:
    from scale0.monitoring.helen.core.helen import Helen


@click.group(invoke_without_command=True)
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Her file: .json, .xml or .zpl.")
@log_format
@keyed
@token_option
@click.pass_context
def helen(context: click.Context, config_file: Path | None, token_text: str | None) -> None:
    """Run Helen, whom monitoring agents connect to, until SIGTERM or Ctrl-C.

    She prints one line that starts with `ready` when she serves, and logs to stderr. SIGHUP has her read the files of
    her certificate anew; she also notices by herself when they change.

    \b
    Examples:
      scale0 helen init helen --name helen.example.org
      scale0 helen --config helen/helen.zpl
      scale0 helen token --data-dir helen
    """
    if context.invoked_subcommand is not None:
        if config_file is not None:
            raise click.UsageError("--config is for running her, not for a subcommand")
        return
    if config_file is None:
        raise click.UsageError("name her file: scale0 helen --config FILE; `scale0 helen init` makes one")
    from scale0.config import HelenConfig
    from scale0.config.edge.files import read_config
    from scale0.kernel.edge.log_setup import log_to_stderr
    from scale0.monitoring.helen.edge.process import run_helen

    config = read_config(config_file, HelenConfig)
    log_to_stderr(config.identity)
    if token_text:
        join(config.broker_endpoint(), "backend", token_text, config.identity)
    sys.exit(run_helen(config, say_ready))


def say_ready(running: Helen, port: int) -> None:
    """The one line that scripts wait for; systemd is told, too."""
    from scale0.kernel.edge.systemd import tell_ready

    settings = running.state.settings
    click.echo(f"ready {settings.identity} agents={settings.advertise} port={port}")
    sys.stdout.flush()
    tell_ready()


helen.add_command(init)
helen.add_command(token)
