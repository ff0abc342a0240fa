"""The crew: threads that read the socket and run handlers.

Lives here: who reads, who runs, and when more hands are called. Never here: the protocol, what becomes of arguments
(`perform`, `outcome`), whose turn it is (`stations`), tasks (`stints`) or coroutines (`coroutines`). The thread that
reads a batch runs it too, so that a short handler costs no switch of threads; a watch looks every few milliseconds, and
calls more hands when work waits behind a slow handler. Invariants: at most `slots` handlers of one service run at once;
the watch reads the socket and sends heartbeats whenever nobody else does; an answer waits at most one look of the
watch; answers leave in the order in which they came; requests come before tasks, because somebody waits for them now; a
thread that fails ends the worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.client.batches import FLUSH_RESULTS, STINT_SECONDS, TaskBatches
from scale0.client.coroutine_runner import CoroutineRunner
from scale0.client.handler import Answer, Handler, perform
from scale0.client.slots import WorkerSlots
from scale0.kernel import codes
from scale0.kernel.log_context import about
from scale0.tasks.node.assigned_tasks import AssignedTask, AssignedTasks
from scale0.transport.core.backend_session import BackendSession, RequestReceived
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError

if TYPE_CHECKING:
    from scale0.client.process_pool import ProcessPool

log = logging.getLogger("scale0.worker")

LOOK_SECONDS: Final = 0.004
"""How often the watch looks while there is work."""
VACANT_SECONDS: Final = 0.001
"""How long nobody may read before the watch does: a short handler is faster than a switch of threads."""
QUIET_LOOKS: Final = 25
"""Looks without work after which the watch sleeps until there is some."""
QUICK_HANDLERS: Final = 8
"""Handlers done between two looks, from which on they are quick."""
FLUSH_ANSWERS: Final = 64
"""Answers that leave together at the most."""
MAX_THREADS: Final = 256
"""Hands of one worker; more slots than these only queue."""


class Executor:
    """The hands of one worker."""

    def __init__(
        self,
        handlers: dict[str, Handler],
        session: BackendSession,
        link: ClientSocket,
        children: ProcessPool | None,
        on_fault: Callable[[BaseException], None],
        tasks: AssignedTasks | None = None,
    ) -> None:
        """`on_fault` hears of a thread of ours that failed: without it, work may be left undone."""
        self._handlers = handlers
        self._session = session
        self._link = link
        self._children = children
        self._on_fault = on_fault
        self._stations = WorkerSlots(handlers)
        self._stints: TaskBatches | None = None
        if tasks is not None:
            self._stints = TaskBatches(handlers, self._stations, session, link, children, tasks)
        self._coroutines = CoroutineRunner(handlers, self._stations, link, self._stints, self)
        self._queue: deque[RequestReceived] = deque()
        self._count = threading.Lock()
        self._answers: deque[Answer] = deque()
        self._leader = threading.Lock()
        self._sleepers: deque[threading.Lock] = deque()
        self._left = 0.0
        """When the last reader stopped reading."""
        self._threads: list[threading.Thread] = []
        self._busy = threading.Event()
        self._pause = threading.Event()
        self._done = 0
        self._done_before = 0
        self._waited = 0
        """What waited at the last look of the watch."""
        self._stopped = False
        self._in_hand = 0

    def start(self) -> None:
        """One hand and the watch; the rest come when they are needed."""
        if any(handler.is_async for handler in self._handlers.values()):
            self._coroutines.start()
        self._add_hand()
        self.start_thread(self._watch, "scale0-watch")

    def take(self, works: Sequence[RequestReceived]) -> None:
        """Work came in. Whoever read it runs it next; the link's lock is held, so nothing is said here."""
        with self._count:
            self._in_hand += len(works)
        if len(self._handlers) > 1:
            # Several services share our slots: each must keep to its own. For one alone the broker counts.
            self._stations.counting = True
        coroutines: list[RequestReceived] = []
        for work in works:
            handler = self._handlers.get(work.service)
            if handler is None:
                self.answer(("error", work.id, (codes.NO_SUCH_SERVICE, f"{work.service} is not offered here")))
            elif handler.is_async:
                coroutines.append(work)
            else:
                self._queue.append(work)
        self._stir()
        if coroutines:
            self._coroutines.take(coroutines)

    def give(self, jobs: Sequence[AssignedTask]) -> None:
        """Tasks came in, as work does."""
        if self._stints is None:
            return
        self._stints.give(jobs)
        self._stir()
        if any((offer := self._handlers.get(job.method)) is not None and offer.is_async for job in jobs):
            self._coroutines.look()

    def cancel(self, jobs: Sequence[AssignedTask]) -> None:
        """Nobody wants these tasks any more: those in threads are told so, the others are ended."""
        self._coroutines.stop(jobs)
        if self._children is not None:
            self._children.stop(jobs)

    def resume(self) -> None:
        """Tasks may begin: there is a line, and room for results."""
        if self._stints is not None:
            self._stints.resume()
            self._stir()
            if any(handler.is_async for handler in self._handlers.values()):
                self._coroutines.look()

    def hold(self) -> None:
        """No task begins any more; those that have begun go on."""
        if self._stints is not None:
            self._stints.stop()

    def idle(self) -> bool:
        """True when nothing is being done, and nothing waits to be said."""
        if self._in_hand or self._answers or self._stations.busy:
            return False
        return self._stints is None or not self._stints.results

    def flush(self) -> None:
        """Say what is ready to be said."""
        answers, stints = self._answers, self._stints
        if not answers and (stints is None or not stints.has_words()):
            return

        def say(now: Any, out: Any) -> None:
            session = self._session
            # Taken under the link's lock: so those of two threads leave in the order in which they came.
            for _ in range(len(answers)):
                how, id_, what = answers.popleft()
                if how == "reply":
                    session.reply(id_, what, now, out)
                elif how == "partial":
                    session.partial(id_, what, now, out)
                else:
                    session.error(id_, what[0], what[1], now, out)
            if stints is not None:
                stints.say(now, out)

        try:
            self._link.act(say)
        except SocketClosedError:
            answers.clear()  # nobody waits for these any more
            if stints is not None:
                stints.results.clear()

    def stop(self) -> None:
        """Say what is ready, and end the hands; those inside a handler end after it."""
        try:
            self.hold()
            self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        self._stopped = True
        self._pause.set()
        self._busy.set()
        self._link.wake()
        while self._sleepers:
            self._sleepers.popleft().release()
        self._coroutines.end()

    def _stir(self) -> None:
        if not self._busy.is_set():
            self._busy.set()

    def start_thread(self, target: Callable[[], None], name: str) -> None:
        """A thread whose failure is heard of."""
        thread = threading.Thread(target=self.guard, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def guard(self, do: Callable[[], None]) -> None:
        """A thread of ours that fails would leave a worker that only looks alive: end it, loudly."""
        try:
            do()
        except BaseException as error:
            log.critical(
                "%s failed",
                threading.current_thread().name,
                exc_info=error,
                extra=about(thread=threading.current_thread().name),
            )
            # Whoever watches over threads hears of it first: it may want to end the process.
            threading.excepthook(
                threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
            )
            self._on_fault(error)

    def _add_hand(self) -> None:
        self.start_thread(self._work, f"scale0-hand-{len(self._threads)}")

    def _work(self) -> None:
        """One hand: run what waits, else read, else sleep."""
        while not self._stopped:
            work = self._next()
            if work is not None:
                self._run(work)
                if not self._queue or len(self._answers) >= FLUSH_ANSWERS:
                    self.flush()
            elif self._stints is not None and self._stint(self._stints):
                continue
            elif self._leader.acquire(blocking=False):
                try:
                    self.flush()
                    self._link.wait()
                    self._link.pump()
                finally:
                    self._left = time.monotonic()
                    self._leader.release()
            else:
                gate = threading.Lock()
                gate.acquire()
                self._sleepers.append(gate)
                if not self._ending():
                    gate.acquire()

    def _ending(self) -> bool:
        """Another thread may have stopped us since we looked."""
        return self._stopped

    def _next(self) -> RequestReceived | None:
        """The next piece of work whose service has a free slot."""
        while self._queue:
            try:
                work = self._queue.popleft()
            except IndexError:
                return None
            if not self._stations.counting or self._stations.claim(work):
                return work
        return None

    def _stint(self, stints: TaskBatches) -> bool:
        """A turn at tasks; False if there is none that may begin."""
        station = self._stations.enter(is_async=False)
        if station is None:
            return False
        if station.group > 1:
            # They are quick: this hand reads again before the watch need do it.
            self._left = time.monotonic() + STINT_SECONDS
        try:
            self._done += stints.run(station, self._queue.__len__)
        finally:
            self._hold_no_more(self._stations.leave(station))
        if len(stints.results) >= FLUSH_RESULTS or not self._stations.startable():
            self.flush()
        return True

    def _hold_no_more(self, held: RequestReceived | None) -> None:
        """A request whose slot is free now is the next."""
        if held is not None:
            self._queue.appendleft(held)

    def _watch(self) -> None:
        """Look every few milliseconds while there is work; sleep while there is none."""
        quiet = 0
        while not self._stopped:
            if quiet > QUIET_LOOKS and self._leader.locked():
                self._busy.clear()
                if self._at_work() or self._ending():
                    self._busy.set()
                self._busy.wait()
                quiet = 0
            if time.monotonic() - self._left > VACANT_SECONDS and self._leader.acquire(blocking=False):
                # Nobody reads: all hands are at work. Do it for them, for one look.
                try:
                    self._link.wait(LOOK_SECONDS)
                    self._link.pump()
                finally:
                    self._leader.release()
            else:
                self._pause.wait(LOOK_SECONDS)
            quiet = 0 if self._at_work() else quiet + 1
            self.flush()
            self._call_hands()

    def _at_work(self) -> bool:
        """Something is being done, or could be begun."""
        return bool(self._in_hand or self._stations.busy or self._stations.startable())

    def _call_hands(self) -> None:
        """Work waits behind a slow handler, or nobody reads: wake sleepers, or hire."""
        done, self._done_before = self._done - self._done_before, self._done
        # While handlers are quick, more hands would only get in each other's way.
        slow = done < QUICK_HANDLERS
        pending = len(self._queue) + self._stations.startable()
        waiting, self._waited = (min(pending, self._waited) if slow else 0), pending
        wanted = waiting if self._leader.locked() else max(1, waiting)
        if wanted > 0 and self._sleepers:
            # Whoever wakes up first reads again: the watch must not be quicker.
            self._left = time.monotonic()
        while wanted > 0 and self._sleepers:
            self._sleepers.popleft().release()
            wanted -= 1
        for _ in range(min(wanted if waiting else 0, MAX_THREADS - len(self._threads))):
            self._add_hand()

    def answer(self, answer: Answer) -> None:
        """Note an answer; the last one of a request takes it out of our hands."""
        self._answers.append(answer)
        if answer[0] != "partial":
            with self._count:
                self._in_hand -= 1
                self._done += 1

    def _run(self, work: RequestReceived) -> None:
        handler = self._handlers.get(work.service)
        try:
            if handler is None:
                self.answer(("error", work.id, (codes.NO_SUCH_SERVICE, f"{work.service} is not offered here")))
            elif handler.is_process and self._children is not None:
                self.answer(self._children.run(handler, work, self.part))
            else:
                self.answer(perform(handler, work, self.part))
        finally:
            self._hold_no_more(self._stations.release(work))

    def part(self, id_: str, bodies: Sequence[bytes]) -> None:
        """A part of an answer leaves at once: somebody watches it come."""
        self.answer(("partial", id_, bodies))
        self.flush()
