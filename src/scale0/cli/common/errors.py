"""Foreseeable errors as an exit code, one line that names the problem, and one with the next step."""

from __future__ import annotations

import errno
from typing import Final

import click

from scale0.cli.common.output import clean
from scale0.kernel import codes
from scale0.kernel.errors import ConfigError, Scale0Error

NO: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130
"""What a shell expects after Ctrl-C."""

NEXT: Final = {
    codes.MALFORMED: "give arguments by position or as key=value; each is JSON or else text, so '\"5\"' is the text 5",
    codes.WRONG_CREDENTIALS: "give --data-dir FOLDER (on the broker's machine), --token, or --auth-id NAME",
    codes.NOT_ALLOWED: "use an account with that role: `admins` in the broker's file lists them",
    codes.NO_SUCH_SERVICE: "list the services with `scale0 services`, or offer one with `scale0 worker`",
    codes.IN_USE: "choose another identity, or stop the other client: `scale0 clients` lists them",
    codes.TOO_BIG: "send less at once, or raise the limit in the broker's file",
    codes.TOO_MANY: "try again later, or add workers: `scale0 services` shows the queues",
    codes.FAILED: "the traceback is in the worker's log",
    codes.BACKEND_DIED: "add --retry if it may run twice",
    codes.NOT_SERVING: "see `scale0 status`; `scale0 enable` enables a broker again",
    codes.NO_ANSWER: "allow more time with --timeout, or look for busy workers with `scale0 services`",
    codes.UNREACHABLE: "start one with `scale0 up`, or name one with --join; if it is disabled, see `scale0 status`",
}

NO_SPACE: Final = {
    errno.ENOSPC: "free some space on that disk: `scale0 doctor` shows what is left",
    errno.EDQUOT: "free some space, or raise the quota of this user",
    errno.EROFS: "mount the disk for writing, or choose another data_dir",
}


class CommandError(click.ClickException):
    """An error of a command: the problem and the next step."""

    def __init__(self, what: str, next_step: str = "", exit_code: int = NO) -> None:
        super().__init__(what)
        self.next_step = next_step
        self.status = exit_code

    def show(self, file: object = None) -> None:
        click.echo(f"scale0: {clean(self.message)}", err=True)
        if self.next_step:
            click.echo(f"  next: {self.next_step}", err=True)


def command_error(error: Exception) -> CommandError:
    code = getattr(error, "code", None)
    match error:
        case ConfigError():
            return CommandError("\n  ".join(error.reasons), "check a file with `scale0 config check FILE`", USAGE)
        case Scale0Error() if isinstance(code, int):
            return _of_code(code, getattr(error, "service", ""), getattr(error, "message", str(error)))
        case OSError() if error.errno in NO_SPACE and error.filename:
            return CommandError(f"cannot write {error.filename}: {error.strerror}", NO_SPACE[error.errno])
        case OSError() if error.strerror and not error.filename:
            return CommandError(error.strerror)
        case _:
            return CommandError(str(error))


def _of_code(code: int, service: str, message: str) -> CommandError:
    hint = NEXT.get(code, "")
    match code:
        case codes.UNREACHABLE:
            return CommandError(f"no broker answers: {message}", hint, UNREACHABLE)
        case codes.CONFIG_TYPE_UNKNOWN:
            return CommandError(message, "the format of a file follows from its suffix", USAGE)
        case codes.FAILED:
            return CommandError(f"{service} failed: {message}", hint)
        case codes.MALFORMED if service:
            return CommandError(f"{service} does not accept these arguments: {message}", hint)
        case _:
            where = f"{service}: " if service and service not in message else ""
            return CommandError(f"{where}{message} ({code} {codes.MEANINGS.get(code, 'error')})", hint)
