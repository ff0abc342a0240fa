"""The command `scale0`.

Lives here: the root command, and what all commands share. Never here: what a command does.
"""

from __future__ import annotations

import sys

import click

from scale0 import __version__
from scale0.base.errors import Scale0Error
from scale0.cli.broker import broker

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="scale0")
def cli() -> None:
    """A service network: brokers, workers, tasks, monitoring."""


cli.add_command(broker)


def main() -> None:
    """Run, and turn errors into one line that says what to do."""
    try:
        cli.main(prog_name="scale0", standalone_mode=True)
    except (Scale0Error, OSError) as error:
        click.echo(f"scale0: {error}", err=True)
        sys.exit(2)
