"""Invariants of messages about tasks: every answer, notification and command agrees with what is committed when it is
sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.kernel.effects import Message
from scale0.storage.memory.store import MemoryStore
from scale0.storage.task_queries import FindTasks
from scale0.storage.task_rows import ASSIGNED, QUEUED, RUNNING, STATUS_NAMES, EndedTask, OpenTask
from scale0.tasks.jsonrpc.messages import BAD_INPUT
from simulator.invariants.task_model import TaskModel
from simulator.network.broker import BrokerNode
from simulator.promises import broken

_any: Final = msgspec.json.Decoder()


class MessageChecks:
    def __init__(self, model: TaskModel) -> None:
        self._model = model

    def sent(self, node: BrokerNode, name: str, messages: Sequence[Message]) -> None:
        """Checks what is sent to a client or a worker."""
        store = node.disk.store
        for message in messages:
            if isinstance(message, list):
                decoded = _any.decode(message[-1]) if message[-1][:1] in (b"{", b"[") else None
                for each in decoded if isinstance(decoded, list) else [decoded]:
                    if isinstance(each, dict):
                        self._answer(store, name, each)
            elif message[0] == "TASKS":
                for task in _any.decode(message[2]):
                    self._lease(store, name, task)
            elif message[0] == "TASKSOK":
                for id_, attempt, code in _any.decode(message[2]):
                    if code == 200:
                        self._taken(store, id_, attempt)

    def _answer(self, store: MemoryStore, name: str, message: dict[str, Any]) -> None:
        error = message.get("error")
        if error is not None and error["code"] in BAD_INPUT and not name.startswith("hostile"):
            raise broken("no-false-refusal", f"{name} received {error['code']} {error['message']}")
        result = message["params"] if "method" in message else message.get("result")
        if isinstance(result, str) and result in self._model.ids:
            self._found(store, result, "acknowledged")
        for each in result if isinstance(result, list) else [result]:
            if not isinstance(each, dict):
                continue
            if "params" in each and "attempt" in each:
                self._lease(store, name, each)
            elif "task_id" in each and "status" in each:
                if name.startswith("hostile"):
                    raise broken("task-own-result", f"{name} was notified of {each['task_id']}")
                if "code" in each:
                    self._status(store, each)
                else:
                    self._ended(store, each)

    def _found(self, store: MemoryStore, id_: str, what: str) -> OpenTask | EndedTask:
        row: Any = store.read(FindTasks((id_,)))[0]  # type: ignore[index]  # a tuple as long as what was asked
        if not isinstance(row, OpenTask | EndedTask):
            raise broken("task-stored-then-sent", f"{id_} was {what}, and is not on the disk")
        return row

    def _lease(self, store: MemoryStore, name: str, task: dict[str, Any]) -> None:
        row = self._found(store, task["id"], f"handed to {name}")
        if row.attempt < task["attempt"]:
            story = f"attempt {task['attempt']} of {row.id} was handed to {name}, the disk has {row.attempt}"
            raise broken("task-stored-then-sent", story)
        if row.attempt == task["attempt"] and row.node != name and row.status in (ASSIGNED, RUNNING):
            raise broken("task-stored-then-sent", f"{row.id} was handed to {name}, the disk has {row.node}")

    def _taken(self, store: MemoryStore, id_: str, attempt: int) -> None:
        row = self._found(store, id_, "taken back with its result")
        if isinstance(row, OpenTask) and row.attempt == attempt and row.status in (ASSIGNED, RUNNING):
            raise broken("task-stored-then-sent", f"the result of {id_} was taken, the disk says {row.status}")

    def _status(self, store: MemoryStore, message: dict[str, Any]) -> None:
        row = self._found(store, message["task_id"], "reported")
        if row.attempt < message["attempt"]:
            raise broken("task-stored-then-sent", f"{row.id}: attempt {message['attempt']} was sent, not stored")
        if row.attempt == message["attempt"] and row.status < message["code"] and row.status > QUEUED:
            raise broken("task-stored-then-sent", f"{row.id}: {message['code']} was sent, the disk has {row.status}")

    def _ended(self, store: MemoryStore, message: dict[str, Any]) -> None:
        row = self._found(store, message["task_id"], "reported")
        if not isinstance(row, EndedTask) or STATUS_NAMES[row.status] != message["status"]:
            story = f"{row.id} was reported as {message['status']}, the disk has {row.status}"
            raise broken("task-stored-then-sent", story)
        body = message.get("result", message.get("error"))
        if ("result" in message or "error" in message) and _any.decode(row.result) != body:
            raise broken("task-one-result", f"{row.id}: {body} was sent, {row.result!r} is stored")
