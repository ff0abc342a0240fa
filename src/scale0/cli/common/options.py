"""Options that several commands share: `--watch`, `--json` and `--log-format`.

With `--watch`, an error in the first run ends the command. Later errors are shown, and only Ctrl-C or a closed output
ends it.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from scale0.cli.common import errors, output
from scale0.kernel.errors import Scale0Error

WATCH_SECONDS: Final = 1.0
LOG_FORMAT: Final = "SCALE0_LOG_FORMAT"
"""The same as in `kernel.edge.log_setup`, which would make `--help` slow to import."""

Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """One decorator for several options, which the help lists in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


watch_option = click.option("--watch", is_flag=True, help="Repeat every second, until Ctrl-C.")
json_option = click.option("--json", "wants_json", is_flag=True, help="Print one JSON value to stdout.")


def repeat(show: Callable[[], None], watch: bool, wants_json: bool) -> None:
    """Show once, or with `watch` until Ctrl-C."""
    show()
    while watch:
        time.sleep(WATCH_SECONDS)
        if output.on_terminal() and not wants_json:
            click.clear()
        try:
            show()
        except errors.CommandError as error:
            error.show()
        except BrokenPipeError:
            raise  # the reader of the output has gone
        except (Scale0Error, OSError) as error:
            errors.command_error(error).show()
        sys.stdout.flush()


def with_watch(command: Command) -> Command:
    """Give a command `--watch`, which repeats all of it. Without it, the command's exit code stays."""

    @functools.wraps(command)
    def repeated(*args: Any, watch: bool, **rest: Any) -> Any:
        if not watch:
            return command(*args, **rest)

        def show() -> None:
            try:
                command(*args, **rest)
            except SystemExit:
                pass  # the exit code of one repetition

        repeat(show, True, bool(rest.get("wants_json")))
        return None

    wrapped: Any = watch_option(repeated)
    return wrapped  # type: ignore[no-any-return]


def _set_log_format(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        os.environ[LOG_FORMAT] = value  # the environment passes it on to the processes that the command starts


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar=LOG_FORMAT,
    help="The format of log lines (text).",
    callback=_set_log_format,
    expose_value=False,
)
