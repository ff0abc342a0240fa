"""The naivest store of tasks: two dicts and loops. And one task to begin with, from which tests make all others."""

from __future__ import annotations

from typing import Any

import msgspec

from scale0.storage.task_queries import (
    CountTasks,
    FindTasks,
    LookUpSubmission,
    ReadDependents,
    ReadEndedDependencies,
    ReadExpiry,
    ReadPriorities,
    ReadQueue,
    ReadSchedule,
    SubmissionLookup,
)
from scale0.storage.task_rows import (
    ASSIGNED,
    FINISHED,
    QUEUED,
    RUNNING,
    SCHEDULED,
    ChangeTask,
    DropDependency,
    DropTaskClient,
    EndedTask,
    EndTask,
    LeaseTask,
    OpenTask,
    PutDependency,
    PutTask,
    PutTaskClient,
    ReopenTask,
    SweepTasks,
    TaskClient,
)

replace = msgspec.structs.replace


def name_of(seq: int, series: str = "s") -> str:
    return f"{series}.{seq:012x}"


def put(seq: int, **changes: Any) -> PutTask:
    base: dict[str, Any] = {
        "seq": seq,
        "id": name_of(seq),
        "client": "ann",
        "method": "noop",
        "params": b"[1]",
        "priority": 4,
        "status": QUEUED,
        "attempt": 0,
        "starts": 0,
        "node": "",
        "submitted_us": 1000 + seq,
        "runnable_us": 1000 + seq,
        "started_us": 0,
        "waits": 0,
        "shelved": True,
        "followed": False,
        "key": None,
        "options": b"",
        "info": b"",
        "history": b"",
    }
    return PutTask(**{**base, **changes})


def opened(seq: int, **changes: Any) -> OpenTask:
    return OpenTask(*msgspec.structs.astuple(put(seq, **changes)))


def lease(seq: int, status: int = ASSIGNED, attempt: int = 1, node: str = "n1") -> LeaseTask:
    return LeaseTask(status, attempt, 0, node, 0, seq)


def change(seq: int, **changes: Any) -> ChangeTask:
    base: dict[str, Any] = {
        "status": QUEUED,
        "attempt": 1,
        "starts": 1,
        "node": "",
        "runnable_us": 5,
        "started_us": 0,
        "waits": 0,
        "shelved": False,
        "followed": False,
        "info": b"",
        "history": b"",
        "seq": seq,
    }
    return ChangeTask(**{**base, **changes})


def end(seq: int, status: int = FINISHED, expires_us: int = 9000, **changes: Any) -> EndTask:
    base: dict[str, Any] = {
        "status": status,
        "attempt": 1,
        "starts": 1,
        "node": "n1",
        "started_us": 7,
        "ended_us": 8,
        "expires_us": expires_us,
        "result": b"2",
        "info": b"",
        "history": b"",
        "seq": seq,
    }
    return EndTask(**{**base, **changes})


