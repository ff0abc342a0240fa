"""Credentials for management commands: `--token`, `--auth-id` with a password, or the token file of a local broker.

A password or token is never an argument of a child process and never printed. It is sent to loopback, or to a broker
that has proved by its key that it is the one that the user joined, and to no other.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from scale0.cli.common import errors, joining
from scale0.cli.common.endpoints import host_of, join_option
from scale0.cli.common.options import with_options
from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret

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
        """Raise an error unless the broker is on this machine, or must prove the key that is known for its address."""
        from scale0.transport.edge.client_keys import find_keys

        if not is_this_machine(host_of(self.join)) and find_keys([self.join]) is None:
            raise errors.CommandError(
                f"no key is known for {self.join}: tokens and passwords are sent to proven brokers only",
                "join it: scale0 keys join frontend HOST --token -, with a token of `scale0 token frontend`",
                errors.USAGE,
            )

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


def is_this_machine(host: str) -> bool:
    """True for loopback and for an address of this machine: nothing that is sent there leaves it."""
    from scale0.config import is_loopback

    if is_loopback(host):
        return True
    try:
        address = ipaddress.ip_address(host)
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return not address.is_multicast and not address.is_unspecified


def admin_options(command: Command) -> Command:
    """Give a command --join, --token, --auth-id and --data-dir; it gets them as `access`."""

    @functools.wraps(command)
    def wrapper(
        *args: Any, join: str, token: str | None, auth_id: str | None, data_dir: str | None, **rest: Any
    ) -> Any:
        if data_dir:
            os.environ[DATA_DIR] = data_dir  # a local broker has a key for us there
        if token and token.startswith(JOIN_PREFIX):
            joining.join(join, "frontend", token, None, joining.default_name())
            token = None
        return command(*args, access=AdminAccess(join, token, auth_id, data_dir), **rest)

    given = with_options(
        join_option,
        joining.secret_option("token", TOKEN, "A token of `login` or `issue_token`"),
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
