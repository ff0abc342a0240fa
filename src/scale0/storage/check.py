"""The check of a whole store, row by row: checksums of params and results, ids, sums of usage, and the journal.

It reads one snapshot with the same statements in both databases, changes nothing, and may run beside the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from scale0.history.events import journal
from scale0.kernel.errors import StoreError
from scale0.storage.sql_tasks import KEPT_SIZE
from scale0.storage.task_rows import FINISHED, checksum

MAX_FINDINGS: Final = 1_000
"""Findings that a report lists; all are counted."""

Run = Callable[[str], Iterable[tuple[Any, ...]]]
"""Runs a statement, and yields its rows without reading all at once."""
Show = Callable[[str, int], None]
"""Shows progress: the table, and how many of its rows were read."""

SHOW_ROWS: Final = 1_000

_OPEN: Final = "SELECT seq, id, params, params_sum FROM open_tasks ORDER BY seq"
_ENDED: Final = "SELECT seq, id, params, params_sum, status, result, result_sum FROM ended_tasks ORDER BY seq"
_NO_ID: Final = """
    SELECT t.id FROM {table} t WHERE NOT EXISTS (SELECT 1 FROM task_ids n WHERE n.id = t.id AND n.seq = t.seq)"""
_NO_TASK: Final = """
    SELECT id FROM task_ids n WHERE n.seq IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM open_tasks t WHERE t.seq = n.seq)
    AND NOT EXISTS (SELECT 1 FROM ended_tasks t WHERE t.seq = n.seq)"""
_USAGE: Final = """
    SELECT (SELECT count(*) FROM open_tasks), (SELECT coalesce(sum(length(params)), 0) FROM open_tasks),
        (SELECT coalesce(sum(tasks), 0) FROM task_usage), (SELECT coalesce(sum(bytes), 0) FROM task_usage)"""
_KEPT: Final = f"""
    SELECT (SELECT coalesce(sum({KEPT_SIZE}), 0) FROM ended_tasks), (SELECT coalesce(sum(kept), 0) FROM task_usage)"""  # noqa: S608


class StoreFinding(NamedTuple):
    table: str
    row: str
    """The id of a task, or the number of an event."""
    problem: str


class StoreReport:
    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        """By table: the rows that were read."""
        self.without_checksum = 0
        """Tasks that a version without checksums stored."""
        self.findings: list[StoreFinding] = []
        self.count = 0
        """Of all findings."""

    def add(self, table: str, row: str, problem: str) -> None:
        self.count += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(StoreFinding(table, row, problem))


def check_store(run: Run, journal_statement: str, report: StoreReport, show: Show) -> None:
    """`journal_statement` selects (broker, first_seq, last_seq, body) in this order."""

    def rows(table: str, statement: str) -> Iterator[tuple[Any, ...]]:
        number = 0
        for number, row in enumerate(run(statement), 1):
            if number % SHOW_ROWS == 0:
                show(table, number)
            yield row
        report.rows[table] = report.rows.get(table, 0) + number

    for seq, id_, params, params_sum in rows("open_tasks", _OPEN):
        _check_sum(report, "open_tasks", id_, "params", seq, params, params_sum)
    for seq, id_, params, params_sum, status, result, result_sum in rows("ended_tasks", _ENDED):
        if status != FINISHED:  # a finished task keeps no params
            _check_sum(report, "ended_tasks", id_, "params", seq, params, params_sum)
        _check_sum(report, "ended_tasks", id_, "result", seq, result, result_sum)
    for table in ("open_tasks", "ended_tasks"):
        for (id_,) in run(_NO_ID.format(table=table)):
            report.add(table, id_, "its id is not in task_ids: nobody can find it")
    for (id_,) in run(_NO_TASK):
        report.add("task_ids", id_, "the task of this id is missing")
    for tasks, size, counted_tasks, counted_size in run(_USAGE):
        if (tasks, size) != (counted_tasks, counted_size):
            problem = f"the quotas count {counted_tasks} tasks with {counted_size} bytes, there are {tasks} with {size}"
            report.add("task_usage", "total", problem)
    for size, counted_size in run(_KEPT):
        if size != counted_size:
            problem = f"the quotas count {counted_size} bytes of ended tasks, there are {size}"
            report.add("task_usage", "total", problem)
    _check_journal(rows("journal", journal_statement), report)


def _check_sum(report: StoreReport, table: str, id_: str, name: str, seq: int, data: bytes, found: int) -> None:
    if not found:
        report.without_checksum += 1
    elif checksum(seq, data) != found:
        report.add(table, id_, f"the checksum of its {name} does not match: they are damaged")


def _check_journal(rows: Iterator[tuple[Any, ...]], report: StoreReport) -> None:
    following: dict[int, int] = {}
    for broker, first_seq, last_seq, body in rows:
        expected = following.get(broker, first_seq)
        if first_seq != expected:
            report.add("journal", str(expected), f"the events {expected} to {first_seq - 1} are missing")
        following[broker] = last_seq + 1
        try:
            numbers = [event["seq"] for event in journal.read(body)]
        except StoreError as error:
            report.add("journal", str(first_seq), str(error))
            continue
        if numbers != list(range(first_seq, last_seq + 1)):
            report.add("journal", str(first_seq), f"the row should have the events {first_seq} to {last_seq}")
