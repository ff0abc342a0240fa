"""Helen as a process: starts her parts in order, stops them in reverse, and runs her periodic jobs.

She listens only after her store is read. A revoked certificate is refused within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import uvloop

from scale0.broker.main.process import DISK_LOOK_SECONDS
from scale0.config import ClientConfig, HelenConfig
from scale0.history.segments.exporter import SegmentExporter
from scale0.history.segments.settings import ExporterSettings, exporter_settings
from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.private_files import check as check_files
from scale0.kernel.edge.process import ProcessEnd, raise_file_limit, tune_interpreter
from scale0.kernel.edge.runner import Runner
from scale0.kernel.edge.secret_files import TOKEN_FILE, write_secret
from scale0.kernel.effects import Effects
from scale0.kernel.errors import ConfigError, StoreError
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.monitoring.helen.core.helen import Helen
from scale0.monitoring.helen.core.services import RECHECK, service_names
from scale0.monitoring.helen.edge.answers import HelenAskAnswers
from scale0.monitoring.helen.edge.composition import MAX_CLIENT_BYTES, compose_helen, read_agents, read_spools
from scale0.monitoring.helen.edge.network_backend import NetworkBackend
from scale0.monitoring.helen.edge.notifier import NOTIFY, NotificationFailed, Notifier
from scale0.monitoring.helen.edge.tls import server_context
from scale0.monitoring.helen.edge.tls_server import MAX_HANDSHAKES, TlsServer
from scale0.monitoring.pki.authority import AGENTS_CA_KEY_FILE, CA_KEY_FILE, CertificateAuthority
from scale0.storage.interface import Store, StoredJournal, StoreFailed
from scale0.storage.sqlite.store import SqliteStore
from scale0.tasks.node.assigned_tasks import AssignedTask

log = logging.getLogger("scale0.helen")

SWEEP_SECONDS: Final = 0.25
"""How often slow connections are looked for."""
REVOKED_SECONDS: Final = 0.5
"""How often the revocation list is checked."""
TOKEN_BYTES: Final = 32
DRAIN_SECONDS: Final = 3.0
"""How long other Helens may take to take over her agents at an orderly stop."""
DRAIN_LOOK_SECONDS: Final = 0.05
REPLICAS_SECONDS: Final = 10.0
"""How often the list of other Helens is read."""
FILES_SECONDS: Final = 5.0
"""How often the files of her certificate are checked for changes."""
RENEW_SECONDS: Final = 3_600.0
"""How often her own certificate is checked for renewal."""
EXTRA_CONNECTIONS: Final = MAX_HANDSHAKES + 5_000
"""Connections beside those of agents: handshakes, clients before their hello, and connections being closed."""

Ready = Callable[[Helen, int], None]
"""Called with the machine and the port once she serves."""


def run_helen(config: HelenConfig, ready: Ready) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status."""
    check_helen_files(config, (CA_KEY_FILE, AGENTS_CA_KEY_FILE))
    raise_file_limit()
    tune_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config, SqliteStore(Path(config.data_dir)), ready))


async def serve(config: HelenConfig, store: Store, ready: Ready) -> int:
    """Open the store, then the sockets; serve; close them in reverse."""
    loop = asyncio.get_running_loop()
    process_end = ProcessEnd()
    stop, end = process_end.begin(), process_end.end

    def fail(error: BaseException) -> None:
        log.critical("the store failed, Helen stops: %s", error, extra=about())
        end(1)

    context, settings = context_of(config), exporter_settings(config)
    opened = store.open()
    with contextlib.ExitStack() as stack:
        commits = Commits(store, loop, fail)
        stack.callback(close_quietly, commits)
        exporter = start_exporter(settings, commits, stack)
        socket = TlsServer(context, config.bind, config.helen_port, config.max_agents + EXTRA_CONNECTIONS)
        stack.callback(socket.close)
        helen = compose_helen(config, socket.port, store, new_token(Path(config.data_dir)))
        authority = CertificateAuthority(Path(config.data_dir))
        notifier = Notifier(config)
        stack.callback(notifier.close)
        answers = HelenAskAnswers(config.identity, commits, authority, notifier)
        stack.callback(answers.close)
        network = join_network(config, notifier, answers, stack, end)
        now = read_now()
        boot = max(int(now.wall * 1_000_000), opened.last_boot_us + 1)
        journal = StoredJournal(config.identity, boot, opened)
        runner = Runner(helen, [socket, network], [], commits, journal.append, read_now, answers.find, MAX_CLIENT_BYTES)
        runner.start(first_turn(helen, store, authority, now), now)
        network.start()
        process_end.listen()
        certificates = OwnCertificate(config, socket, authority)
        loop.add_signal_handler(signal.SIGHUP, certificates.load)
        async with background_jobs(
            end,
            sweep_often(socket),
            look_for_revocations(authority, helen, runner),
            look_for_replicas(answers, helen, runner),
            watch_disk(store, runner, fail),
            certificates.watch(),
            certificates.keep_renewed(),
        ):
            ready(helen, socket.port)
            status = await stop
            if status == 0:
                await drain(helen, runner)
        last_turn(helen, runner, status)
        await commits.flush()
        await exporter.finish(status)
        return status


