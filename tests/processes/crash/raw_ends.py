"""A client and a worker, frame by frame, over all restarts of a broker: they know what was acknowledged.

A submission that was not acknowledged is sent again with the same key, and so is such a result; nothing else is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import zmq

from tests.wire.scale0.raw import Raws
from tests.wire.scale0.rpc import Client, Rpc, asked

METHOD = "crash.work"
CLIENT = "crash-client"
WORKER = "crash-worker"
IN_FLIGHT = 4
POLL_MS = 20


class RawEnds:
    """Both ends."""

    def __init__(self) -> None:
        self.next = 0
        self.sent: dict[int, int] = {}
        """Requests that are not answered: id, number."""
        self.unanswered: list[int] = []
        """Numbers that were sent to a broker that died."""
        self.accepted: dict[int, str] = {}
        """Numbers that were acknowledged, and their tasks."""
        self.handed: set[tuple[str, int]] = set()
        """Every hand-out: task and attempt."""
        self.done: dict[tuple[str, int], Any] = {}
        """Results that were not acknowledged."""
        self.stored: dict[str, Any] = {}
        """Results that were."""

    def meet(self, net: Raws) -> None:
        """New connections to a new life of the broker."""
        self.front, self.back = net.frontend(), net("backend")
        self.unanswered += self.sent.values()
        self.sent = {}
        Client(Rpc(self.front), CLIENT)
        version = self.back.check(WORKER).options["config_version"]
        said = {"services": [METHOD], "slots": 3, "time": time.time(), "config_version": version}
        self.back.say("READY", {**said, "holds": list(self.done)})
        self.back.hear_until("READYOK")
        if self.done:
            self._send_done(self.done)

    def work(self, on: Callable[[], Any], new: bool = True) -> None:
        """Go on while `on`; without `new` only what was not answered is submitted, again."""
        poller = zmq.Poller()
        for raw in (self.front, self.back):
            poller.register(raw.socket, zmq.POLLIN)
        beat = 0.0
        while on():
            if time.monotonic() > beat:
                beat = time.monotonic() + 0.3
                self.back.say("HEARTBEAT", {"time": time.time()})
            while len(self.sent) < IN_FLIGHT and (new or self.unanswered):
                self._submit()
            ready = dict(poller.poll(POLL_MS))
            if self.front.socket in ready:
                self._receive_answer(json.loads(self.front.socket.recv()))
            if self.back.socket in ready:
                self._receive_task()

    def _submit(self) -> None:
        if self.unanswered:
            number = self.unanswered.pop()
        else:
            number, self.next = self.next, self.next + 1
        options = {"key": f"k{number}", "max_attempts": 100}
        said = asked("client_new_task", CLIENT, METHOD, [number], None, options)
        self.sent[said["id"]] = number
        self.front.frames(json.dumps(said).encode())

    def _receive_answer(self, answer: dict[str, Any]) -> None:
        number = self.sent.pop(answer["id"])
        assert "result" in answer, answer
        assert self.accepted.setdefault(number, answer["result"]) == answer["result"], "one key, two tasks"

    def _receive_task(self) -> None:
        received = self.back.hear()
        if received.command == "TASKS":
            for task in received.body:
                lease = (task["id"], task["attempt"])
                assert lease not in self.handed, f"{lease} was handed out twice"
                self.handed.add(lease)
                self.done[lease] = task["params"]
            self._send_done({(task["id"], task["attempt"]): task["params"] for task in received.body})
        elif received.command == "TASKSOK":
            for id_, attempt, code in received.body:
                result = self.done.pop((id_, attempt))
                if code == 200:
                    assert self.stored.setdefault(id_, result) == result

    def _send_done(self, results: dict[tuple[str, int], Any]) -> None:
        rows = [{"id": id_, "attempt": attempt, "result": result} for (id_, attempt), result in results.items()]
        self.back.say("TASKSDONE", {}, json.dumps(rows).encode())
