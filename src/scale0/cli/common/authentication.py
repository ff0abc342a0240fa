"""Credentials for management commands: `--token`, `--auth-id` with a password, or the token file of a local broker.

A password or token is never an argument of a child process and never printed. The token file of this machine is sent to
this machine only, unless --data-dir is given.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from scale0.cli.common import errors, joining
from scale0.cli.common.endpoints import host_of

if TYPE_CHECKING:
    from scale0.client.client import Client

LOCAL_FOLDER: Final = ".scale0"
"""The data folder of `scale0 up`."""
TOKEN: Final = "SCALE0_TOKEN"
PASSWORD: Final = "SCALE0_PASSWORD"
DATA_DIR: Final = "SCALE0_DATA_DIR"
JOIN_PREFIX: Final = "s0join."
"""Of a join token, which is not a management token."""

Credentials = dict[str, Any]
"""Arguments of a management command that authenticate it."""

Command = TypeVar("Command", bound=Callable[..., Any])


class GivenCredentials(NamedTuple):
    """The values of the options."""

    token: str | None
    auth_id: str | None
    data_dir: str | None


def credential_options(command: Command) -> Command:
    """Give a command --token, --auth-id and --data-dir; it gets them as `authority`."""

    @functools.wraps(command)
    def wrapper(*args: Any, token: str | None, auth_id: str | None, data_dir: str | None, **rest: Any) -> Any:
        if data_dir:
            os.environ[DATA_DIR] = data_dir  # a local broker has a key for us there
        if token:
            joining.scrub_argv(token)  # a command with --watch stays in the list of processes
        if token and token.startswith(JOIN_PREFIX) and "join" in rest:
            joining.join(rest["join"], "frontend", token, joining.default_name())
            token = None
        return command(*args, authority=GivenCredentials(token, auth_id, data_dir), **rest)

    wrapped: Any = wrapper
    for option in (
        click.option("--data-dir", envvar=DATA_DIR, help=f"The broker's folder, for its token file ({LOCAL_FOLDER})."),
        click.option("--auth-id", metavar="NAME", help=f"An admin of the broker; asks for the password ({PASSWORD})."),
        click.option("--token", envvar=TOKEN, help=f"A token of `login` or `issue_token` ({TOKEN})."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def find(authority: GivenCredentials, join: str) -> Credentials | None:
    """Credentials for a management command, or None if there are none."""
    if authority.token:
        return {"auth_token": authority.token}
    if authority.auth_id:
        password = os.environ.get(PASSWORD) or click.prompt(
            f"password of {authority.auth_id}", hide_input=True, err=True
        )
        return {"auth_id": authority.auth_id, "auth_password": password}
    token = _from_file(authority.data_dir, join)
    return {"auth_token": token} if token else None


def need(authority: GivenCredentials, join: str) -> Credentials:
    """Credentials, or an error that names the options."""
    found = find(authority, join)
    if found is None:
        where = authority.data_dir or LOCAL_FOLDER
        raise errors.CommandError(
            f"management needs a token, and there is none in {where}",
            "give --data-dir FOLDER (the broker's, on its machine), --token, or --auth-id NAME",
            errors.USAGE,
        )
    return found


def log_in(client: Client, credentials: Credentials) -> Credentials:
    """Exchange a password for a token, so that it is hashed once for several commands."""
    if "auth_token" in credentials:
        return credentials
    return {"auth_token": client.manage("login", **credentials)["token"]}


def _from_file(data_dir: str | None, join: str) -> str | None:
    from scale0.config import is_loopback
    from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret

    if data_dir is None and not is_loopback(host_of(join)):
        return None
    return read_secret(Path(data_dir or LOCAL_FOLDER) / TOKEN_FILE)