def start_exporter(settings: ExporterSettings | None, commits: Commits, stack: contextlib.ExitStack) -> SegmentExporter:
    exporter = SegmentExporter(settings, commits)
    stack.callback(exporter.close)
    exporter.start()
    return exporter


def new_token(folder: Path) -> str:
    """Write a new admin token: every user who can read her data directory may use it."""
    token = secrets.token_hex(TOKEN_BYTES)
    write_secret(folder / TOKEN_FILE, token)
    return token


def first_turn(helen: Helen, store: Store, authority: CertificateAuthority, now: Now) -> Effects:
    """Load the store's rows and the revocation list."""
    effects = Effects()
    helen.start(read_agents(store), read_spools(store), now, effects)
    helen.expect_replicas(now)
    helen.revoke(authority.revoked, now, effects)
    return effects


def last_turn(helen: Helen, runner: Runner, status: int) -> None:
    last, now = Effects(), read_now()
    if status == 0:
        helen.stop(now, last)
    runner.stop(last, now)


async def drain(helen: Helen, runner: Runner) -> None:
    """Redirect agents to other Helens, and wait until they have taken them over."""
    runner.take(helen.drain)
    until = read_now().mono + DRAIN_SECONDS
    while helen.undrained and read_now().mono < until:  # noqa: ASYNC110  # a machine's number, which sets no event
        await asyncio.sleep(DRAIN_LOOK_SECONDS)


def join_network(
    config: HelenConfig,
    notifier: Notifier,
    answers: HelenAskAnswers,
    stack: contextlib.ExitStack,
    end: Callable[[int], None],
) -> NetworkBackend:
    """Her backend session, with the tasks that she performs outside of her machine."""
    performing: set[asyncio.Task[None]] = set()

    def perform(task: AssignedTask, on_end: Callable[[bytes | Exception, bool], None]) -> None:
        running = asyncio.get_running_loop().create_task(perform_task(notifier, task, on_end))
        performing.add(running)
        running.add_done_callback(performing.discard)

    def configured(config: ClientConfig) -> None:
        notifier.configure(config)
        answers.configure(config, network.endpoint, network.frontend_keys)

    def ended(reason: str) -> None:
        log.critical("the network ended the session, Helen stops: %s", reason, extra=about())
        end(1)

    services = (*service_names(config.identity), RECHECK)
    network = NetworkBackend(config.identity, config.broker_endpoint(), services, (NOTIFY,), perform, configured, ended)
    stack.callback(network.close)
    return network


async def perform_task(
    notifier: Notifier, task: AssignedTask, on_end: Callable[[bytes | Exception, bool], None]
) -> None:
    """Perform a task, and report its result."""
    try:
        on_end(await notifier.perform(task.params), False)
    except NotificationFailed as error:
        on_end(error, error.again)
    except Exception as error:
        log.exception(
            "internal error while delivering a notification. Please report this traceback.", extra=about(task=task.id)
        )
        on_end(error, True)


