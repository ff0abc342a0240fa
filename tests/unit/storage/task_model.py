"""The naivest store of tasks: two dicts and loops. And one task to begin with, from which tests make all others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from scale0.storage import task_queries as queries
from scale0.storage import task_rows as rows

replace = msgspec.structs.replace


def name_of(seq: int, series: str = "s") -> str:
    return f"{series}.{seq:012x}"


def put(seq: int, **changes: Any) -> rows.PutTask:
    usual: dict[str, Any] = {"seq": seq, "id": name_of(seq), "client": "ann", "method": "noop", "params": b"[1]"}
    usual |= {"priority": 4, "status": rows.QUEUED, "attempt": 0, "starts": 0, "node": "", "key": None}
    usual |= {"submitted_us": 1000 + seq, "runnable_us": 1000 + seq, "started_us": 0, "waits": 0}
    usual |= {"shelved": True, "followed": False, "options": b"", "info": b"", "history": b""}
    usual |= changes
    return rows.PutTask(**{"params_sum": rows.checksum(seq, usual["params"])} | usual)


def opened(seq: int, **changes: Any) -> rows.OpenTask:
    return rows.opened(put(seq, **changes))


def lease(
    seq: int, status: int = rows.ASSIGNED, attempt: int = 1, node: str = "n1", node_owner: str = ""
) -> rows.LeaseTask:
    return rows.LeaseTask(status, attempt, 0, node, node_owner, 0, seq)


def change(seq: int, **changes: Any) -> rows.ChangeTask:
    usual: dict[str, Any] = {"status": rows.QUEUED, "attempt": 1, "starts": 1, "node": "", "runnable_us": 5}
    usual |= {"node_owner": ""}
    usual |= {"started_us": 0, "waits": 0, "shelved": False, "followed": False, "info": b"", "history": b""}
    return rows.ChangeTask(**usual | {"seq": seq} | changes)


def end(seq: int, status: int = rows.FINISHED, expires_us: int = 9000, **changes: Any) -> rows.EndTask:
    usual: dict[str, Any] = {"status": status, "attempt": 1, "starts": 1, "node": "n1", "started_us": 7, "ended_us": 8}
    usual |= {"node_owner": "", "expires_us": expires_us, "result": b"2", "info": b"", "history": b""}
    usual |= {"seq": seq} | changes
    return rows.EndTask(**{"result_sum": rows.checksum(seq, usual["result"])} | usual)


class Model:
    """Both stores must say what this says; lists are held against `matching`, since a page may end where it likes."""

    def __init__(self) -> None:
        self.open: dict[int, rows.OpenTask] = {}
        self.ended: dict[int, rows.EndedTask] = {}
        self.follows: set[tuple[int, int]] = set()
        self.clients: dict[str, rows.TaskClient] = {}
        self.usage: dict[str, rows.TaskUsage] = {}
        self.next_seq = 1

    def begin(self) -> tuple[int, tuple[rows.OpenTask, ...]]:
        for seq, task in self.open.items():
            if task.status == rows.QUEUED:
                self.open[seq] = replace(task, shelved=True)
        leased = tuple(
            self.open[seq] for seq in sorted(self.open) if self.open[seq].status in (rows.ASSIGNED, rows.RUNNING)
        )
        return self.next_seq, leased

    def apply(self, write: Any) -> None:
        match write:
            case rows.PutTask():
                self.open[write.seq] = rows.opened(write)
                self.next_seq = max(self.next_seq, write.seq + 1)
            case rows.LeaseTask() | rows.ChangeTask():
                fields = msgspec.structs.asdict(write)
                self.open[write.seq] = replace(self.open[write.seq], **{"shelved": False, **fields})
            case rows.EndTask():
                whole = msgspec.structs.asdict(self.open.pop(write.seq)) | msgspec.structs.asdict(write)
                if write.status == rows.FINISHED:
                    whole["params"] = b""
                self.ended[write.seq] = msgspec.convert(whole, rows.EndedTask)
            case rows.ReopenTask():
                self._free(self.ended[write.seq])
                whole = msgspec.structs.asdict(self.ended.pop(write.seq))
                whole |= {
                    "runnable_us": write.runnable_us,
                    "status": rows.QUEUED,
                    "starts": 0,
                    "node": "",
                    "node_owner": "",
                    "started_us": 0,
                }
                whole |= {"waits": 0, "shelved": True, "info": b"", "size": len(whole["params"])}
                whole["followed"] = any(after == write.seq for after, _ in self.follows)
                self.open[write.seq] = msgspec.convert(whole, rows.OpenTask)
            case rows.SweepTasks():
                over = sorted((task.expires_us, seq) for seq, task in self.ended.items())
                for _, seq in [place for place in over if place[0] <= write.before_us][: write.limit]:
                    self._free(self.ended.pop(seq))
            case _:
                self._apply_beside(write)

    def _apply_beside(self, write: Any) -> None:
        match write:
            case rows.PutDependency(after_seq, seq):
                self.follows.add((after_seq, seq))
            case rows.DropDependency(after_seq, seqs):
                self.follows = {
                    each for each in self.follows if each[0] != after_seq or (seqs is not None and each[1] not in seqs)
                }
            case rows.PutTaskClient(name, owner, heard_us):
                known = self.clients.get(name)
                self.clients[name] = rows.TaskClient(name, known.owner if known else owner, heard_us)
            case rows.DropTaskClient(name, heard_us):
                if name in self.clients and self.clients[name].heard_us <= heard_us:
                    del self.clients[name]
            case rows.AddTaskUsage():
                self._add_usage(write)

    def _free(self, task: rows.EndedTask) -> None:
        size = 1_024 + sum(map(len, (task.params, task.result, task.info, task.history)))
        self._add_usage(rows.AddTaskUsage(rows.account_name(task.owner, task.client), 0, 0, 0, -size))

    def _add_usage(self, write: rows.AddTaskUsage) -> None:
        known = self.usage.pop(write.account, None) or rows.TaskUsage(write.account, 0, 0, 0)
        sums = [getattr(known, name) + getattr(write, name) for name in ("tasks", "bytes", "delayed", "kept")]
        if sums[0] or sums[3]:
            self.usage[write.account] = rows.TaskUsage(write.account, *sums)

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
        open_tasks = [self.open[seq] for seq in sorted(self.open)]
        match ask:
            case queries.FindTasks(ids, brief):
                found = tuple(by_id.get(each) for each in ids)
                return tuple(map(without_large, found)) if brief else found
            case queries.ReadResults():
                return self._results(ask)
            case queries.LookUpSubmission(client, ids, key, series, _, owner):
                named = [task for task in tasks if key is not None and (task.client, task.key) == (client, key)]
                keyed = [task for place in (owner, "") for task in named if task.owner == place]
                last = max((name for name in by_id if series is not None and name.startswith(f"{series}.")), default="")
                found = tuple(without_large(by_id.get(each)) for each in ids)
                first = without_large(keyed[0]) if keyed else None
                return queries.SubmissionLookup(self.clients.get(client), found, first, last)
            case queries.ReadQueue():
                return self._queue(ask, open_tasks)
            case queries.ReadOwners(method):
                shelf = [t for t in open_tasks if t.status == rows.QUEUED and t.shelved and t.method == method]
                newest = {(-task.priority, rows.account_name(task.owner, task.client)): task.seq for task in shelf}
                return tuple((-priority, client, seq) for (priority, client), seq in sorted(newest.items()))
            case queries.ReadPriorities(method):
                shelf = [
                    task for task in open_tasks if task.status == rows.QUEUED and task.shelved and task.method == method
                ]
                last_of = {task.priority: task.seq for task in shelf}
                return tuple(sorted(last_of.items(), reverse=True))
            case queries.ReadSchedule(after_us, after_seq, limit):
                due = sorted((t.runnable_us, t.seq) for t in open_tasks if t.status == rows.SCHEDULED and t.waits == 0)
                seqs = [place[1] for place in due if place > (after_us, after_seq)]
                return tuple(without_large(self.open[seq]) for seq in seqs[: max(0, limit)])
            case queries.ReadDependents(after_seq, seq, limit):
                waiting = [task for task in open_tasks if (after_seq, task.seq) in self.follows and task.seq > seq]
                return tuple(waiting[: max(0, limit)])
            case queries.CountTaskClients():
                return dict(Counter(client.owner for client in self.clients.values()))
            case queries.ReadUnusedClients(heard_us, limit):
                used = {task.client for task in tasks}
                unheard = [each.id for each in self.clients.values() if each.heard_us <= heard_us]
                return tuple(sorted(set(unheard) - used))[: max(0, limit)]
            case queries.ReadEndedDependencies(limit):
                seqs = sorted({after for after, _ in self.follows} & set(self.ended))
                return tuple(without_large(self.ended[seq]) for seq in seqs[: max(0, limit)])
            case queries.ReadExpiry(last):
                return (max if last else min)((task.expires_us for task in self.ended.values()), default=None)
            case queries.CountTasks():
                counts = {
                    status: sum(task.status == status for task in open_tasks) for status in (500, 1000, 3000, 5000)
                }
                return {status: count for status, count in counts.items() if count}

    def _results(self, ask: queries.ReadResults) -> tuple[Any, ...]:
        found = [self.ended.get(seq) for seq in ask.seqs]
        sizes = [0 if task is None else len(task.result) for task in found]
        fits = max([count for count in range(len(found) + 1) if sum(sizes[:count]) <= ask.max_bytes], default=0)
        return tuple(
            None if task is None else (task.status, task.result, task.result_sum) for task in found[: max(1, fits)]
        )

    def _queue(self, ask: queries.ReadQueue, open_tasks: list[rows.OpenTask]) -> tuple[rows.OpenTask, ...]:
        out: list[rows.OpenTask] = []
        for task in open_tasks:
            fits = task.status == rows.QUEUED and task.shelved and task.seq > ask.after_seq
            if not fits or (task.method, task.priority) != (ask.method, ask.priority):
                continue
            if ask.owner not in (None, rows.account_name(task.owner, task.client)):
                continue
            if len(out) < ask.limit and (not out or sum(len(each.params) for each in out) < ask.max_bytes):
                out.append(task)
        return tuple(out)


def without_large(task: Any) -> Any:
    """A task as a brief row shows it."""
    if task is None:
        return None
    empty = {"params": b""} if isinstance(task, rows.OpenTask) else {"params": b"", "result": b""}
    return msgspec.structs.replace(task, **empty)
