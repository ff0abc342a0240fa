"""An agent at work: it executes what its session, its check schedule and its spool decide.

Invariants: everything happens in the thread of the event loop; a result of the schedule is in the spool before it is
sent; the answer to a request of Helen's goes to the session of that request and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.kernel.log_context import about
from scale0.monitoring.agent.core.check_schedule import CheckSchedule, DueCheck
from scale0.monitoring.agent.core.effects import (
    AgentEffects,
    Delivered,
    HelenLost,
    Logged,
    Redirected,
    ReloadNow,
    RunCheck,
    SessionAccepted,
    SessionRefused,
    SessionUpdate,
    TakeSchedule,
    Undelivered,
)
from scale0.monitoring.agent.core.session import AgentSession
from scale0.monitoring.agent.edge.log_segment import Instant
from scale0.monitoring.agent.edge.running_checks import RunningChecks
from scale0.monitoring.agent.edge.spool import Spool, SpoolPosition
from scale0.monitoring.agent.edge.tls_client import TlsClient
from scale0.monitoring.protocol.encoder import in_one_line
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES
from scale0.monitoring.protocol.results import AGENT_REPORT, UNKNOWN, CheckFinding, write_result

log = logging.getLogger("scale0.agent")

OFFERS_PER_TURN: Final = 100
"""Reports passed to the session at once, before other events are handled."""
MAX_PENDING_BYTES: Final = 256 * 1024
"""Unsent bytes above which no more reports are passed on: an answer must not wait behind them."""
FULL_SECONDS: Final = 0.02
"""How long to wait for the socket then."""
SYNC_SECONDS: Final = 1.0
"""How long a result may be in the spool before it is synced to disk."""
EXPIRE_SECONDS: Final = 60.0
SCHEDULE_NAME: Final = "schedule.json"
BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


def read_instant() -> Instant:
    """Now. CLOCK_BOOTTIME counts suspend and never jumps, but restarts with each boot, which the boot id identifies."""
    return Instant(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


def read_boot_id() -> str:
    """The id of this boot. If the system has none, it is new for each run: ages across a restart are then unknown."""
    try:
        found = BOOT_ID_FILE.read_text().strip()
    except OSError:
        found = ""
    return found or f"unknown-{secrets.token_hex(8)}"


class ScheduleFile:
    """The last schedule that Helen sent, on disk: an agent that starts while Helen is away knows what to run.

    The file is a complete schedule or it does not exist; an unreadable file counts as none.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SCHEDULE_NAME
        self.body = self._read()
        """None: there was no schedule yet."""

    def update(self, body: bytes) -> bool:
        """Remember a schedule; True: it is new, and a thread must `write` it."""
        if body == self.body:
            return False
        self.body = body
        return True

    def write(self, body: bytes) -> None:
        """Replace the file; blocks. Raises OSError."""
        write_secret(self._path, body)

    def _read(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BLOB_BYTES)
        except OSError:
            return None


class AgentFacts(NamedTuple):
    """What an agent reports about itself when it is accepted, and the timeout of checks that Helen requests."""

    labels: Mapping[str, str]
    names: Callable[[], list[str]]
    check_timeout: float
    software: str


