"""The server's process: its socket, uvicorn, and its end.

It prints `ready` once it serves. It ends on a signal, and when the process that started it has ended.
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
from scale0.http.acceptor import Acceptor
from scale0.http.app import create_app
from scale0.http.broker_client import BrokerClient
from scale0.http.listener import MAX_CONNECTIONS, HttpListener
from scale0.http.problem import ApiProblem
from scale0.http.routes.access import login_link
from scale0.kernel.edge.log_setup import log_to_stderr
from scale0.kernel.log_context import about

KEEP_ALIVE_SECONDS: Final = 15
STOP_SECONDS: Final = 3
"""How long requests in flight may take when the server is asked to stop."""
MAX_REQUESTS: Final = MAX_CONNECTIONS
"""At once; a request beyond that is answered with 503."""
BACKLOG: Final = 256
SWITCH_SECONDS: Final = 0.0005
"""The longest time that the thread which formats metrics may hold the interpreter lock."""

_LOG: Final = logging.getLogger("scale0.http")


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: `serve` installs its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._acceptors: list[Acceptor] = []

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """It accepts connections itself: see `Acceptor`."""
        await super().startup([])
        context = self.config.ssl if isinstance(self.config.ssl, ssl.SSLContext) else None
        for listener in sockets or []:
            self._acceptors.append(Acceptor(listener, context, self._connection))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    def _connection(self) -> HttpListener:
        return HttpListener(self.config, self.server_state, self.lifespan.state)


def listening(settings: HttpSettings) -> socket.socket:
    """The listening socket. OSError: the port is in use, or the address is not of this machine."""
    family = socket.AF_INET6 if ":" in settings.bind else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        listener.bind((settings.bind, settings.port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(settings: HttpSettings, port: int) -> str:
    host = f"[{settings.bind}]" if ":" in settings.bind else settings.bind
    return f"{'https' if settings.has_tls else 'http'}://{host}:{port}"


async def serve(settings: HttpSettings, output: TextIO, watch_parent: Callable[[asyncio.Event], None]) -> None:
    """Serve until a signal arrives, or `watch_parent` sets its event."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = listening(settings)
    broker = BrokerClient(settings.endpoint, settings.token_file)
    config = uvicorn.Config(
        create_app(settings, broker),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        log_level="error",  # invalid requests are not worth a log line
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
    ready = asyncio.create_task(_announce(server, settings, broker, listener.getsockname()[1], output))
    watch_parent(stop)
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        ready.cancel()
        stopping.cancel()
        await serving
        listener.close()


async def _announce(server: Server, settings: HttpSettings, broker: BrokerClient, port: int, output: TextIO) -> None:
    while not server.started:  # noqa: ASYNC110  # uvicorn's own flag, which sets no event
        await asyncio.sleep(0.01)
    url = url_of(settings, port)
    link = ""
    if settings.wants_link:
        try:
            link = await login_link(broker, url)
        except ApiProblem as problem:
            _LOG.warning("cannot create a one-time login link: %s", problem, extra=about())
    output.write(f"ready {msgspec.json.encode(HttpReady(url=url, link=link)).decode()}\n")
    output.flush()


def when_closed(stop: asyncio.Event) -> None:
    """Stop when standard input ends: the process that started the server has ended."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 65_536):
            loop.remove_reader(descriptor)
            stop.set()

    try:
        loop.add_reader(descriptor, readable)
    except (PermissionError, OSError):
        stop.set()  # a file, which is at its end


def for_ever(_stop: asyncio.Event) -> None:
    """Stop by a signal only: a person started the server."""


def main(settings: HttpSettings, watch_parent: Callable[[asyncio.Event], None] = when_closed) -> int:
    log_to_stderr("management", form="json" if settings.log_format == "json" else None)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and stop messages repeat ours
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        uvloop.run(serve(settings, sys.stdout, watch_parent))
    except OSError as error:
        _LOG.error(
            "cannot listen on %s port %d: %s", settings.bind, settings.port, error.strerror or error, extra=about()
        )
        return 1
    return 0
