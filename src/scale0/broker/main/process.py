"""The broker process: start in order, stop in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from scale0.broker.admin.access import digest_of
from scale0.broker.core.broker import Broker
from scale0.broker.core.key_audit import SERVER_SETTING
from scale0.broker.core.state import StoreOutage
from scale0.broker.core.stored_times import CONFIRMED, last_time_us
from scale0.broker.edge.curve import Curve
from scale0.broker.edge.curve_setup import link_keys, management_key, open_curve, start_curve, unlink_keys
from scale0.broker.edge.peer_sockets import PeerSockets
from scale0.broker.edge.subscriber_socket import SubscriberSocket
from scale0.broker.main.answers import AskAnswers
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.broker.main.http_process import HttpProcess, Served
from scale0.broker.main.http_settings import STARTED_FILE, server_of
from scale0.broker.main.http_settings import HttpReady as Serving
from scale0.broker.main.preflight import check_broker_files, check_runnable, is_postgres, with_keys_decided
from scale0.config import BrokerConfig, Endpoints
from scale0.history.segments.exporter import SegmentExporter
from scale0.history.segments.settings import ExporterSettings, exporter_settings, password_of
from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.process import ProcessEnd, raise_file_limit, tune_interpreter
from scale0.kernel.edge.runner import Runner
from scale0.kernel.edge.secret_files import TOKEN_FILE, write_secret
from scale0.kernel.effects import Effects
from scale0.kernel.errors import StoreError
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.kernel.time_text import MICROSECONDS
from scale0.storage.interface import Store, StoredJournal, StoreFailed, StoreFenced, StoreUnavailable
from scale0.storage.memory.store import MemoryStore
from scale0.storage.sqlite.store import SqliteStore
from scale0.tasks.jsonrpc.arrays import array_splitter
from scale0.transport.core.buffer_account import BufferAccount
from scale0.transport.core.codec import batch_splitter
from scale0.transport.core.sockets import BACKEND, CONFIG_PUB, CONFIG_SUB, DIALED, FRONTEND, PEER, TASK_PUB
from scale0.transport.core.zmtp import ROUTER, XPUB, NullMechanism
from scale0.transport.edge.client_keys import KEY, NO_KEYS
from scale0.transport.edge.zmtp_connection import ZmtpConnection
from scale0.transport.edge.zmtp_publisher import ZmtpPublisher
from scale0.transport.edge.zmtp_server import Cut, ZmtpServer

log = logging.getLogger("scale0.broker")

FENCED: Final = -1
"""As a status: this process continues, in a new epoch."""
FLUSH_SECONDS: Final = 10.0
REOPEN_SECONDS: Final = 2.0
"""How often a broker that was declared dead tries to open a database that is away."""
DISK_LOOK_SECONDS: Final = 0.5
SWEEP_SECONDS: Final = 1.0

Ready = Callable[[Broker], None]


def ignore(_: Serving) -> None:
    """The default callback: ignores the address of the HTTP server."""


def run_broker(config: BrokerConfig, config_file: Path | None, ready: Ready, served: Served = ignore) -> int:
    """Run until SIGTERM or SIGINT; return the exit status. `served` is called each time the HTTP server starts."""
    config = with_keys_decided(config)
    check_runnable(config)
    check_broker_files(config, config_file)
    raise_file_limit()
    tune_interpreter()
    fenced, process_end = False, ProcessEnd()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while True:
            try:
                return runner.run(serve(config, config_file, choose_store(config), process_end, ready, served))
            except BeginAgain as again:
                config, fenced = at_ports(config, again.endpoints), True
            except StoreUnavailable as error:
                if not fenced:
                    raise
                log.error("%s; trying again every %g s", error, REOPEN_SECONDS, extra=about())
                if runner.run(stopped_within(REOPEN_SECONDS, process_end)):
                    return 0


async def stopped_within(seconds: float, process_end: ProcessEnd) -> bool:
    """True if a signal asks this process to stop in that time, or did so before."""
    stop = process_end.begin()
    await asyncio.wait([stop], timeout=seconds)
    return stop.done()


class BeginAgain(Exception):
    """The brokers of its group considered this one dead: it starts again, at the same endpoints."""

    def __init__(self, endpoints: Endpoints) -> None:
        super().__init__("taken for dead")
        self.endpoints = endpoints


def at_ports(config: BrokerConfig, endpoints: Endpoints) -> BrokerConfig:
    """The same configuration with the ports that were assigned: other processes know this broker by them."""
    found = msgspec.structs.asdict(endpoints)
    ports = {f"{name}_port": int(place.rpartition(":")[2]) for name, place in found.items() if "://" in place}
    return msgspec.structs.replace(config, **ports)


def choose_store(config: BrokerConfig) -> Store:
    if config.store == "memory":
        return MemoryStore()
    if is_postgres(config):
        from scale0.storage.postgres.store import PostgresStore  # noqa: PLC0415  # an optional extra

        return PostgresStore(config.store, config.identity, Path(config.data_dir))
    return SqliteStore(Path(config.data_dir))


async def serve(
    config: BrokerConfig,
    config_file: Path | None,
    store: Store,
    process_end: ProcessEnd,
    ready: Ready,
    served: Served = ignore,
) -> int:
    """Open the store, then the sockets; serve; close them in reverse."""
    stop = process_end.begin()
    opened = store.open()
    fail = failing(process_end.end)
    commits = Commits(store, asyncio.get_running_loop(), fail)
    exporter = SegmentExporter(settings_of_exporter(config), commits)
    curve = open_curve(config, last_time_us(opened, CONFIRMED) / MICROSECONDS, SERVER_SETTING in opened.settings)
    answers = AskAnswers(commits, config_file, curve)
    try:
        sockets, publishers, endpoints = open_sockets(config, curve)
        now = read_now()
        boot = max(int(now.wall * 1_000_000), opened.last_boot_us + 1)
        token = f"s0_{secrets.token_hex(32)}"
        broker = compose_broker(
            config, endpoints, opened, boot, random.SystemRandom(), digest_of(token), curve.keys if curve else None
        )
        write_secret(Path(config.data_dir) / TOKEN_FILE, token)
        journal = StoredJournal(config.identity, boot, opened)
        most, cut = config.limits().max_client_bytes, splitter(config.limits(), broker, servers_of(sockets))
        runner = Runner(
            broker, sockets, publishers, commits, journal.append, read_now, answers.find, most, cut, held=(FRONTEND,)
        )
        effects = Effects()
        start_broker(broker, opened, now, effects)
        runner.start(effects, now)
        start_curve(curve, broker, sockets, publishers, runner)
        link_keys(curve, broker.state.endpoints)
        report_closed(runner, broker, servers_of(sockets))
        runner.take(broker.key_audit.record)
        process_end.listen()
        exporter.start()
        ready(broker)
        async with beside(broker, watch_disk(broker, store, fail), curve, served, [*servers_of(sockets), *publishers]):
            status = await stop
        last_turn(broker, runner, status)
        unlink_keys(curve, broker.state.endpoints)
        await flush(commits, store)
        for socket in (*sockets, *publishers):
            socket.close()
        if status == FENCED:
            raise BeginAgain(endpoints)
        await exporter.finish(status)
        return status
    finally:
        exporter.close()
        answers.close()
        with contextlib.suppress(Exception):
            commits.close()


def splitter(limits: Limits, broker: Broker, servers: Iterable[ZmtpServer]) -> Cut:
    """Divides long messages at each socket, so that other senders have their turn in between."""
    cut = array_splitter(limits, broker.ignores, batch_splitter(limits, broker.ignores))
    for server in servers:
        server.cut = cut
    return cut


def last_turn(broker: Broker, runner: Runner, status: int) -> None:
    """Called when the sockets are closed: a broker that stops in order records it."""
    last, now = Effects(), read_now()
    if status == 0:
        broker.stop("stopped", now, last)
    runner.stop(last, now)


@contextlib.asynccontextmanager
async def beside(
    broker: Broker,
    disk: Coroutine[Any, Any, None],
    curve: Curve | None,
    served: Served,
    listening: Sequence[ZmtpServer | ZmtpPublisher],
) -> AsyncIterator[None]:
    """Tasks that run while the broker serves: checks of disk, keys and connections, and the HTTP server if it is
    enabled."""
    loop = asyncio.get_running_loop()
    watches = [loop.create_task(one) for one in (disk, watch_clock(broker), sweep(listening))]
    if curve is not None:
        watches.append(loop.create_task(curve.watch()))
    management = managed(broker, served)
    try:
        yield
        await management.finish()
    finally:
        for watch in watches:
            watch.cancel()
        if curve is not None:
            curve.close()
        management.close()


def managed(broker: Broker, served: Served) -> HttpProcess:
    """The HTTP server of this broker, started if enabled; its first start issues a one-time link."""
    config, place = broker.state.config, broker.state.endpoints["frontend"]
    started = Path(config.data_dir) / STARTED_FILE

    def announce(now: Serving) -> None:
        with contextlib.suppress(OSError):
            write_secret(started, now.url)
        served(now)

    # Without administrators, browsers can log in only with the link.
    settings = server_of(config, place, wants_link=not started.exists() or not config.admins)
    environment = {KEY: str(management_key(config)) if config.curve else NO_KEYS}
    if is_postgres(config) and (password := password_of(config.store)):
        environment["PGPASSWORD"] = password  # it reads the journal there
    child = HttpProcess(settings, announce, environment)
    child.start()
    return child


def settings_of_exporter(config: BrokerConfig) -> ExporterSettings | None:
    """How the journal is exported; None: it is not kept."""
    if config.store == "memory":
        return None
    return exporter_settings(config, config.store if is_postgres(config) else "")


def failing(end: Callable[[int], None]) -> Callable[[BaseException], None]:
    """What ends the process when its store has failed."""
    return lambda error: end(status_of(error))


def status_of(error: BaseException) -> int:
    """The exit status for a store's failure; also logs it."""
    if isinstance(error, StoreFenced):
        log.critical("%s: restarting", error, extra=about())
        return FENCED
    log.critical("the store failed; no further message is acknowledged: %s", error, extra=about())
    return 1


