"""`--log-format`: how a process that stays writes its log.

Lives here: the option. Never here: a format. Invariant: the environment carries the choice, so that every process that
the command starts follows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

VARIABLE = "SCALE0_LOG_FORMAT"
"""As `kernel.edge.log_setup` has it: that is imported by whoever logs, and not by `--help`."""


def log_format(command: Command) -> Command:
    """The option, for a command that logs."""
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        envvar=VARIABLE,
        help="Log lines for people, or as JSON (text).",
        callback=_remember,
        expose_value=False,
    )(command)


def _remember(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        os.environ[VARIABLE] = value
