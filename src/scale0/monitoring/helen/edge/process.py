"""Helen as a process: from her file to her last breath.

Lives here: start in order, stop in reverse, and what is looked at now and then. Never here: anything that a turn
decides. Invariants: she listens only after her store is read; revoked certificates count no more within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import secrets
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import uvloop

from scale0.broker.main.process import DISK_LOOK_SECONDS, GC_THRESHOLDS, SWITCH_SECONDS, ending, raise_file_limit
from scale0.config import HelenConfig
from scale0.history.events.journal import Journal
from scale0.history.segments.exporter import SegmentExporter
from scale0.history.segments.settings import ExporterSettings, exporter_settings
from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.private_files import check as check_files
from scale0.kernel.edge.runner import Runner
from scale0.kernel.edge.secret_files import TOKEN_FILE, write_secret
from scale0.kernel.effects import Effects
from scale0.kernel.errors import ConfigError, StoreError
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.monitoring.helen.core.helen import Helen
from scale0.monitoring.helen.core.services import RECHECK, service_names
from scale0.monitoring.helen.edge.answers import HelenAskAnswers
from scale0.monitoring.helen.edge.composition import compose_helen, read_agents, read_spools
from scale0.monitoring.helen.edge.network_backend import NetworkBackend
from scale0.monitoring.helen.edge.notifier import NOTIFY, NotificationFailed, Notifier
from scale0.monitoring.helen.edge.tls import server_context
from scale0.monitoring.helen.edge.tls_server import MAX_HANDSHAKES, TlsServer
from scale0.monitoring.pki.authority import AGENTS_CA_KEY_FILE, CA_KEY_FILE, CertificateAuthority
from scale0.storage.interface import Store
from scale0.storage.sqlite.store import SqliteStore
from scale0.tasks.node.assigned_tasks import AssignedTask

log = logging.getLogger("scale0.helen")

SWEEP_SECONDS: Final = 0.25
"""How often her door looks for those who are too slow."""
REVOKED_SECONDS: Final = 0.5
"""How often revocations are looked for."""
TOKEN_BYTES: Final = 32
DRAIN_SECONDS: Final = 3.0
"""How long other Helens may take to have her agents, when she stops in order."""
DRAIN_LOOK_SECONDS: Final = 0.05
SIBLINGS_SECONDS: Final = 10.0
"""How often other Helens are looked for."""
FILES_SECONDS: Final = 5.0
"""How often the files of her certificate are looked at."""
RENEW_SECONDS: Final = 3_600.0
"""How often her own certificate is looked at: is a third of its life left?"""
EXTRA_CONNECTIONS: Final = MAX_HANDSHAKES + 5_000
"""Beside her agents: strangers, newcomers, and those who leave."""
MAX_CLIENT_BYTES: Final = 16 * 1024 * 1024

Ready = Callable[[Helen, int], None]
"""Told when she serves: herself, and the port."""


def run_helen(config: HelenConfig, ready: Ready) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    check_helen_files(config, (CA_KEY_FILE, AGENTS_CA_KEY_FILE))
    raise_file_limit()
    # As in a broker: what lives long is not walked through again and again.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config, SqliteStore(Path(config.data_dir)), ready))


async def serve(config: HelenConfig, store: Store, ready: Ready) -> int:
    """Open the store, then the doors; serve; close them in reverse."""
    loop = asyncio.get_running_loop()
    stop, end = ending(loop)

    def fail(error: BaseException) -> None:
        log.critical("the store failed, nothing more is promised: %s", error, extra=about())
        end(1)

    context, settings = context_of(config), exporter_settings(config)
    opened = store.open()
    with contextlib.ExitStack() as stack:
        commits = Commits(store, loop, fail)
        stack.callback(close_quietly, commits)
        scribe = start_scribe(settings, commits, stack)
        door = TlsServer(context, config.bind, config.helen_port, config.max_agents + EXTRA_CONNECTIONS)
        stack.callback(door.close)
        helen = compose_helen(config, door.port, store, new_token(Path(config.data_dir)))
        authority = CertificateAuthority(Path(config.data_dir))
        answers = HelenAskAnswers(config.identity, commits, authority)
        stack.callback(answers.close)
        network = join_network(config, answers, stack, end)
        now = read_now()
        boot = max(int(now.wall * 1_000_000), opened.last_boot_us + 1)
        journal = Journal(config.identity, boot, opened.next_seq, opened.last_time_us)
        runner = Runner(helen, [door, network], [], commits, journal.append, read_now, answers.find, MAX_CLIENT_BYTES)
        runner.start(first_turn(helen, store, authority, now), now)
        network.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, 0)
        certificates = OwnCertificate(config, door, authority)
        loop.add_signal_handler(signal.SIGHUP, certificates.load)
        async with chores(
            end,
            sweep_often(door),
            look_for_revocations(authority, helen, runner),
            look_for_siblings(answers, helen, runner),
            watch_disk(store, runner),
            certificates.watch(),
            certificates.keep_fresh(),
        ):
            ready(helen, door.port)
            status = await stop
            if status == 0:
                await drain(helen, runner)
        last_turn(helen, runner, status)
        await commits.flush()
        await scribe.finish(status)
        return status


def start_scribe(settings: ExporterSettings | None, commits: Commits, stack: contextlib.ExitStack) -> SegmentExporter:
    """Have her journal written out."""
    scribe = SegmentExporter(settings, commits)
    stack.callback(scribe.close)
    scribe.start()
    return scribe


def new_token(folder: Path) -> str:
    """A secret that whoever may read her folder can show."""
    token = secrets.token_hex(TOKEN_BYTES)
    write_secret(folder / TOKEN_FILE, token)
    return token


def first_turn(helen: Helen, store: Store, authority: CertificateAuthority, now: Now) -> Effects:
    """What the store remembers, and who is revoked."""
    step = Effects()
    helen.start(read_agents(store), read_spools(store), now, step)
    helen.expect_siblings(now)
    helen.revoke(authority.revoked, now, step)
    return step


def last_turn(helen: Helen, runner: Runner, status: int) -> None:
    """The doors are closed; a Helen who ends in order says so."""
    last, now = Effects(), read_now()
    if status == 0:
        helen.stop(now, last)
    runner.stop(last, now)


async def drain(helen: Helen, runner: Runner) -> None:
    """Let other Helens take over the agents, if there are any, before she goes."""
    runner.take(helen.drain)
    until = read_now().mono + DRAIN_SECONDS
    while helen.undrained and read_now().mono < until:  # noqa: ASYNC110  # a machine's number, which sets no event
        await asyncio.sleep(DRAIN_LOOK_SECONDS)


def join_network(
    config: HelenConfig, answers: HelenAskAnswers, stack: contextlib.ExitStack, end: Callable[[int], None]
) -> NetworkBackend:
    """Her end of the network, with the tasks that she performs herself."""
    notifier = Notifier(config)
    stack.callback(notifier.close)
    performing: set[asyncio.Task[None]] = set()

    def perform(job: AssignedTask, tell: Callable[[bytes | Exception, bool], None]) -> None:
        task = asyncio.get_running_loop().create_task(tell_outcome(notifier, job, tell))
        performing.add(task)
        task.add_done_callback(performing.discard)

    def configured(part: bytes) -> None:
        notifier.configure(part)
        answers.configure(part, network.endpoint)

    def ended(why: str) -> None:
        log.critical("the network does not have us any more: %s", why, extra=about())
        end(1)

    services = (*service_names(config.identity), RECHECK)
    network = NetworkBackend(config.identity, config.broker_endpoint(), services, (NOTIFY,), perform, configured, ended)
    stack.callback(network.close)
    return network


async def tell_outcome(notifier: Notifier, job: AssignedTask, tell: Callable[[bytes | Exception, bool], None]) -> None:
    """Perform a task, and say what came of it."""
    try:
        tell(await notifier.perform(job.params), False)
    except NotificationFailed as error:
        tell(error, error.again)
    except Exception as error:
        log.exception("a notice was too much for us: please report this", extra=about(task=job.id))
        tell(error, True)


@contextlib.asynccontextmanager
async def chores(end: Callable[[int], None], *work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do these beside the block, and end them with it; one that fails ends her."""
    loop = asyncio.get_running_loop()

    def look(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("Helen does not go on without this: please report it", exc_info=error, extra=about())
            end(1)

    tasks = [loop.create_task(one) for one in work]
    for task in tasks:
        task.add_done_callback(look)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def sweep_often(door: TlsServer) -> None:
    """End what has lasted too long at the door."""
    while True:
        door.sweep()
        await asyncio.sleep(SWEEP_SECONDS)


async def watch_disk(store: Store, runner: Runner) -> None:
    """While the disk is almost full nobody is heard: agents keep what they find, and nothing is half stored."""
    least, was_full = Limits().min_free_bytes, False
    while True:
        try:
            full = store.free_bytes() < least
        except (StoreError, OSError) as error:
            log.warning("the free space cannot be read, so agents must wait: %s", error, extra=about())
            full = True
        if full != was_full:
            log.warning(
                "the disk is almost full: agents must wait" if full else "there is room on the disk again",
                extra=about(),
            )
            was_full = full
            runner.pause(full)
        await asyncio.sleep(DISK_LOOK_SECONDS)


async def look_for_revocations(authority: CertificateAuthority, helen: Helen, runner: Runner) -> None:
    """A certificate that was revoked ends its connection, within a second."""
    while True:
        await asyncio.sleep(REVOKED_SECONDS)
        if authority.refresh():
            runner.take(lambda now, step: log_revoked(helen.revoke(authority.revoked, now, step)))


def log_revoked(count: int) -> None:
    """Say how many connections ended."""
    log.warning("certificates were revoked; %d connections ended", count, extra=about())


async def look_for_siblings(answers: HelenAskAnswers, helen: Helen, runner: Runner) -> None:
    """Who else is a Helen here."""
    while True:
        names = await answers.siblings()
        if names is not None:
            runner.take(functools.partial(helen.learn_siblings, names))
        await asyncio.sleep(SIBLINGS_SECONDS if names is not None else SWEEP_SECONDS)


class OwnCertificate:
    """Her certificate and what it is made of, as the files have them."""

    def __init__(self, config: HelenConfig, door: TlsServer, authority: CertificateAuthority) -> None:
        self._config = config
        self._door = door
        self._authority = authority
        self._stamps = self._look()

    def load(self) -> None:
        """Read the files anew; should one of them be wrong, the old ones count."""
        self._stamps = self._look()
        try:
            self._door.context = context_of(self._config)
        except ConfigError as error:
            log.error("the old certificate stays: %s", error, extra=about(certificate=self._config.certificate))
        else:
            log.info(
                "the certificate was read anew; it counts for whoever connects from now on",
                extra=about(certificate=self._config.certificate),
            )

    async def watch(self) -> None:
        """Read them anew whenever they change."""
        while True:
            await asyncio.sleep(FILES_SECONDS)
            if self._look() != self._stamps:
                self.load()

    async def keep_fresh(self) -> None:
        """Renew it by our own authority before it ends, if it is of that authority."""
        loop = asyncio.get_running_loop()
        path = Path(self._config.certificate)
        while True:
            try:
                await loop.run_in_executor(None, self._authority.renew_own, path, read_now().wall)
            except Exception as error:
                # It may be anybody's, and have anything in it or nothing: that is no reason to end.
                log.error("Helen's own certificate could not be renewed: %s", error, extra=about(certificate=path))
            await asyncio.sleep(RENEW_SECONDS)

    def _look(self) -> tuple[int, ...]:
        stamps = []
        for name in (self._config.certificate, self._config.private_key, self._config.client_ca):
            try:
                found = Path(name).stat()
                stamps += [found.st_mtime_ns, found.st_ino]
            except OSError:
                stamps.append(0)
        return tuple(stamps)


def context_of(config: HelenConfig) -> ssl.SSLContext:
    """What her file says about TLS."""
    return server_context(Path(config.certificate), Path(config.private_key), Path(config.client_ca))


def close_quietly(commits: Commits) -> None:
    """Its failure was told already."""
    with contextlib.suppress(Exception):
        commits.close()


def check_helen_files(config: HelenConfig, key_files: Iterable[str]) -> None:
    """Before Helen starts: her own key, `key_files` of the authority in her folder, and the mail server's password."""
    folder = Path(config.data_dir)
    given = [Path(config.private_key), *(folder / name for name in key_files)]
    if config.smtp.password_file:
        given.append(Path(config.smtp.password_file))
    check_files(folder, given)