async def flush(commits: Commits, store: Store) -> None:
    """Wait until everything is stored; the wait for an unavailable database is limited."""
    try:
        await asyncio.wait_for(commits.flush(), FLUSH_SECONDS)
    except TimeoutError:
        log.critical(
            "the last writes were not stored within %g s; they were not acknowledged", FLUSH_SECONDS, extra=about()
        )
        store.close()


def open_sockets(
    config: BrokerConfig, curve: Curve | None = None
) -> tuple[list[ZmtpServer | PeerSockets | SubscriberSocket], list[ZmtpPublisher], Endpoints]:
    """Bind every socket, and return their addresses; also create the sockets for outgoing connections."""
    limits = config.limits()
    shown = config.advertise or config.bind
    if shown in ("0.0.0.0", "::"):
        shown = os.uname().nodename

    # The traffic of peers is not a client's: neither may use up the memory of the other.
    clients, peers = BufferAccount[ZmtpConnection](limits), BufferAccount[ZmtpConnection](limits)

    def server(name: str, socket_type: bytes, port: int) -> ZmtpServer:
        mechanism = NullMechanism if curve is None else curve.mechanism(name)
        account = peers if name == PEER else clients
        made = ZmtpServer(name, socket_type, config.bind, port, limits, mechanism, account=account)
        made.users = None if curve is None else {}  # nobody, until the keys are read
        return made

    sockets = [
        server(name, ROUTER, port)
        for name, port in ((FRONTEND, config.frontend_port), (BACKEND, config.backend_port), (PEER, config.peer_port))
    ]
    publishers = [
        ZmtpPublisher(server(name, XPUB, port), name == TASK_PUB, limits.max_requests_per_second)
        for name, port in ((CONFIG_PUB, config.config_pub_port), (TASK_PUB, config.task_pub_port))
    ]
    bracketed = f"[{shown}]" if ":" in shown else shown
    bound = [(one.name, one.port) for one in sockets] + [(one.name, one.port) for one in publishers]
    places = {name: f"tcp://{bracketed}:{port}" for name, port in bound}
    if curve is not None:
        places["server_key"] = curve.own.public
    callers = (
        PeerSockets(DIALED, limits, curve),
        SubscriberSocket(CONFIG_SUB, config.config_sub_ports, limits, curve),
    )
    return [*sockets, *callers], publishers, msgspec.convert(places, Endpoints)


