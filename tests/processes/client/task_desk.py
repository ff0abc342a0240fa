"""A broker's part in tasks, played by the test: a ROUTER that takes a worker in, hands it tasks, and hears of them.

Lives here: what a worker sees of a broker (PROTOCOL 2.1, 2.3). Never here: a broker's decision: the test hands out,
takes results and cancels itself. Invariant: every wait has a deadline; the thread ends with its test.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq

import scale0
from scale0.transport.core.codec import encode
from tests.fakes.waiting import until
from tests.processes.client.net import started

HASH = "a" * 64


class TaskDesk:
    """One broker, and all that its worker said."""

    def __init__(self, takes: bool = True) -> None:
        self.takes = takes
        """Results are acknowledged as they come."""
        self.readies: list[dict[str, Any]] = []
        self.said: list[tuple[str, dict[str, Any]]] = []
        """Each task in TASKSTATUS and TASKSDONE, with its command, in order."""
        self.messages: Counter[str] = Counter()
        self.sizes: list[tuple[str, int]] = []
        """Command and number of tasks of each message."""
        self.errors: list[dict[str, Any]] = []
        self.replies: list[bytes] = []
        self._numbers = itertools.count(1)
        self._peer = b""
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._open("tcp://127.0.0.1:0")
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # What the test says.

    def task(self, method: str, params: Any = (), *, attempt: int = 1, **more: Any) -> dict[str, Any]:
        """A task, as TASKS says it."""
        number = next(self._numbers)
        return {
            "id": f"series.{number:012x}",
            "method": method,
            "params": params,
            "attempt": attempt,
            "timeout": 60,
            "owner": "broker-1",
            **more,
        }

    def hand(self, *tasks: dict[str, Any]) -> None:
        """TASKS."""
        self.say("TASKS", list(tasks))

    def take(self, *tasks: dict[str, Any], code: int = 200) -> None:
        """TASKSOK."""
        self.say("TASKSOK", [[task["id"], task["attempt"], code] for task in tasks])

    def cancel(self, *tasks: dict[str, Any]) -> None:
        """TASKSCANCEL."""
        self.say("TASKSCANCEL", [[task["id"], task["attempt"]] for task in tasks])

    def say(self, command: str, what: Any) -> None:
        with self._lock:
            self._tell(command, {}, msgspec.json.encode(what))

    def request(self, service: str, body: bytes = b"") -> None:
        """REQUEST."""
        with self._lock:
            self._tell("REQUEST", {"id": f"r{next(self._numbers)}", "service": service, "timeout": 30}, body)

    def restart(self) -> None:
        """As if killed and started again: the connection breaks, and nothing is known."""
        with self._lock:
            self._router.close(linger=0)
            self._peer = b""
            self._router = self._open(self.endpoint)

    # What the test hears.

    def of(self, task: dict[str, Any], command: str) -> list[dict[str, Any]]:
        """All that was said of one attempt of a task with a command."""
        key = task["id"], task["attempt"]
        with self._lock:
            return [told for how, told in self.said if how == command and (told["id"], told["attempt"]) == key]

    def done(self, task: dict[str, Any]) -> dict[str, Any]:
        """The outcome of a task, once it is there."""
        found: list[dict[str, Any]] = until(lambda: self.of(task, "TASKSDONE"), f"{task['id']} is done")
        return found[-1]

    def result(self, task: dict[str, Any]) -> Any:
        return self.done(task)["result"]

    def error(self, task: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.done(task)["error"]
        return found

    def runs(self, task: dict[str, Any]) -> None:
        """Wait until it is said to run."""
        until(lambda: self.of(task, "TASKSTATUS"), f"{task['id']} runs")

    def close(self) -> None:
        self._ended = True
        self._thread.join(10)
        self._router.close(linger=0)
        self._context.term()

    def _open(self, endpoint: str) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.set(zmq.LINGER, 0)
        router.set(zmq.SNDHWM, 0)
        router.set(zmq.RCVHWM, 0)
        deadline = time.monotonic() + 10
        while True:
            try:
                router.bind(endpoint)
            except zmq.ZMQError:
                assert time.monotonic() < deadline, f"{endpoint} does not become free"
                threading.Event().wait(0.01)
            else:
                return router

    def _run(self) -> None:
        pause = threading.Event()
        while not self._ended:
            with self._lock:
                for _ in range(100):
                    try:
                        peer, *frames = self._router.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    self._peer = peer
                    self._hear(frames)
            pause.wait(0.001)

    def _hear(self, frames: list[bytes]) -> None:
        if frames[1] == b"BATCH":
            for command, options, *bodies in msgspec.msgpack.decode(frames[3]):
                self._heed(command, options, bodies)
        else:
            self._heed(frames[1].decode(), msgspec.json.decode(frames[2] or b"{}"), frames[3:])

    def _heed(self, command: str, options: dict[str, Any], bodies: list[bytes]) -> None:
        self.messages[command] += 1
        match command:
            case "CHECKCONFIG":
                self._tell("CONFIGACK", {"identity": "w", "config_version": 1, "config_hash": HASH})
            case "READY":
                self.readies.append(options)
                said = {"identity": "w", "heartbeat_interval": 1.0, "time": time.time(), "config_version": 1}
                self._tell("READYOK", said)
            case "HEARTBEAT":
                self._tell("HEARTBEAT", {"time": time.time(), "config_version": 1})
            case "TASKSTATUS" | "TASKSDONE":
                tasks = msgspec.json.decode(bodies[0])
                self.said.extend((command, told) for told in tasks)
                self.sizes.append((command, len(tasks)))
                if command == "TASKSDONE" and self.takes:
                    taken = [[told["id"], told["attempt"], 200] for told in tasks]
                    self._tell("TASKSOK", {}, msgspec.json.encode(taken))
            case "REPLY":
                self.replies.append(bodies[0])
            case "ERROR":
                self.errors.append(options)
            case _:
                pass

    def _tell(self, command: str, options: dict[str, Any], *bodies: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([self._peer, *encode((command, options, *bodies))])


@contextlib.contextmanager
def task_desk(takes: bool = True) -> Iterator[TaskDesk]:
    desk = TaskDesk(takes)
    try:
        yield desk
    finally:
        desk.close()


@contextlib.contextmanager
def at_work(worker: scale0.Worker) -> Iterator[scale0.Worker]:
    """A worker that is up; ended at the end, whatever it is at."""
    with started(worker):
        yield worker
