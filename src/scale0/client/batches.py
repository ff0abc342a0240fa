"""Stints: a hand's turn at tasks.

Lives here: announcing tasks, running them one after the other, and what their handlers say meanwhile. Never here: what
becomes of results (`tasks.node.assigned_tasks`), or which threads there are (`crew`). Invariants: no task begins before
the broker was told so; results and announcements of a stint leave in one message each; progress of one task is said ten
times a second at the most, the latest wins, and the last is said before the result.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from scale0.client.handler import Handler
from scale0.client.slots import ServiceSlots, WorkerSlots
from scale0.client.task_context import RunningTask, TaskAttempt, here
from scale0.client.task_outcome import Failure, Outcome, error_object, late, not_offered, perform_task
from scale0.kernel.clock import Now
from scale0.tasks.node.assigned_tasks import RUNNING, AssignedTask, AssignedTasks
from scale0.transport.core.backend_session import BackendSession
from scale0.transport.core.session import SessionEffects
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError

if TYPE_CHECKING:
    from scale0.client.process_pool import ProcessPool

STINT_SECONDS: Final = 0.005
"""After so long a hand looks for something else to do."""
FLUSH_RESULTS: Final = 500
"""Results that leave together at the most."""
PROGRESS_SECONDS: Final = 0.1
"""Between two words about the progress of one task."""
SETTLE_ATTEMPT: Final = 3
SETTLE_SECONDS: Final = 0.002
"""From the third attempt on, a task in our own process waits a moment after it was announced, so that the word has left
the house: a handler that kills the process at once must not go uncounted for ever."""


class ReportedProgress:
    """What a task's handler has said of its progress."""

    __slots__ = ("done", "fresh", "note", "said")

    def __init__(self) -> None:
        self.done = 0.0
        self.note = ""
        self.fresh = False
        self.said = 0.0
        """When it was last passed on; monotonic."""


class TaskBatches:
    """Tasks at work."""

    def __init__(
        self,
        offers: Mapping[str, Handler],
        stations: WorkerSlots,
        session: BackendSession,
        link: ClientSocket,
        children: ProcessPool | None,
        tasks: AssignedTasks,
    ) -> None:
        self._offers = offers
        self._stations = stations
        self._session = session
        self._link = link
        self._children = children
        self._tasks = tasks
        self.results: deque[tuple[AssignedTask, Outcome]] = deque()
        self._told: dict[AssignedTask, ReportedProgress] = {}
        self._tell_lock = threading.Lock()
        self._stopped = False

    # Under the link's lock: what the broker says, and what is said to it.

    def give(self, jobs: Sequence[AssignedTask]) -> None:
        """Tasks came."""
        known = [job for job in jobs if job.method in self._offers]
        if len(known) < len(jobs):
            self.results.extend((job, not_offered(job.method)) for job in jobs if job.method not in self._offers)
        self._stations.add(known)

    def say(self, now: Now, out: SessionEffects) -> None:
        """Say what there is to say."""
        tasks, results = self._tasks, self.results
        if self._told:
            self._say_progress(now.mono)
        for _ in range(len(results)):
            job, outcome = results.popleft()
            if self._told:
                self._last_words(job)
            if isinstance(outcome, Failure):
                tasks.fail(job, error_object(self._offers.get(job.method), outcome))
            else:
                tasks.finish(job, outcome)
        self._session.send_tasks(now, out)

    def resume(self) -> None:
        """There is a line, or room for results: tasks may begin."""
        self._stations.is_open = not self._stopped

    def stop(self) -> None:
        """Nothing more begins."""
        self._stopped = True
        self._stations.is_open = False

    def begin(
        self, picked: Sequence[tuple[ServiceSlots, Sequence[AssignedTask]]], now: Now, out: SessionEffects
    ) -> list[list[AssignedTask]]:
        """Announce tasks, and say what else there is to say; those of each station that may begin now."""
        is_ready = self._session.is_up and not self._tasks.is_full and not self._stopped
        if is_ready:
            begun = [self._tasks.start(group) for _, group in picked]
        else:
            begun = [[] for _ in picked]
            self._stations.is_open = False
            for station, group in picked:
                self._stations.put_back(station, group)
        self.say(now, out)
        return begun

    # In a hand's own thread.

    def has_words(self) -> bool:
        """True when there is something to say now."""
        return bool(self.results) or (bool(self._told) and self._progress_due(time.monotonic()))

    def run(self, station: ServiceSlots, is_wanted: Callable[[], object]) -> int:
        """One stint: until there is nothing announced, or enough is done, or the hand `is_wanted` elsewhere.

        The answer is how many tasks were run.
        """
        offer = self._offers[station.name]
        if not station.announced:
            self._announce(station, offer)
        announced, results = station.announced, self.results
        began = before = time.monotonic()
        until = began + STINT_SECONDS
        count = 0
        while announced:
            try:
                job = announced.popleft()
            except IndexError:
                break  # another hand was quicker
            if job.stop:
                continue
            job.deadline = before + job.timeout
            outcome = self._perform(offer, job)
            after = time.monotonic()
            if after > job.deadline and type(outcome) is bytes:
                outcome = late(job)
            results.append((job, outcome))
            count += 1
            before = after
            if before > until or is_wanted():
                break
        here.set(None)
        station.learn(count, before - began)
        return count

    def tell(self, job: TaskAttempt, done: float, note: str) -> None:
        """A handler says how far it is; the watch passes it on."""
        if not isinstance(job, AssignedTask) or job.state != RUNNING:
            return  # something that the handler left behind still speaks
        with self._tell_lock:
            told = self._told.get(job)
            if told is None:
                told = self._told[job] = ReportedProgress()
            told.done, told.note, told.fresh = done, note, True

    def _perform(self, offer: Handler, job: AssignedTask) -> Outcome:
        if offer.is_process and self._children is not None:
            return self._children.run_task(offer, job, self.tell)
        here.set(RunningTask(job, self.tell))
        return perform_task(offer, job)

    def _announce(self, station: ServiceSlots, offer: Handler) -> None:
        group = self._stations.pick(station)
        if not group:
            return

        def begin(now: Now, out: SessionEffects) -> None:
            (begun,) = self.begin([(station, group)], now, out)
            self._stations.announce(station, begun)

        try:
            self._link.act(begin)
        except SocketClosedError:
            return  # the worker has left: its tasks are somebody else's
        if group[0].attempt >= SETTLE_ATTEMPT and not offer.is_process:
            time.sleep(SETTLE_SECONDS)

    # Progress.

    def _progress_due(self, mono: float) -> bool:
        with self._tell_lock:
            return any(told.fresh and mono >= told.said + PROGRESS_SECONDS for told in self._told.values())

    def _say_progress(self, mono: float) -> None:
        with self._tell_lock:
            due = [
                (job, told) for job, told in self._told.items() if told.fresh and mono >= told.said + PROGRESS_SECONDS
            ]
            for job, told in due:
                told.fresh, told.said = False, mono
                self._tasks.progress(job, told.done, told.note)

    def _last_words(self, job: AssignedTask) -> None:
        with self._tell_lock:
            told = self._told.pop(job, None)
        if told is not None and told.fresh:
            self._tasks.progress(job, told.done, told.note)
