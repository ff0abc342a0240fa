"""A fake broker for one worker: a ROUTER that accepts it. The test itself assigns tasks, accepts results and cancels.

Every wait has a deadline; the thread ends with its test.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import zmq

import scale0
from scale0.transport.core.codec import encode
from tests.fakes.waiting import until

HASH = "a" * 64


class FakeBroker:
    def __init__(self) -> None:
        self.acknowledges = True
        """Results are acknowledged as they come."""
        self.readies: list[dict[str, Any]] = []
        self.received: list[tuple[str, dict[str, Any]]] = []
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

    def assign(self, *tasks: dict[str, Any]) -> list[dict[str, Any]]:
        """TASKS; the tasks."""
        self.send("TASKS", list(tasks))
        return list(tasks)

    def assign_many(self, method: str, numbers: Iterable[int], **more: Any) -> list[dict[str, Any]]:
        """One task for each number, which is its argument."""
        return self.assign(*(self.task(method, [number], **more) for number in numbers))

    def acknowledge(self, *tasks: dict[str, Any], code: int = 200) -> None:
        """TASKSOK."""
        self.send("TASKSOK", [[task["id"], task["attempt"], code] for task in tasks])

    def cancel(self, *tasks: dict[str, Any]) -> None:
        """TASKSCANCEL."""
        self.send("TASKSCANCEL", [[task["id"], task["attempt"]] for task in tasks])

    def send(self, command: str, what: Any) -> None:
        with self._lock:
            self._send(command, {}, msgspec.json.encode(what))

    def request(self, service: str, body: bytes = b"") -> None:
        with self._lock:
            self._send("REQUEST", {"id": f"r{next(self._numbers)}", "service": service, "timeout": 30}, body)

    def restart(self) -> None:
        """As if killed and started again: the connection breaks, and nothing is known."""
        with self._lock:
            self._router.close(linger=0)
            self._peer = b""
            self._router = self._open(self.endpoint)

    def of(self, task: dict[str, Any], command: str) -> list[dict[str, Any]]:
        """What came about one attempt of a task with a command."""
        key = task["id"], task["attempt"]
        with self._lock:
            return [row for name, row in self.received if name == command and (row["id"], row["attempt"]) == key]

    def done(self, task: dict[str, Any]) -> dict[str, Any]:
        found: list[dict[str, Any]] = until(lambda: self.of(task, "TASKSDONE"), f"{task['id']} is done")
        return found[-1]

    def outcome(self, method: str, params: Any = (), **more: Any) -> dict[str, Any]:
        task = self.task(method, params, **more)
        self.assign(task)
        return self.done(task)

    def result(self, task: dict[str, Any]) -> Any:
        return self.done(task)["result"]

    def error(self, task: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.done(task)["error"]
        return found

    def runs(self, task: dict[str, Any]) -> None:
        """Wait until the worker reports it as running."""
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
                    self._receive(frames)
            pause.wait(0.001)

    def _receive(self, frames: list[bytes]) -> None:
        if frames[1] == b"BATCH":
            for command, options, *bodies in msgspec.msgpack.decode(frames[3]):
                self._handle(command, options, bodies)
        else:
            self._handle(frames[1].decode(), msgspec.json.decode(frames[2] or b"{}"), frames[3:])

    def _handle(self, command: str, options: dict[str, Any], bodies: list[bytes]) -> None:
        self.messages[command] += 1
        match command:
            case "CHECKCONFIG":
                self._send("CONFIGACK", {"identity": "w", "config_version": 1, "config_hash": HASH})
            case "READY":
                self.readies.append(options)
                options = {"identity": "w", "heartbeat_interval": 1.0, "time": time.time(), "config_version": 1}
                self._send("READYOK", options)
            case "HEARTBEAT":
                self._send("HEARTBEAT", {"time": time.time(), "config_version": 1})
            case "TASKSTATUS" | "TASKSDONE":
                tasks = msgspec.json.decode(bodies[0])
                self.received.extend((command, row) for row in tasks)
                self.sizes.append((command, len(tasks)))
                if command == "TASKSDONE" and self.acknowledges:
                    rows = [[row["id"], row["attempt"], 200] for row in tasks]
                    self._send("TASKSOK", {}, msgspec.json.encode(rows))
            case "REPLY":
                self.replies.append(bodies[0])
            case "ERROR":
                self.errors.append(options)

    def _send(self, command: str, options: dict[str, Any], *bodies: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([self._peer, *encode((command, options, *bodies))])


@contextlib.contextmanager
def fake_broker() -> Iterator[FakeBroker]:
    """It has no keys: clients ignore one that a killed broker left for the same port."""
    before = os.environ.get("SCALE0_KEY")
    os.environ["SCALE0_KEY"] = "none"
    broker = FakeBroker()
    try:
        yield broker
    finally:
        broker.close()
        if before is None:
            del os.environ["SCALE0_KEY"]
        else:
            os.environ["SCALE0_KEY"] = before


def worker_of(fake: FakeBroker, *functions: Callable[..., Any], **options: Any) -> scale0.Worker:
    worker = scale0.Worker(fake.endpoint, identity="w")
    for function in functions:
        worker.add(function.__name__, function, **options)
    return worker