@contextlib.asynccontextmanager
async def background_jobs(end: Callable[[int], None], *work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these jobs during the block and cancel them at its end; a job that fails ends the process."""
    loop = asyncio.get_running_loop()

    def check(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical(
                "internal error in a background job, Helen stops. Please report this traceback.",
                exc_info=error,
                extra=about(),
            )
            end(1)

    tasks = [loop.create_task(one) for one in work]
    for task in tasks:
        task.add_done_callback(check)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def sweep_often(socket: TlsServer) -> None:
    while True:
        socket.sweep()
        await asyncio.sleep(SWEEP_SECONDS)


async def watch_disk(store: Store, runner: Runner, fail: Callable[[BaseException], None]) -> None:
    """Read nothing from agents while the disk is almost full: they keep their results. End if her files are gone."""
    least, was_full = Limits().min_free_bytes, False
    while True:
        try:
            full = store.free_bytes() < least
        except StoreFailed as error:
            fail(error)
            return
        except (StoreError, OSError) as error:
            log.warning("the free disk space cannot be read, agents must wait: %s", error, extra=about())
            full = True
        if full != was_full:
            log.warning(
                "the disk is almost full: agents must wait" if full else "there is free disk space again",
                extra=about(),
            )
            was_full = full
            runner.pause(full)
        await asyncio.sleep(DISK_LOOK_SECONDS)


async def look_for_revocations(authority: CertificateAuthority, helen: Helen, runner: Runner) -> None:
    """A revoked certificate ends its connection within a second."""
    while True:
        await asyncio.sleep(REVOKED_SECONDS)
        if authority.refresh():
            runner.take(lambda now, effects: log_revoked(helen.revoke(authority.revoked, now, effects)))


def log_revoked(count: int) -> None:
    log.warning("certificates were revoked; %d connections were closed", count, extra=about())


async def look_for_replicas(answers: HelenAskAnswers, helen: Helen, runner: Runner) -> None:
    while True:
        names = await answers.replica_names()
        if names is not None:
            runner.take(functools.partial(helen.learn_replicas, names))
        await asyncio.sleep(REPLICAS_SECONDS if names is not None else SWEEP_SECONDS)


class OwnCertificate:
    """Her certificate and key: reloaded when the files change, renewed before they expire."""

    def __init__(self, config: HelenConfig, socket: TlsServer, authority: CertificateAuthority) -> None:
        self._config = config
        self._socket = socket
        self._authority = authority
        self._stamps = self._file_stamps()

    def load(self) -> None:
        """Read the files again; if one of them is wrong, the previous ones stay in use."""
        self._stamps = self._file_stamps()
        try:
            self._socket.context = context_of(self._config)
        except ConfigError as error:
            log.error(
                "the new certificate cannot be used, the previous one stays: %s",
                error,
                extra=about(certificate=self._config.certificate),
            )
        else:
            log.info(
                "the certificate was reloaded; new connections use it",
                extra=about(certificate=self._config.certificate),
            )

    async def watch(self) -> None:
        """Reload the files whenever they change."""
        while True:
            await asyncio.sleep(FILES_SECONDS)
            if self._file_stamps() != self._stamps:
                self.load()

    async def keep_renewed(self) -> None:
        """Renew the certificate before it expires, if her own authority issued it."""
        loop = asyncio.get_running_loop()
        path = Path(self._config.certificate)
        while True:
            try:
                await loop.run_in_executor(None, self._authority.renew_own, path, read_now().wall)
            except Exception as error:
                # Another program may have written the file: that is no reason to stop.
                log.error("Helen's own certificate could not be renewed: %s", error, extra=about(certificate=path))
            await asyncio.sleep(RENEW_SECONDS)

    def _file_stamps(self) -> tuple[int, ...]:
        stamps = []
        for name in (self._config.certificate, self._config.private_key, self._config.client_ca):
            try:
                found = Path(name).stat()
                stamps += [found.st_mtime_ns, found.st_ino]
            except OSError:
                stamps.append(0)
        return tuple(stamps)


def context_of(config: HelenConfig) -> ssl.SSLContext:
    return server_context(Path(config.certificate), Path(config.private_key), Path(config.client_ca))


def close_quietly(commits: Commits) -> None:
    """The failure was reported before."""
    with contextlib.suppress(Exception):
        commits.close()


def check_helen_files(config: HelenConfig, key_files: Iterable[str]) -> None:
    """Check the permissions of her private key, of `key_files` in her data directory, and of the SMTP password."""
    folder = Path(config.data_dir)
    given = [Path(config.private_key), *(folder / name for name in key_files)]
    if config.smtp.password_file:
        given.append(Path(config.smtp.password_file))
    check_files(folder, given)