def servers_of(sockets: Iterable[object]) -> list[ZmtpServer]:
    return [socket for socket in sockets if isinstance(socket, ZmtpServer)]


def report_closed(runner: Runner, broker: Broker, servers: Iterable[ZmtpServer]) -> None:
    """Let the broker handle connections that ended; those of one iteration of the loop in one turn."""
    loop = asyncio.get_running_loop()
    ended: list[tuple[str, bytes]] = []

    def handle(now: Now, effects: Effects) -> None:
        for name, routing_id in ended:
            broker.closed(name, routing_id, now, effects)
        ended.clear()

    def note(name: str, routing_id: bytes) -> None:
        if not ended:
            loop.call_soon(runner.take, handle)
        ended.append((name, routing_id))

    for server in servers:
        server.closed = functools.partial(note, server.name)


async def sweep(listening: Iterable[ZmtpServer | ZmtpPublisher]) -> None:
    """End handshakes that take too long, and connections that are silent."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        for one in listening:
            one.sweep()


async def watch_disk(broker: Broker, store: Store, fail: Callable[[BaseException], None]) -> None:
    """Refuse writes before the disk is full, and accept them again once there is space; end if its files are gone."""
    state, was = broker.state, ""
    while True:
        outage: StoreOutage | None = None
        try:
            full = store.free_bytes() < state.limits.min_free_bytes
            why = "the disk is almost full" if full else ""
        except StoreFailed as error:
            fail(error)
            return
        except StoreUnavailable as error:
            full, why = True, str(error)
            outage = StoreOutage(time.time() if state.outage is None else state.outage.since, why)
        except (StoreError, OSError) as error:
            full, why = True, str(error)
        if why and why != was:
            log.warning("writes are refused: %s", why, extra=about(broker=broker.state.identity))
        elif was and not why:
            log.warning("writes are accepted again", extra=about(broker=broker.state.identity))
        state.full, state.outage, was = full, outage, why
        await asyncio.sleep(DISK_LOOK_SECONDS)


async def watch_clock(broker: Broker) -> None:
    """Log that the broker suspects its own clock."""
    was = False
    while True:
        suspect = broker.state.clock_suspect
        if suspect and not was:
            text = "the wall clock differs from the clocks of clients, and no client confirms it; clients are served"
            log.warning("%s: set the clock of this host", text, extra=about(broker=broker.state.identity))
        elif was and not suspect:
            log.warning("clients confirm the wall clock again", extra=about(broker=broker.state.identity))
        was = suspect
        await asyncio.sleep(DISK_LOOK_SECONDS)
