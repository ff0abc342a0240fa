"""The crew: threads that read the socket and run handlers.

Lives here: who reads, who runs, and when more hands are called. Never here: the protocol, or what becomes of arguments
(`perform`). The thread that reads a batch runs it too, so that a short handler costs no switch of threads; a
watch looks every few milliseconds, and calls more hands when work waits behind a slow handler. Invariants: at most
`slots` handlers of one service run at once; the watch reads the socket and sends heartbeats whenever nobody else does;
an answer waits at most one look of the watch; answers leave in the order in which they came; a thread that fails ends
the worker.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.base import codes
from scale0.broker.backend import BackendSession, Work
from scale0.client.perform import Answer, Offer, perform, perform_async
from scale0.io.link import Link, LinkClosedError

if TYPE_CHECKING:
    from scale0.client.children import Children

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


class Crew:
    """The hands of one worker."""

    def __init__(
        self,
        handlers: dict[str, Offer],
        session: BackendSession,
        link: Link,
        children: Children | None,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_fault` hears of a thread of ours that failed: without it, work may be left undone."""
        self._handlers = handlers
        self._session = session
        self._link = link
        self._children = children
        self._on_fault = on_fault
        self._queue: deque[Work] = deque()
        self._held: dict[str, deque[Work]] = {}
        self._running: dict[str, int] = {}
        self._counted: set[str] = set()
        """Requests that `_running` counts."""
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
        self._several = False
        """Several services share our slots: each must keep to its own. For one alone the broker counts."""
        self._in_hand = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._async_works: deque[Work] = deque()
        self._keep: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """One hand and the watch; the rest come when they are needed."""
        if any(handler.is_async for handler in self._handlers.values()):
            self._start_loop()
        self._add_hand()
        self._start_thread(self._watch, "scale0-watch")

    def take(self, works: Sequence[Work]) -> None:
        """Work came in. Whoever read it runs it next; the link's lock is held, so nothing is said here."""
        with self._count:
            self._in_hand += len(works)
        self._several = len(self._handlers) > 1
        for work in works:
            handler = self._handlers.get(work.service)
            if handler is None:
                self._answer(("error", work.id, (codes.NO_SUCH_SERVICE, f"{work.service} is not offered here")))
            elif handler.is_async:
                self._async_works.append(work)
            else:
                self._queue.append(work)
        if not self._busy.is_set():
            self._busy.set()
        if self._async_works:
            if self._loop is None:
                self._start_loop()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._guard, self._start_coroutines)

    def idle(self) -> bool:
        """True when nothing is in hand, and nothing waits to be said."""
        return self._in_hand == 0 and not self._answers

    def flush(self) -> None:
        """Say what is ready to be said."""
        answers = self._answers
        if not answers:
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

        try:
            self._link.act(say)
        except LinkClosedError:
            answers.clear()  # nobody waits for these any more

    def stop(self) -> None:
        """Say what is ready, and end the hands; those inside a handler end after it."""
        try:
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
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=self._guard, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guard(self, do: Callable[[], None]) -> None:
        """A thread of ours that fails would leave a worker that only looks alive: end it, loudly."""
        try:
            do()
        except BaseException as error:
            log.critical("%s failed", threading.current_thread().name, exc_info=error)
            # Whoever watches over threads hears of it first: it may want to end the process.
            threading.excepthook(
                threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
            )
            self._on_fault(error)

    def _add_hand(self) -> None:
        self._start_thread(self._work, f"scale0-hand-{len(self._threads)}")

    def _work(self) -> None:
        """One hand: run what waits, else read, else sleep."""
        while not self._stopped:
            work = self._next()
            if work is not None:
                self._run(work)
                if not self._queue or len(self._answers) >= FLUSH_ANSWERS:
                    self.flush()
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

    def _next(self) -> Work | None:
        """The next piece of work whose service has a free slot."""
        while self._queue:
            try:
                work = self._queue.popleft()
            except IndexError:
                return None
            if not self._several or self._claim(work):
                return work
        return None

    def _claim(self, work: Work) -> bool:
        """Take one of its service's own slots, or hold it until there is one."""
        handler = self._handlers.get(work.service)
        with self._count:
            running = self._running.get(work.service, 0)
            if handler is not None and running >= handler.slots:
                self._held.setdefault(work.service, deque()).append(work)
                return False
            self._running[work.service] = running + 1
            self._counted.add(work.id)
        return True

    def _release(self, work: Work, queue: deque[Work]) -> None:
        """Give the slot back; what was held for it goes to the head of `queue`."""
        with self._count:
            if work.id not in self._counted:
                return
            self._counted.discard(work.id)
            self._running[work.service] -= 1
            held = self._held.get(work.service)
            if held:
                queue.appendleft(held.popleft())

    def _watch(self) -> None:
        """Look every few milliseconds while there is work; sleep while there is none."""
        quiet = 0
        while not self._stopped:
            if quiet > QUIET_LOOKS and self._leader.locked():
                self._busy.clear()
                if self._in_hand or self._ending():
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
            quiet = 0 if self._in_hand else quiet + 1
            if self._answers:
                self.flush()
            self._call_hands()

    def _call_hands(self) -> None:
        """Work waits behind a slow handler, or nobody reads: wake sleepers, or hire."""
        done, self._done_before = self._done - self._done_before, self._done
        # While handlers are quick, more hands would only get in each other's way.
        slow = done < QUICK_HANDLERS
        waiting, self._waited = (min(len(self._queue), self._waited) if slow else 0), len(self._queue)
        wanted = waiting if self._leader.locked() else max(1, waiting)
        if wanted > 0 and self._sleepers:
            # Whoever wakes up first reads again: the watch must not be quicker.
            self._left = time.monotonic()
        while wanted > 0 and self._sleepers:
            self._sleepers.popleft().release()
            wanted -= 1
        for _ in range(min(wanted if waiting else 0, MAX_THREADS - len(self._threads))):
            self._add_hand()

    def _answer(self, answer: Answer) -> None:
        """Note an answer; the last one of a request takes it out of our hands."""
        self._answers.append(answer)
        if answer[0] != "partial":
            with self._count:
                self._in_hand -= 1
                self._done += 1

    def _run(self, work: Work) -> None:
        handler = self._handlers.get(work.service)
        try:
            if handler is None:
                self._answer(("error", work.id, (codes.NO_SUCH_SERVICE, f"{work.service} is not offered here")))
            elif handler.is_process and self._children is not None:
                self._answer(self._children.run(handler, work, self._part))
            else:
                self._answer(perform(handler, work, self._part))
        finally:
            if self._counted:
                self._release(work, self._queue)

    def _part(self, id_: str, bodies: Sequence[bytes]) -> None:
        """A part of an answer leaves at once: somebody watches it come."""
        self._answer(("partial", id_, bodies))
        self.flush()

    def _start_loop(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._start_thread(self._run_loop, "scale0-loop")

    def _run_loop(self) -> None:
        loop = self._loop
        if loop is not None:
            asyncio.set_event_loop(loop)
            loop.run_forever()
            for task in self._keep:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*self._keep, return_exceptions=True))
            loop.close()

    def _start_coroutines(self) -> None:
        loop = self._loop
        while self._async_works and loop is not None:
            work = self._async_works.popleft()
            if self._several and not self._claim(work):
                continue
            task = loop.create_task(self._coroutine(work))
            self._keep.add(task)
            task.add_done_callback(self._keep.discard)

    async def _coroutine(self, work: Work) -> None:
        handler = self._handlers.get(work.service)
        if handler is None:
            self._answer(("error", work.id, (codes.NO_SUCH_SERVICE, f"{work.service} is not offered here")))
        else:
            self._answer(await perform_async(handler, work, self._part))
        if self._counted:
            self._release(work, self._async_works)
            self._start_coroutines()
        if self._loop is not None:
            # The answers of one turn of the loop leave together.
            self._loop.call_soon(self._guard, self.flush)
