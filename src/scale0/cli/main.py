"""The command `scale0`.

Lives here: the root command, and how errors end. Never here: what a command does. Invariant: nothing heavy is imported
before a command needs it, so that help and completion are quick.
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
    """A service network: a broker, workers that offer functions, calls to them, and agents that watch machines.

    \b
    Start here:
      scale0 demo                          see it work, and survive kill -9
      scale0 up                            a broker here, and what watches this machine
      scale0 worker hello.py:worker        offer the functions of a file
      scale0 call hello world              have one done
      scale0 task submit hello world       the same, whoever dies meanwhile
      scale0 checks                        how is every machine that is watched?
      scale0 status                        what is wrong, and what to type next
      scale0 top                           the same, live
      scale0 doctor                        is this machine fit for it, and what to do

    Commands ask the broker at 127.0.0.1, or at --join HOST[:PORT], or at SCALE0_JOIN. Reading commands take --json.
    Exit codes: 0 yes, 1 no or unhealthy, 2 wrong usage, 3 not reachable.
    """


def main() -> None:
    """Run, and turn errors into lines that say what to do."""
    stdout = sys.stdout
    try:
        status = cli.main(prog_name="scale0", standalone_mode=False)
        sys.stdout.flush()
    except errors.CommandError as trouble:
        trouble.show()
        sys.exit(trouble.status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo(err=True)
        sys.exit(errors.INTERRUPTED)
    except SystemExit as end:
        # Whoever read our output has enough of it: that is no error. click puts another stdout there, and says 1.
        sys.exit(end.code if sys.stdout is stdout else 0)
    except (Scale0Error, OSError) as error:
        found = errors.trouble_of(error)
        found.show()
        sys.exit(found.status)
    sys.exit(status if isinstance(status, int) else 0)
