"""Credentials for management commands: `--token`, `--auth-id` with a password, or the token file of a local broker.

A password or token is never an argument of a child process and never printed. It is sent to a broker that has proved by
its key that it is the one that the user joined, or that this user or root runs on this machine, and to no other.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from scale0.cli.common import errors, joining
from scale0.cli.common.endpoints import host_of, join_option
from scale0.cli.common.options import with_options
from scale0.cli.common.proof import require_proof
from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret

if TYPE_CHECKING:
    from scale0.client.client import Client

LOCAL_FOLDER: Final = ".scale0"
"""The data folder of `scale0 up`."""
TOKEN: Final = "SCALE0_TOKEN"
PASSWORD: Final = "SCALE0_PASSWORD"
DATA_DIR: Final = "SCALE0_DATA_DIR"
PATIENCE_SECONDS: Final = 3.0
"""How long a command tries to reach its broker before it exits with 3."""

Credentials = dict[str, Any]
"""Arguments of a management command that authenticate it."""

Command = TypeVar("Command", bound=Callable[..., Any])


class AdminAccess(NamedTuple):
    """The broker of a management command, and the credentials that were given for it."""

    join: str
    token: str | None = None
    auth_id: str | None = None
    data_dir: str | None = None

    def find(self) -> Credentials | None:
        """Credentials for a management command, or None if there are none."""
        if self.token or self.auth_id:
            self.must_be_proved()
        if self.token:
            return {"auth_token": self.token}
        if self.auth_id:
            password = os.environ.get(PASSWORD) or click.prompt(
                f"password of {self.auth_id}", hide_input=True, err=True
            )
            return {"auth_id": self.auth_id, "auth_password": password}
        from scale0.config import is_loopback

        if self.data_dir is None and not is_loopback(host_of(self.join)):
            return None
        token = read_secret(Path(self.data_dir or LOCAL_FOLDER) / TOKEN_FILE)
        if token:
            self.must_be_proved()
        return {"auth_token": token} if token else None

    def must_be_proved(self) -> None:
        """Raise an error unless the broker proves its key, or this user or root runs it on this machine."""
        require_proof(self.join, PATIENCE_SECONDS, with_secret=True)

    def need(self) -> Credentials:
        """Credentials, or an error that names the options."""
        found = self.find()
        if found is None:
            raise errors.CommandError(
                f"management needs a token, and there is none in {self.data_dir or LOCAL_FOLDER}",
                "give --data-dir FOLDER (the broker's, on its machine), --token, or --auth-id NAME",
                errors.USAGE,
            )
        return found


def admin_options(command: Command) -> Command:
    """Give a command --join, --token, --auth-id and --data-dir; it gets them as `access`."""

    @functools.wraps(command)
    def wrapper(
        *args: Any, join: str, token: str | None, auth_id: str | None, data_dir: str | None, **rest: Any
    ) -> Any:
        if data_dir:
            os.environ[DATA_DIR] = data_dir  # a local broker has a key for us there
        if token and token.startswith(joining.JOIN_PREFIX):
            joining.join(join, "frontend", token, None, joining.default_name())
            token = None
        return command(*args, access=AdminAccess(join, token, auth_id, data_dir), **rest)

    given = with_options(
        join_option,
        joining.secret_option("token", TOKEN, "A token of `login` or `issue_token`", (joining.JOIN_PREFIX,)),
        click.option("--auth-id", metavar="NAME", help=f"An admin of the broker; asks for the password ({PASSWORD})."),
        click.option("--data-dir", envvar=DATA_DIR, help=f"The broker's folder, for its token file ({LOCAL_FOLDER})."),
    )
    wrapped: Any = given(wrapper)
    return wrapped  # type: ignore[no-any-return]


def log_in(client: Client, credentials: Credentials) -> Credentials:
    """Exchange a password for a token, so that it is hashed once for several commands."""
    if "auth_token" in credentials:
        return credentials
    return {"auth_token": client.manage("login", **credentials)["token"]}
