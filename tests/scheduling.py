"""Which tests share a worker, and which of them start first.

A file is never spread over workers, so that its module's fixtures are made once; one worker is Spark's and
runs no file that is marked `processes` while it has another, so that beside Spark one less of these run at a time; a
kind is known from the file's path and text alone, because the controller of pytest-xdist sees no marks.

Most of a test of processes is waiting: for a heartbeat that does not come, or a process that starts. So on two cores
three workers are quicker than two. What is said of time in such tests must hold beside another of them, and Spark.

`make durations` runs the tests of `make test` and writes `tests/durations.json`, from which the longest are begun
first. A file that is not in it is guessed by its tests. It need not be exact: it is wrong by as much as the workers end
apart.

Why not `xdist_group`: pytest-xdist 3.8 writes the group's name behind the node id, and pytest 9.2 does not let it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

PROCESSES: Final = "processes"
SPARK: Final = "spark"
PLAIN: Final = "plain"
MARK: Final = f"pytest.mark.{PROCESSES}"
SPARK_FOLDER: Final = "tests/pipeline/"

TABLE: Final = Path(__file__).with_name("durations.json")
LEAST_SECONDS: Final = 1.0
"""Files that take less are not in the table."""
GUESS_SECONDS: Final = {PROCESSES: 0.3, SPARK: 1.0, PLAIN: 0.01}
"""For each test of a file that is not in the table."""

SHARED_SECONDS: Final = 120.0
"""Of Spark's files, when nothing else is left: with less than this a second session costs more than it saves."""


def kind_of(path: str, text: str) -> str:
    """From the path of a file in the repository and its text."""
    if MARK in text:
        return PROCESSES
    return SPARK if path.startswith(SPARK_FOLDER) else PLAIN


@cache
def kind_of_file(root: Path, path: str) -> str:
    """Read once: the controller asks for every test that ended."""
    return kind_of(path, (root / path).read_text(encoding="utf-8"))


def table(file: Path = TABLE) -> dict[str, float]:
    """The seconds of each file that takes long."""
    found: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return found


def kinds_for(number: int) -> tuple[str, ...]:
    """What this worker takes, and in which order; the first is Spark's, the second may help it."""
    return {0: (SPARK, PLAIN, PROCESSES), 1: (PROCESSES, PLAIN, SPARK)}.get(number, (PROCESSES, PLAIN))


def next_for(number: int, waiting: Mapping[str, tuple[str, float]]) -> str | None:
    """The longest file of the first kind that this worker takes, or None; `waiting`: kind and seconds, by file."""
    for kind in kinds_for(number):
        files = {path: seconds for path, (its, seconds) in waiting.items() if its == kind}
        helps = kind == SPARK and number != 0
        if files and not (helps and sum(files.values()) < SHARED_SECONDS):
            return max(files, key=lambda path: files[path])
    return None


class SuiteScheduling(LoadFileScheduling):  # type: ignore[misc] # pytest-xdist ships no types
    """Gives a worker that is nearly idle the longest file of a kind that it takes."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._table = table()

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _waiting(self) -> dict[str, tuple[str, float]]:
        found = {}
        for path, tests in self.workqueue.items():
            kind = kind_of_file(self.config.rootpath, path)
            found[path] = kind, self._table.get(path, GUESS_SECONDS[kind] * len(tests))
        return found

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = int(node.gateway.id.removeprefix("gw"))
        path = next_for(number, self._waiting())
        if path is None:
            node.shutdown()  # what is left is not for this one
            return
        self.workqueue.move_to_end(path, last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Files that ended are forgotten: otherwise every test counts all that were before it."""
        super().mark_test_complete(node, item_index, duration)
        assigned = self.assigned_work[node]
        path = self._split_scope(self.registered_collections[node][item_index])
        if all(assigned[path].values()):
            del assigned[path]


class Durations:
    """A plugin: how long the tests of each file took, written to the table at the end."""

    def __init__(self, file: Path = TABLE) -> None:
        self._file = file
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Files that did not run keep their seconds, unless they are gone."""
        kept = {path: seconds for path, seconds in table(self._file).items() if path not in self._seconds}
        self._file.write_text(written({**kept, **self._seconds}.items(), Path.cwd()), encoding="utf-8")


def written(seconds: Iterable[tuple[str, float]], root: Path) -> str:
    """The table as text: a sorted line for each file that is there and takes long, so that changes are easy to read."""
    rows = {path: round(long, 1) for path, long in sorted(seconds) if long >= LEAST_SECONDS and (root / path).exists()}
    return json.dumps(rows, indent=0) + "\n"
