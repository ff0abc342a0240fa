"""The server's process: a socket, uvicorn, and an end.

Lives here: starting and stopping. Never here: a route. Invariants: it says `ready` when it serves and not before; it
ends when it is told to, and when whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO

import msgspec
import uvicorn
import uvloop

from scale0.broker.main.http_settings import HttpReady, HttpSettings
from scale0.http.app import create_app
from scale0.http.listener import MAX_CONNECTIONS, HttpListener
from scale0.http.network import BrokerClient
from scale0.http.one_time_links import first_link
from scale0.http.problem import ApiProblem
from scale0.kernel.edge.log_setup import log_to_stderr
from scale0.kernel.log_context import about

KEEP_ALIVE_SECONDS: Final = 15
STOP_SECONDS: Final = 3
"""How long requests may take that are under way when it is told to stop."""
MAX_REQUESTS: Final = MAX_CONNECTIONS
"""At once; more are answered with 503."""
BACKLOG: Final = 256
SWITCH_SECONDS: Final = 0.0005
"""How long the loop may wait for the thread that writes metrics to let it go on."""

_LOG: Final = logging.getLogger("scale0.http")


class Server(uvicorn.Server):
    """uvicorn without its own way with signals: the loop has ours."""

    def install_signal_handlers(self) -> None:
        """None."""

    def capture_signals(self) -> Any:
        """None here either."""
        return contextlib.nullcontext()


def listening(settings: HttpSettings) -> socket.socket:
    """The socket that is served. OSError: the port is taken, or the address is not ours."""
    family = socket.AF_INET6 if ":" in settings.bind else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.bind, settings.port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(settings: HttpSettings, port: int) -> str:
    """Where a browser finds it."""
    host = f"[{settings.bind}]" if ":" in settings.bind else settings.bind
    return f"{'https' if settings.has_tls else 'http'}://{host}:{port}"


async def serve(settings: HttpSettings, said: TextIO, gone: Callable[[asyncio.Event], None]) -> None:
    """Serve until a signal comes, or `gone` sets the event that it is given."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = listening(settings)
    network = BrokerClient(settings.endpoint, settings.token_file)
    config = uvicorn.Config(
        create_app(settings, network),
        http=HttpListener,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        log_level="error",  # what strangers send is no news of ours
        proxy_headers=False,
        server_header=False,
        date_header=True,
        limit_concurrency=MAX_REQUESTS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=settings.certificate or None,
        ssl_keyfile=settings.private_key or None,
    )
    config.load()
    if isinstance(config.ssl, ssl.SSLContext):
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    server = Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    stopping = asyncio.create_task(stop.wait())
    ready = asyncio.create_task(_tell(server, settings, network, listener.getsockname()[1], said))
    gone(stop)
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        ready.cancel()
        stopping.cancel()
        await serving
        listener.close()


async def _tell(server: Server, settings: HttpSettings, network: BrokerClient, port: int, said: TextIO) -> None:
    while not server.started:  # noqa: ASYNC110  # uvicorn's own flag, which sets no event
        await asyncio.sleep(0.01)
    url = url_of(settings, port)
    link = ""
    if settings.wants_link:
        try:
            link = await first_link(network, url)
        except ApiProblem as problem:
            _LOG.warning("there is no link for a first login: %s", problem, extra=about())
    said.write(f"ready {msgspec.json.encode(HttpReady(url=url, link=link)).decode()}\n")
    said.flush()


def when_closed(stop: asyncio.Event) -> None:
    """Stop when standard input ends: whoever started us is gone."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 65_536):
            loop.remove_reader(descriptor)
            stop.set()

    try:
        loop.add_reader(descriptor, readable)
    except (PermissionError, OSError):
        stop.set()  # a file has been read to its end


def for_ever(_stop: asyncio.Event) -> None:
    """Stop by a signal only: a person started us."""


def main(settings: HttpSettings, gone: Callable[[asyncio.Event], None] = when_closed) -> int:
    """The whole life of the process; its exit status."""
    log_to_stderr("management", form="json" if settings.log_format == "json" else None)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # that it starts and stops is told by us
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        uvloop.run(serve(settings, sys.stdout, gone))
    except OSError as error:
        _LOG.error(
            "cannot serve at %s port %d: %s", settings.bind, settings.port, error.strerror or error, extra=about()
        )
        return 1
    return 0
