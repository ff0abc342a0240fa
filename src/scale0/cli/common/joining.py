"""`--token`: join an encrypted network by one word; and scrubbing secrets from the command line.

No secret is shown, an error never repeats the token, and no token stays in the list of processes. A token that can be
used more than once is refused on the command line: shells keep it in their history.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from scale0.cli.common import errors, output
from scale0.cli.common.endpoints import default_identity
from scale0.kernel import codes
from scale0.kernel.edge.secret_files import read_secret
from scale0.kernel.errors import ConfigError
from scale0.transport.core.sockets import BACKEND, HELEN

if TYPE_CHECKING:
    from scale0.transport.edge.joining import JoinToken

JOIN_TOKEN: Final = "SCALE0_JOIN_TOKEN"
JOIN_PREFIX: Final = "s0join."
"""Of a join token, which is not a management token."""
MAX_TOKEN_LINE: Final = 2_000
SAFER: Final = "give --token - (stdin) or --token @FILE, or set"
MADE_BY: Final = "make one with `scale0 token` on the broker's machine"
ARG_START: Final = 48
"""The field of /proc/self/stat with the address of the command line; the next one has its end."""


def secret_option(name: str, envvar: str, what: str, once: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """The option `--token`, which takes `-` for a line of stdin, or `@FILE`; and, with a warning, a token that begins
    with one of `once`, because that is worth nothing once it was used."""

    def read(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
        if not text:
            return text
        if text == "-":
            return sys.stdin.readline(MAX_TOKEN_LINE).strip()
        if text.startswith("@"):
            found = read_secret(Path(text[1:]))
            if found is None:
                raise click.BadParameter(f"cannot read {text[1:]}")
            return found
        scrub_argv(text)
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            if not text.startswith(once):
                raise click.BadParameter(
                    f"a token is not taken from the command line, which others can see: {SAFER} {envvar}"
                )
            output.note(f"warning: other users can see a token on the command line: {SAFER} {envvar}")
        return text

    help_ = f"{what}; -: from stdin; @FILE: from a file ({envvar})."
    return click.option("--token", name, envvar=envvar, help=help_, callback=read)


token_option = secret_option("token_text", JOIN_TOKEN, "A join token of `scale0 token`", (JOIN_PREFIX,))


def read_token(text: str, role: str) -> JoinToken:
    """The given token, or an error that does not repeat it."""
    from scale0.transport.edge.joining import read_join_token

    token = read_join_token(text)
    if token is None:
        raise errors.CommandError("the value of --token is not a join token", MADE_BY, errors.USAGE)
    # With rules of its own, also the token of a worker suffices for a Helen.
    if token.role != role and (token.role, role) != (BACKEND, HELEN):
        raise errors.CommandError(
            f"the token is for a {token.role}, but this is a {role}",
            f"make one with `scale0 token {role}`",
            errors.USAGE,
        )
    return token


def join(endpoint: str, role: str, text: str, name: str | None, default: str) -> tuple[Path, str]:
    """Exchange a token for a certificate of this user; returns its path and its name: `name`, or `default` for a new
    one."""
    from scale0.transport.edge.joining import JoinError, KeyNamedError, join_client, key_path

    token = read_token(text, role)
    try:
        path, called, fresh = join_client(endpoint, token, name, default)
    except KeyNamedError as error:
        raise key_named(error.path, str(error), error.name) from error
    except JoinError as error:
        raise join_error(error, endpoint) from error
    except ConfigError as error:
        path = key_path(endpoint, token.role)
        raise errors.CommandError(
            "\n  ".join(error.reasons), f"correct it, or delete it (rm {path}) and join again", errors.USAGE
        ) from error
    if fresh:
        output.note(f"joined {endpoint} as {called}; the key is in {path}, and the token is not needed again")
    return path, called


def check_name(endpoints: Sequence[str], name: str) -> None:
    """An error unless the key for these endpoints has this name: only --token obtains a key with a new name."""
    from scale0.transport.edge.client_keys import find_keys

    keys = find_keys(endpoints)
    if keys is None:
        raise click.UsageError("--name is the name of the key that --token obtains: give --token, or leave out --name")
    if keys.own.name != name:
        raise key_named(keys.path, f"the name of the key in {keys.path} is {keys.own.name}, not {name}", name)


def key_named(path: Path, what: str, name: str) -> errors.CommandError:
    """A key with another name than --name: the two ways on."""
    return errors.CommandError(
        what,
        f"leave out --name to use that key, or delete it (rm {path}) and join as {name} with a token of `scale0 token`",
        errors.USAGE,
    )


def join_error(error: Exception, endpoint: str) -> errors.CommandError:

    code, message = getattr(error, "code", 0), getattr(error, "message", str(error))
    match code:
        case codes.UNREACHABLE | codes.NO_ANSWER:
            return errors.CommandError(
                f"{endpoint}: {message}", "check that this is the port for the token's role", errors.UNREACHABLE
            )
        case codes.IN_USE:
            return errors.CommandError(f"{endpoint}: {message}", "choose another name with --name")
        case _:
            return errors.CommandError(f"{endpoint}: {message}", MADE_BY)


def default_name() -> str:
    """The host name, as far as it is a valid name of a key."""
    return default_identity().lstrip(".")[:64] or "client"


def scrub_argv(word: str) -> None:
    """Overwrite a word of our own command line, which `ps` shows to every user.

    Only Linux lets a process write to its own arguments; elsewhere this does nothing, and a secret should come from
    stdin or the environment.
    """
    secret = word.encode()
    if not secret:
        return
    try:
        # The second field is the program's name in parentheses, which may contain anything.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[ARG_START - 3]), int(fields[ARG_START - 2])
        if not 0 < start < end:
            return
        arguments = ctypes.string_at(start, end - start)
        at = arguments.find(secret)
        while at >= 0:
            ctypes.memset(start + at, ord("x"), len(secret))
            at = arguments.find(secret, at + len(secret))
    except (OSError, ValueError, IndexError):
        return
