"""An agent at work: what its session, its schedule and its spool say is done.

Lives here: the one place where they meet. Never here: what is said (`monitoring.agent.core.session`), when a check is
due (`monitoring.agent.core.check_schedule`), how one runs (`runs`), or what waits on disk (`spool`). Invariants:
everything happens in the loop's thread; a result of the schedule is in the spool before it is sent; an answer for Helen
goes to who asked and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.log_context import about
from scale0.monitoring.agent.core.check_schedule import CheckSchedule, DueCheck
from scale0.monitoring.agent.core.effects import (
    AgentEffects,
    Delivered,
    HelenLost,
    Logged,
    News,
    Redirected,
    ReloadNow,
    RunCheck,
    SessionAccepted,
    SessionRefused,
    TakeSchedule,
    Undelivered,
)
from scale0.monitoring.agent.core.session import AgentSession
from scale0.monitoring.agent.edge.clock import read_instant
from scale0.monitoring.agent.edge.running_checks import RunningChecks
from scale0.monitoring.agent.edge.schedule_file import ScheduleFile
from scale0.monitoring.agent.edge.spool import Spool, SpoolPosition
from scale0.monitoring.agent.edge.thread_pool import ThreadPool
from scale0.monitoring.agent.edge.tls_client import TlsClient
from scale0.monitoring.protocol.encoder import in_one_line
from scale0.monitoring.protocol.results import AGENT_REPORT, UNKNOWN, CheckFinding, write_result

log = logging.getLogger("scale0.agent")

OFFERS_PER_TURN: Final = 100
"""Reports handed to the session at once; then others have their turn."""
MAX_PENDING_BYTES: Final = 256 * 1024
"""Bytes that wait for the socket, over which no more reports are handed out: an answer must not wait behind them."""
FULL_SECONDS: Final = 0.02
"""How long the socket is given before it is looked at again."""
SYNC_SECONDS: Final = 1.0
"""How long a result may be in the spool before the disk is asked to keep it."""
EXPIRE_SECONDS: Final = 60.0
"""How often old results are looked for."""


class AgentFacts(NamedTuple):
    """What an agent says about itself when it is accepted, and what its file says about checks."""

    labels: Mapping[str, str]
    names: Callable[[], list[str]]
    check_timeout: float
    software: str


class AgentRuntime:
    """One agent."""

    def __init__(
        self,
        session: AgentSession,
        rota: CheckSchedule,
        spool: Spool,
        plan: ScheduleFile,
        runs: RunningChecks,
        facts: AgentFacts,
        disk: ThreadPool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._session = session
        self._rota = rota
        self._spool = spool
        self._plan = plan
        self._runs = runs
        self._facts = facts
        self._disk = disk
        self._loop = loop
        self._link: TlsClient | None = None
        self._helen = ""
        """Where she is whom we speak with, or tried last."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._expire_at = 0.0
        self._offering = False
        self._syncing = False
        self._ended = False
        self.ending: asyncio.Future[bool] = loop.create_future()
        """Done when the agent should end: True for a fresh process, or the error that ended it."""

    def start(self, link: TlsClient) -> None:
        """Begin: the schedule at once, Helen as soon as she is there."""
        self._link = link
        if self._plan.body is not None:
            self._take_schedule(self._plan.body)
        self._expire_at = read_now().mono
        self._act(self._session.start)

    def stop(self) -> None:
        """Leave Helen, and begin nothing more."""
        self._act(self._session.end)
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def end(self, reload: bool = False) -> None:
        """Let whoever waits for `ending` know."""
        if not self.ending.done():
            self.ending.set_result(reload)

    def fail(self, error: BaseException) -> None:
        """We are wrong, or the disk is: end loudly, and let stage0 begin again."""
        if not self.ending.done():
            self.ending.set_exception(error)

    def opened(self) -> None:
        self._act(self._session.opened)

    def received(self, data: bytes) -> None:
        self._act(lambda now, out: self._session.received(data, now, out))

    def lost(self, reason: str) -> None:
        self._act(lambda now, out: self._session.lost(reason, now, out))

    def _act(self, do: Callable[[Now, AgentEffects], None]) -> None:
        """Let the session decide, and do what it says."""
        if self._ended or self._link is None:
            return
        out = AgentEffects()
        do(read_now(), out)
        if out.close:
            self._link.close()
        if out.open is not None:
            self._helen = "{}:{}".format(*out.open)
            log.info("connecting to %s port %d", *out.open, extra=about(helen=self._helen))
            self._link.open(*out.open)
        for data in out.sends:
            self._link.send(data)
        for news in out.news:
            self._heed(news)
        if out.close:
            self._spool.lost()
        self._offer_soon()
        self._set_timer()

    def _heed(self, news: News) -> None:
        match news:
            case RunCheck(ticket, name, args):
                self._runs.start(name, args, self._facts.check_timeout, lambda found: self._answer(ticket, found))
            case Delivered(tokens):
                self._delivered(tokens)
            case Undelivered():
                pass  # the connection is gone with them, and the spool takes back all at once
            case TakeSchedule(body):
                self._take_schedule(body)
                if self._plan.keep(body):
                    self._disk.do(lambda: self._plan.write(body), self._plan_written)
            case SessionAccepted():
                log.info("Helen accepted us", extra=about(helen=self._helen))
                self._spool.connected()
                self._introduce()
            case ReloadNow():
                log.info("Helen wants a fresh agent", extra=about(helen=self._helen))
                self.end(reload=True)
            case SessionRefused(message):
                log.error("Helen refuses us: %s", in_one_line(message), extra=about(helen=self._helen))
            case Redirected(place):
                log.info("Helen sends us to %s port %d", *place, extra=about(helen="{}:{}".format(*place)))
            case HelenLost(reason, retry_at):
                log.warning(
                    "not connected: %s; again in %.1f s",
                    reason,
                    max(0.0, retry_at - read_now().mono),
                    extra=about(helen=self._helen),
                )
            case Logged(text):
                log.warning("Helen: %s", text, extra=about(helen=self._helen))

    def _answer(self, ticket: int, finding: CheckFinding) -> None:
        body = written(finding)
        self._act(lambda now, out: self._session.finished(ticket, body, now, out))

    def _introduce(self) -> None:
        """Say who we are. It is said anew with each connection, so that it need not be kept."""
        spool, number = self._spool.number()
        body = msgspec.json.encode(
            {
                "state": "ok",
                "message": f"scale0 {self._facts.software}",
                "metrics": [
                    {"name": "spool_bytes", "value": self._spool.size_bytes, "unit": "B"},
                    {"name": "spool_dropped", "value": self._spool.dropped},
                    {"name": "checks_skipped", "value": self._rota.skipped},
                    {"name": "checks_missed", "value": self._rota.missed},
                ],
                "sent": round(read_instant().wall, 6),
                "age": 0.0,
                "spool": spool,
                "n": number,
                "labels": dict(self._facts.labels),
                "checks": self._facts.names(),
            }
        )
        self._act(lambda now, out: self._session.offer(AGENT_REPORT, body, None, now, out))

    def _take_schedule(self, body: bytes) -> None:
        for fault in self._rota.take(body, read_now()):
            log.error("the schedule: %s", fault, extra=about())

    def _run_due(self, due: DueCheck) -> None:
        self._runs.start(due.check, due.args, due.timeout, lambda found: self._record(due.name, found))

    def _record(self, name: str, finding: CheckFinding) -> None:
        """A result of the schedule: first the spool, then whoever hears it."""
        self._rota.done(name)
        if self._ended:
            return
        self._spool.append(name, written(finding, name), read_instant())
        self._offer_soon()
        if not self._syncing:
            self._syncing = True
            self._loop.call_later(SYNC_SECONDS, self._sync)

    def _offer_soon(self) -> None:
        if not self._offering and self._session.room > 0 and self._spool.has_more:
            self._offering = True
            self._loop.call_soon(self._offer)

    def _offer(self) -> None:
        """Hand reports to the session, while there is room for them."""
        self._offering = False
        if self._ended or self._link is None:
            return
        if self._link.pending_bytes > MAX_PENDING_BYTES:
            self._offering = True
            self._loop.call_later(FULL_SECONDS, self._offer)
            return
        instant = read_instant()

        def offers(now: Now, out: AgentEffects) -> None:
            for _ in range(OFFERS_PER_TURN):
                offer = self._spool.next(instant) if self._session.room > 0 else None
                if offer is None:
                    return
                try:
                    self._session.offer(offer.name, offer.body, offer.place, now, out)
                except ValueError as error:
                    log.error("a result cannot be sent and is given up: %s", error, extra=about(check=offer.name))
                    self._spool.given_up(offer.place)

        self._act(offers)

    def _delivered(self, tokens: tuple[SpoolPosition | None, ...]) -> None:
        for place in tokens:
            if place is not None:
                self._spool.delivered(place)

    def _sync(self) -> None:
        work = None if self._ended else self._spool.begin_sync()
        if work is None:
            self._syncing = False
        else:
            self._disk.do(work, self._synced)

    def _synced(self, _value: Any, error: BaseException | None) -> None:
        self._syncing = False
        if error is not None:
            # What an fsync could not write may be gone though the next one succeeds: read anew what is there.
            self.fail(error)

    def _plan_written(self, _value: Any, error: BaseException | None) -> None:
        if error is not None:
            log.error("the schedule cannot be kept for the next start: %s", error, extra=about())

    def _set_timer(self) -> None:
        """Wake up for whatever is due first; a timer that fires too early only looks again."""
        dues = [due for due in (self._session.deadline(), self._rota.deadline(), self._expire_at) if due is not None]
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
        for due in self._rota.due(now):
            self._run_due(due)
        self._act(self._session.tick)


def written(finding: CheckFinding, check: str = "") -> bytes:
    """The JSON of a finding; one that cannot be written is a fault of its check, and no end of the agent."""
    try:
        return write_result(finding)
    except (ValueError, TypeError) as error:
        log.error("a result cannot be written: %s", error, extra=about(check=check))
        return write_result(CheckFinding(UNKNOWN, "the check's result cannot be written as JSON", (), finding.started))
