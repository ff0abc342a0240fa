"""The address that a command connects to: `--join HOST[:PORT]`. A missing port is the default one of the role."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from scale0.cli.common.options import with_options

FRONTEND_PORT: Final = 5700
BACKEND_PORT: Final = 5701
PEER_PORT: Final = 5702
CONSOLE_PORT: Final = 5780
HELEN_PORT: Final = 4166
DEFAULT_HOST: Final = "127.0.0.1"
JOIN: Final = "SCALE0_JOIN"
"""The address for client commands without --join."""
JOIN_BACKEND: Final = "SCALE0_JOIN_BACKEND"
"""The same for workers, if the backend port is not the default one."""
KEY: Final = "SCALE0_KEY"
NO_KEYS: Final = "none"
SERVER_KEY: Final = "SCALE0_SERVER_KEY"
"""The same as in `transport.edge.client_keys`, which would make `--help` slow to import."""
MAX_PORT: Final = 65_535

_NAMED: Final = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?", re.ASCII)


def endpoint_of(text: str, port: int) -> str:
    """`HOST[:PORT]` as an endpoint; raises ValueError."""
    if _is_ipv6(text):
        return f"tcp://[{text}]:{port}"
    found = _NAMED.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not HOST or HOST:PORT")
    number = int(found[2]) if found[2] else port
    if not 1 <= number <= MAX_PORT:
        raise ValueError(f"{number} is not a port (1 to {MAX_PORT})")
    return f"tcp://{found[1]}:{number}"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def host_of(endpoint: str) -> str:
    """The host of an endpoint, without brackets."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def _frontend(_context: click.Context, _option: click.Parameter, value: str) -> str:
    try:
        return endpoint_of(value, FRONTEND_PORT)
    except ValueError as error:
        raise click.BadParameter(f"{error}; for example 127.0.0.1, or broker.example.com:5700") from error


def _set_variable(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def set_variable(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value:
            os.environ[name] = value

    return set_variable


def _set_insecure(_context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        os.environ[KEY] = NO_KEYS


key_options = with_options(
    *(
        click.option(flag, callback=_set_variable(name), expose_value=False, metavar="FILE", help=f"{text} ({name}).")
        for flag, name, text in (
            ("--key-file", KEY, "Our own certificate, if the broker requires keys"),
            ("--server-key", SERVER_KEY, "The broker's public key, or a file with it"),
        )
    ),
    click.option(
        *("--insecure", "insecure"),
        is_flag=True,
        callback=_set_insecure,
        expose_value=False,
        help=f"Connect without keys, in a trusted network ({KEY}={NO_KEYS}).",
    ),
)
"""`--key-file`, `--server-key` and `--insecure`, which are set in the environment."""

join_option = with_options(
    click.option(
        "--join",
        default=DEFAULT_HOST,
        envvar=JOIN,
        metavar="HOST[:PORT]",
        callback=_frontend,
        help=f"The broker's frontend address (127.0.0.1:{FRONTEND_PORT}, or {JOIN}).",
    ),
    key_options,
)
"""`--join`, as the frontend endpoint `join`, and the options for keys."""


def is_free(port: int, host: str = DEFAULT_HOST) -> bool:
    """True if no process listens on this port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


def default_identity() -> str:
    """The host name, with characters that an identity may not have replaced."""
    name = os.uname().nodename
    return "".join(c if c.isascii() and (c.isalnum() or c in "._:-") else "-" for c in name)[:128] or "broker"


def backend_endpoints(joins: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The endpoints for a worker, the first one preferred; empty if none is configured. Raises ValueError."""
    if joins:
        return [endpoint_of(join, BACKEND_PORT) for join in joins]
    if environment.get(JOIN_BACKEND):
        return [endpoint_of(environment[JOIN_BACKEND], BACKEND_PORT)]
    if environment.get(JOIN):
        # The port in it is the one for frontends.
        host = host_of(endpoint_of(environment[JOIN], FRONTEND_PORT))
        return [f"tcp://{f'[{host}]' if ':' in host else host}:{BACKEND_PORT}"]
    return []
