"""The load of the fault campaign: submits tasks with raw JSON-RPC, repeats what was not answered, and reads results."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from evidence.model import TaskRecord
from evidence.raw import Raw

CLIENT: Final = "evidence"
METHOD: Final = "evidence.work"
ANSWER_SECONDS: Final = 3.0
WAIT_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.05
MAX_WAITED: Final = 200
REPEATED_SHARE: Final = 0.1
"""Of the acknowledged submissions that are sent once more with the same key."""
MAX_ATTEMPTS: Final = 50
"""More than kills can use up."""
MAX_REPEATED: Final = 500
"""Submissions that are sent once more at the end."""
COMPLETE: Final = ("finished", "failed", "cancelled")


class Load:
    """Two threads: one submits, one waits for ends. Both connect again, to the next broker, whenever theirs is gone."""

    def __init__(self, endpoints: Sequence[str], rate: float, seed: int, first: int = 0) -> None:
        self._endpoints = endpoints
        self._first = first
        """The number of the first task: loads of one campaign share no numbers."""
        self._pause = 1.0 / rate
        self._dice = random.Random(f"load {seed}")
        self.tasks: list[TaskRecord] = []
        self.by_id: dict[str, TaskRecord] = {}
        self.last_acknowledged = 0.0
        self._stopping = threading.Event()
        self._submitted = threading.Event()
        self._threads = [threading.Thread(target=self._submit_all), threading.Thread(target=self._follow_all)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def open(self) -> int:
        return sum(not task.ended for task in list(self.by_id.values()))

    def stop(self, seconds: float) -> None:
        """Stop submitting, and wait until every acknowledged task has ended, at most so long."""
        self._submitted.set()
        self._threads[0].join(60)
        end = time.monotonic() + seconds
        while self.open and time.monotonic() < end:
            time.sleep(0.1)
        self.abandon()

    def abandon(self) -> None:
        self._submitted.set()
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(30)

    def acknowledged_after(self, moment: float, seconds: float) -> float | None:
        """The seconds from `moment` until the next acknowledgement; None if there was none in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.last_acknowledged > moment:
                return self.last_acknowledged - moment
            time.sleep(0.01)
        return None

    def _submit_all(self) -> None:
        connection: Raw | None = None
        endpoints = itertools.cycle(self._endpoints)
        while not self._submitted.is_set():
            task = TaskRecord(self._first + len(self.tasks), seconds=self._dice.choice((0.0, 0.0, 0.2, 0.5)))
            self.tasks.append(task)
            times = 2 if self._dice.random() < REPEATED_SHARE else 1
            while len(task.ids) < times and not self._stopping.is_set():
                connection = connection or connected(endpoints, self._stopping.is_set)
                if connection is None:
                    return
                task.submissions += 1
                if not self._submit(connection, task, task.seconds):
                    connection.close()
                    connection = None
                    time.sleep(RETRY_SECONDS)
            time.sleep(self._pause)
        if connection is not None:
            connection.close()

    def submit_again(self) -> None:
        """Send acknowledged submissions once more: their keys must return the same tasks, also after their end."""
        connection = connected(itertools.cycle(self._endpoints), lambda: False)
        assert connection is not None
        for task in [task for task in self.tasks if task.acknowledged][-MAX_REPEATED:]:
            task.submissions += 1
            self._submit(connection, task, task.seconds)
        connection.close()

    def _submit(self, connection: Raw, task: TaskRecord, seconds: float) -> bool:
        """True if it was answered."""
        options = {"key": f"key-{task.number}", "max_attempts": MAX_ATTEMPTS, "timeout": 60}
        try:
            params = [CLIENT, METHOD, [task.number, seconds], None, options]
            answer = connection.call("client_new_task", *params, seconds=ANSWER_SECONDS)
        except OSError:
            return False
        if answer is None or "result" not in answer:
            return False
        task.ids.append(answer["result"])
        self.by_id[answer["result"]] = task
        self.last_acknowledged = time.monotonic()
        return True

    def _follow_all(self) -> None:
        connection: Raw | None = None
        endpoints = itertools.cycle(self._endpoints)
        while not self._stopping.is_set():
            ids = [id_ for id_, task in list(self.by_id.items()) if not task.ended][:MAX_WAITED]
            if not ids:
                time.sleep(RETRY_SECONDS)
                continue
            connection = connection or connected(endpoints, self._stopping.is_set)
            if connection is None:
                return
            try:
                answer = connection.call("client_task_wait", CLIENT, ids, WAIT_SECONDS, seconds=ANSWER_SECONDS)
            except OSError:
                answer = None
            if answer is None or "result" not in answer:
                self._note_unknown(answer, ids)
                connection.close()
                connection = None
                time.sleep(RETRY_SECONDS)
                continue
            for row in answer["result"]:
                note_end(self.by_id[row["task_id"]], row)
        if connection is not None:
            connection.close()

    def _note_unknown(self, answer: dict[str, Any] | None, ids: list[str]) -> None:
        """An acknowledged task that the broker does not know is lost; ask for each to find out which."""
        if answer is None or answer.get("error", {}).get("code") != -32020:
            return
        for id_, row in read_each(self._endpoints, ids):
            if row.get("error", {}).get("code") == -32020:
                self.by_id[id_].ended = "-32020 unknown"


def note_end(task: TaskRecord, row: dict[str, Any]) -> None:
    """Note a row of `client_task_wait`."""
    if row["status"] not in COMPLETE:
        return
    task.ended = "finished" if row["status"] == "finished" else f"{row['status']} {row.get('error')}"
    if "result" in row:
        task.results.append(json.dumps(row["result"], sort_keys=True))


def connected(endpoints: Iterator[str], stopped: Callable[[], bool]) -> Raw | None:
    """A connection to the next of these whose client id is accepted; None once `stopped`."""
    while not stopped():
        try:
            made = Raw(next(endpoints), seconds=ANSWER_SECONDS)
        except OSError:
            time.sleep(RETRY_SECONDS)
            continue
        with contextlib.suppress(OSError):
            answer = made.call("client_connect", CLIENT, seconds=ANSWER_SECONDS)
            # The id is taken while a connection of ours that is dead seems alive; it may be used all the same.
            if answer is not None:
                return made
        made.close()
        time.sleep(RETRY_SECONDS)
    return None


def read_each(endpoints: Sequence[str], ids: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The answer to `client_task_result` for each."""
    connection = connected(itertools.cycle(endpoints), lambda: False)
    assert connection is not None
    try:
        for id_ in ids:
            answer = connection.call("client_task_result", CLIENT, id_)
            if answer is not None:
                yield id_, answer
    except OSError:
        return
    finally:
        connection.close()