class AgentRuntime:
    def __init__(
        self,
        session: AgentSession,
        schedule: CheckSchedule,
        spool: Spool,
        schedule_file: ScheduleFile,
        runs: RunningChecks,
        facts: AgentFacts,
        disk: ThreadPool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._session = session
        self._schedule = schedule
        self._spool = spool
        self._schedule_file = schedule_file
        self._runs = runs
        self._facts = facts
        self._disk = disk
        self._loop = loop
        self._connection: TlsClient | None = None
        self._helen = ""
        """The address of the current connection, or of the last attempt."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._expire_at = 0.0
        self._offering = False
        self._syncing = False
        self._ended = False
        self.ending: asyncio.Future[bool] = loop.create_future()
        """Resolved when the agent should end: True for a restart, or the error that ended it."""

    def start(self, connection: TlsClient) -> None:
        """Run the stored schedule at once, and connect to Helen."""
        self._connection = connection
        if self._schedule_file.body is not None:
            self._replace_schedule(self._schedule_file.body)
        self._expire_at = read_now().mono
        self._act(self._session.start)

    def stop(self) -> None:
        """Disconnect, and start nothing any more."""
        self._act(self._session.end)
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def end(self, reload: bool = False) -> None:
        if not self.ending.done():
            self.ending.set_result(reload)

    def fail(self, error: BaseException) -> None:
        """End with an error that stage0 answers with a restart."""
        if not self.ending.done():
            self.ending.set_exception(error)

    def opened(self) -> None:
        self._act(self._session.opened)

    def received(self, data: bytes) -> None:
        self._act(lambda now, effects: self._session.received(data, now, effects))

    def lost(self, reason: str) -> None:
        self._act(lambda now, effects: self._session.lost(reason, now, effects))

    def _act(self, do: Callable[[Now, AgentEffects], None]) -> None:
        if self._ended or self._connection is None:
            return
        effects = AgentEffects()
        do(read_now(), effects)
        if effects.close:
            self._connection.close()
        if effects.open is not None:
            self._helen = "{}:{}".format(*effects.open)
            log.info("connecting to %s port %d", *effects.open, extra=about(helen=self._helen))
            self._connection.open(*effects.open)
        for data in effects.sends:
            self._connection.send(data)
        for update in effects.updates:
            self._handle(update)
        if effects.close:
            self._spool.lost()
        self._offer_soon()
        self._set_timer()

    def _handle(self, update: SessionUpdate) -> None:
        match update:
            case RunCheck(run_id, name, args):
                scheduled = self._schedule.has(name, args)
                timeout = self._facts.check_timeout
                self._runs.start(name, args, timeout, lambda found: self._answer(run_id, found), scheduled)
            case Delivered(tokens):
                self._delivered(tokens)
            case Undelivered():
                pass  # the connection is lost as well, and the spool offers all of them again
            case TakeSchedule(body):
                self._replace_schedule(body)
                if self._schedule_file.update(body):
                    self._disk.do(lambda: self._schedule_file.write(body), self._schedule_written)
            case SessionAccepted():
                log.info("Helen accepted the session", extra=about(helen=self._helen))
                self._spool.connected()
                self._introduce()
            case ReloadNow():
                log.info("Helen requested a restart of the agent", extra=about(helen=self._helen))
                self.end(reload=True)
            case SessionRefused(message):
                log.error("Helen refused the session: %s", in_one_line(message), extra=about(helen=self._helen))
            case Redirected(address):
                log.info("Helen redirects us to %s port %d", *address, extra=about(helen="{}:{}".format(*address)))
            case HelenLost(reason, retry_at):
                log.warning(
                    "not connected: %s; next attempt in %.1f s",
                    reason,
                    max(0.0, retry_at - read_now().mono),
                    extra=about(helen=self._helen),
                )
            case Logged(text):
                log.warning("Helen: %s", text, extra=about(helen=self._helen))

    def _answer(self, run_id: int, finding: CheckFinding) -> None:
        body = result_json(finding)
        self._act(lambda now, effects: self._session.finished(run_id, body, now, effects))

    def _introduce(self) -> None:
        """Report who we are. It is sent with each connection, so it needs no address in the spool."""
        spool, number = self._spool.number()
        body = msgspec.json.encode(
            {
                "state": "ok",
                "message": f"scale0 {self._facts.software}",
                "metrics": [
                    {"name": "spool_bytes", "value": self._spool.size_bytes, "unit": "B"},
                    {"name": "spool_dropped", "value": self._spool.dropped},
                    {"name": "checks_skipped", "value": self._schedule.skipped},
                    {"name": "checks_missed", "value": self._schedule.missed},
                ],
                "sent": round(read_instant().wall, 6),
                "age": 0.0,
                "spool": spool,
                "n": number,
                "labels": dict(self._facts.labels),
                "checks": self._facts.names(),
            }
        )
        self._act(lambda now, effects: self._session.offer(AGENT_REPORT, body, None, now, effects))

    def _replace_schedule(self, body: bytes) -> None:
        for error in self._schedule.replace(body, read_now()):
            log.error("schedule: %s", error, extra=about())

    def _run_due(self, due: DueCheck) -> None:
        self._runs.start(due.check, due.args, due.timeout, lambda found: self._store_result(due.name, found), True)

    def _store_result(self, name: str, finding: CheckFinding) -> None:
        """Store a result of the schedule in the spool, and offer it to the session."""
        self._schedule.done(name)
        if self._ended:
            return
        self._spool.append(name, result_json(finding, name), read_instant())
        self._offer_soon()
        if not self._syncing:
            self._syncing = True
            self._loop.call_later(SYNC_SECONDS, self._sync)

    def _offer_soon(self) -> None:
        if not self._offering and self._session.room > 0 and self._spool.has_more:
            self._offering = True
            self._loop.call_soon(self._offer)

    def _offer(self) -> None:
        self._offering = False
        if self._ended or self._connection is None:
            return
        if self._connection.pending_bytes > MAX_PENDING_BYTES:
            self._offering = True
            self._loop.call_later(FULL_SECONDS, self._offer)
            return
        instant = read_instant()

        def offers(now: Now, effects: AgentEffects) -> None:
            for _ in range(OFFERS_PER_TURN):
                offer = self._spool.next(instant) if self._session.room > 0 else None
                if offer is None:
                    return
                try:
                    self._session.offer(offer.name, offer.body, offer.position, now, effects)
                except ValueError as error:
                    log.error("dropped a result that cannot be sent: %s", error, extra=about(check=offer.name))
                    self._spool.drop(offer.position)

        self._act(offers)

    def _delivered(self, tokens: tuple[SpoolPosition | None, ...]) -> None:
        for position in tokens:
            if position is not None:
                self._spool.delivered(position)

    def _sync(self) -> None:
        work = None if self._ended else self._spool.begin_sync()
        if work is None:
            self._syncing = False
        else:
            self._disk.do(work, self._synced)

    def _synced(self, _value: Any, error: BaseException | None) -> None:
        self._syncing = False
        if error is not None:
            # Data that an fsync could not write may be lost even if the next one succeeds: restart, and read the disk.
            self.fail(error)

    def _schedule_written(self, _value: Any, error: BaseException | None) -> None:
        if error is not None:
            log.error("cannot store the schedule for the next start: %s", error, extra=about())

    def _set_timer(self) -> None:
        """Wake up for the next deadline; a timer that fires early does no harm."""
        dues = [
            due for due in (self._session.deadline(), self._schedule.deadline(), self._expire_at) if due is not None
        ]
        at = min(dues)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = read_now()
        if now.mono >= self._expire_at:
            self._expire_at = now.mono + EXPIRE_SECONDS
            self._spool.expire(read_instant())
        for due in self._schedule.due(now):
            self._run_due(due)
        self._act(self._session.tick)


def result_json(finding: CheckFinding, check: str = "") -> bytes:
    """The JSON of a finding; if it cannot be encoded, that is a defect of its check, and does not end the agent."""
    try:
        return write_result(finding)
    except (ValueError, TypeError) as error:
        log.error("cannot encode a result: %s", error, extra=about(check=check))
        return write_result(CheckFinding(UNKNOWN, "the check's result cannot be encoded as JSON", (), finding.started))
