"""`--token`: one word makes this machine part of an encrypted network.

Lives here: the option, and what is said about it. Never here: the conversation (`transport.edge.joining`). Invariants:
no secret is shown, an error never repeats the token, and it does not stay in the list of processes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.argv_scrubbing import hide

if TYPE_CHECKING:
    from scale0.transport.edge.joining import JoinToken

JOIN_TOKEN: Final = "SCALE0_JOIN_TOKEN"
MAX_TOKEN_LINE: Final = 2_000
MADE_BY: Final = "`scale0 token` on the broker's machine makes one"

token_option = click.option(
    "--token", "token_text", envvar=JOIN_TOKEN, help=f"From `scale0 token`, to join by; -: stdin ({JOIN_TOKEN})."
)


def read_token(text: str, role: str) -> JoinToken:
    """The token that was given, or an error that does not repeat it."""
    from scale0.transport.edge.joining import read_join_token

    hide(text)
    line = sys.stdin.readline(MAX_TOKEN_LINE) if text == "-" else text
    token = read_join_token(line)
    if token is None:
        raise errors.CommandError("that is no token to join by", MADE_BY, errors.USAGE)
    if token.role != role:
        raise errors.CommandError(
            f"that token is for a {token.role}, and this is a {role}", f"`scale0 token {role}` makes one", errors.USAGE
        )
    return token


def join(endpoint: str, role: str, text: str, name: str) -> Path:
    """Trade a token for a certificate of this user's own; where it is."""
    from scale0.transport.edge.joining import JoinError, join_client

    token = read_token(text, role)
    try:
        path, fresh = join_client(endpoint, token, name)
    except JoinError as error:
        raise trouble_of(error, endpoint) from error
    if fresh:
        output.note(f"joined {endpoint} as {name}; the key is in {path}: from now on no token is needed")
    return path


def trouble_of(error: Exception, endpoint: str) -> errors.CommandError:
    """What went wrong, and what to do next."""
    from scale0.kernel import codes

    code, message = getattr(error, "code", 0), getattr(error, "message", str(error))
    match code:
        case codes.UNREACHABLE | codes.NO_ANSWER:
            return errors.CommandError(
                f"{endpoint}: {message}", "is it the port of the token's role?", errors.UNREACHABLE
            )
        case codes.IN_USE:
            return errors.CommandError(f"{endpoint}: {message}", "give another one with --name")
        case _:
            return errors.CommandError(f"{endpoint}: {message}", MADE_BY)


def default_name() -> str:
    """The host's name, as far as a key's name may hold it."""
    from scale0.cli.broker.command import default_identity

    return default_identity().lstrip(".")[:64] or "client"
