"""Looking again: `--watch` and `--json`, for every command that reads.

Lives here: both options, and the loop. Never here: what is shown. Invariants: what is wrong at the first look ends the
command; after that a watcher sees things go and come back, and only Ctrl-C, or whoever reads the output, ends it.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from scale0.cli.common import errors, output
from scale0.kernel.errors import Scale0Error

WATCH_SECONDS: Final = 1.0
"""How often --watch looks again."""

Command = TypeVar("Command", bound=Callable[..., Any])

watch_option = click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")
json_option = click.option("--json", "wants_json", is_flag=True, help="One JSON value on stdout.")


def shown_again(show: Callable[[], None], watch: bool, wants_json: bool) -> None:
    """Show once, or until Ctrl-C."""
    show()
    while watch:
        time.sleep(WATCH_SECONDS)
        if output.on_terminal() and not wants_json:
            click.clear()
        try:
            show()
        except errors.CommandError as trouble:
            trouble.show()
        except BrokenPipeError:
            raise  # nobody reads any more
        except (Scale0Error, OSError) as error:
            errors.trouble_of(error).show()
        sys.stdout.flush()


def watched(command: Command) -> Command:
    """Give a command `--watch`: all of it is done again every second. Its exit code is that of a look by itself."""

    @functools.wraps(command)
    def again(*args: Any, watch: bool, **rest: Any) -> Any:
        if not watch:
            return command(*args, **rest)

        def look() -> None:
            try:
                command(*args, **rest)
            except SystemExit:
                pass  # it says how one look went; there is another

        shown_again(look, True, bool(rest.get("wants_json")))
        return None

    wrapped: Any = watch_option(again)
    return wrapped  # type: ignore[no-any-return]