class Model:
    """Both stores must say what this says; lists are held against `matching`, since a page may end where it likes."""

    def __init__(self) -> None:
        self.open: dict[int, OpenTask] = {}
        self.ended: dict[int, EndedTask] = {}
        self.follows: set[tuple[int, int]] = set()
        self.clients: dict[str, TaskClient] = {}
        self.next_seq = 1

    def begin(self) -> tuple[int, tuple[OpenTask, ...]]:
        for seq, task in self.open.items():
            if task.status == QUEUED:
                self.open[seq] = replace(task, shelved=True)
        leased = tuple(self.open[seq] for seq in sorted(self.open) if self.open[seq].status in (ASSIGNED, RUNNING))
        return self.next_seq, leased

    def apply(self, write: Any) -> None:
        match write:
            case PutTask():
                self.open[write.seq] = OpenTask(*msgspec.structs.astuple(write))
                self.next_seq = max(self.next_seq, write.seq + 1)
            case LeaseTask() | ChangeTask():
                fields = msgspec.structs.asdict(write)
                self.open[write.seq] = replace(self.open[write.seq], **{"shelved": False, **fields})
            case EndTask():
                whole = msgspec.structs.asdict(self.open.pop(write.seq)) | msgspec.structs.asdict(write)
                if write.status == FINISHED:
                    whole["params"] = b""
                self.ended[write.seq] = msgspec.convert(whole, EndedTask)
            case ReopenTask():
                whole = msgspec.structs.asdict(self.ended.pop(write.seq))
                whole |= {"runnable_us": write.runnable_us, "status": QUEUED, "starts": 0, "node": "", "started_us": 0}
                whole |= {"waits": 0, "shelved": True, "info": b""}
                whole["followed"] = any(after == write.seq for after, _ in self.follows)
                self.open[write.seq] = msgspec.convert(whole, OpenTask)
            case SweepTasks():
                over = sorted((task.expires_us, seq) for seq, task in self.ended.items())
                for _, seq in [place for place in over if place[0] <= write.before_us][: write.limit]:
                    del self.ended[seq]
            case _:
                self._apply_beside(write)

    def _apply_beside(self, write: Any) -> None:
        match write:
            case PutDependency(after_seq, seq):
                self.follows.add((after_seq, seq))
            case DropDependency(after_seq, seqs):
                self.follows = {
                    each for each in self.follows if each[0] != after_seq or (seqs is not None and each[1] not in seqs)
                }
            case PutTaskClient(name, owner, heard_us):
                known = self.clients.get(name)
                self.clients[name] = TaskClient(name, known.owner if known else owner, heard_us)
            case DropTaskClient(name):
                self.clients.pop(name, None)

    def every(self) -> list[Any]:
        return sorted([*self.open.values(), *self.ended.values()], key=lambda task: -task.seq)

    def matching(self, **wanted: Any) -> list[int]:
        """The seqs of those that a list shows, newest first."""
        return [
            task.seq
            for task in self.every()
            if all(value is None or getattr(task, name) == value for name, value in wanted.items())
        ]

    def answer(self, ask: Any) -> Any:
        tasks = self.every()
        by_id = {task.id: task for task in tasks}
        rows = [self.open[seq] for seq in sorted(self.open)]
        match ask:
            case FindTasks(ids):
                return tuple(by_id.get(each) for each in ids)
            case LookUpSubmission(client, ids, key, series):
                keyed = [task for task in tasks if key is not None and (task.client, task.key) == (client, key)]
                last = max((name for name in by_id if series is not None and name.startswith(f"{series}.")), default="")
                found = tuple(by_id.get(each) for each in ids)
                return SubmissionLookup(self.clients.get(client), found, keyed[0] if keyed else None, last)
            case ReadQueue():
                return self._queue(ask, rows)
            case ReadPriorities(method):
                shelf = [task for task in rows if task.status == QUEUED and task.shelved and task.method == method]
                last_of = {task.priority: task.seq for task in shelf}
                return tuple(sorted(last_of.items(), reverse=True))
            case ReadSchedule(after_us, after_seq, limit):
                due = sorted((t.runnable_us, t.seq) for t in rows if t.status == SCHEDULED and t.waits == 0)
                seqs = [place[1] for place in due if place > (after_us, after_seq)]
                return tuple(self.open[seq] for seq in seqs[: max(0, limit)])
            case ReadDependents(after_seq, seq, limit):
                waiting = [task for task in rows if (after_seq, task.seq) in self.follows and task.seq > seq]
                return tuple(waiting[: max(0, limit)])
            case ReadEndedDependencies(limit):
                seqs = sorted({after for after, _ in self.follows} & set(self.ended))
                return tuple(self.ended[seq] for seq in seqs[: max(0, limit)])
            case ReadExpiry():
                return min((task.expires_us for task in self.ended.values()), default=None)
            case CountTasks():
                counts = {status: sum(task.status == status for task in rows) for status in (500, 1000, 3000, 5000)}
                return {status: count for status, count in counts.items() if count}

    def _queue(self, ask: ReadQueue, rows: list[OpenTask]) -> tuple[OpenTask, ...]:
        out: list[OpenTask] = []
        for task in rows:
            fits = task.status == QUEUED and task.shelved and task.seq > ask.after_seq
            if not fits or (task.method, task.priority) != (ask.method, ask.priority):
                continue
            if len(out) < ask.limit and (not out or sum(len(each.params) for each in out) < ask.max_bytes):
                out.append(task)
        return tuple(out)
