"""The root command `scale0`, and how errors end it.

Heavy modules are imported only when a command needs them, so that help and completion are fast.
"""

from __future__ import annotations

import sys

import click

from scale0 import __version__
from scale0.cli.command_table import EXTRAS, CommandTable
from scale0.cli.common import errors
from scale0.kernel.edge.extras import install_command, missing
from scale0.kernel.errors import Scale0Error

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class RootGroup(click.Group):
    """The root command: it checks that the packages of a command are installed before it runs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        needed = EXTRAS.get(name or "", ())
        if needed and not {"--help", "-h"} & set(rest) and (absent := missing(needed)):
            raise errors.CommandError(
                f"scale0 {name}: packages that it needs are not installed", install_command(absent), errors.USAGE
            )
        return name, command, rest


@click.group(cls=RootGroup, context_settings=CONTEXT, commands=CommandTable())
@click.version_option(__version__, prog_name="scale0")
def cli() -> None:
    """A service network: a broker, workers that offer functions, durable tasks, and monitoring agents.

    \b
    Start here:
      scale0 demo                          a network that survives kill -9
      scale0 up                            start a broker and monitoring on this machine
      scale0 worker hello.py:worker        offer the functions of a file
      scale0 call hello world              call one
      scale0 task submit hello world       the same as a durable task
      scale0 checks                        the state of every monitored machine
      scale0 status                        problems, and what to do about them
      scale0 top                           the same, live
      scale0 doctor                        check that this machine is fit for Scale0

    Commands connect to the broker at --join HOST[:PORT], SCALE0_JOIN or 127.0.0.1. Reading commands have --json.
    Exit codes: 0 yes, 1 no or unhealthy, 2 wrong usage, 3 not reachable.
    """


def main() -> None:
    """Run the command line; errors become a message with the next step."""
    stdout = sys.stdout
    try:
        status = cli.main(prog_name="scale0", standalone_mode=False)
        sys.stdout.flush()
    except errors.CommandError as error:
        error.show()
        sys.exit(error.status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo(err=True)
        sys.exit(errors.INTERRUPTED)
    except SystemExit as end:
        # A closed output is not an error; click replaces stdout then, and exits with 1.
        sys.exit(end.code if sys.stdout is stdout else 0)
    except (Scale0Error, OSError) as error:
        found = errors.command_error(error)
        found.show()
        sys.exit(found.status)
    sys.exit(status if isinstance(status, int) else 0)
