"""Which tests share a worker, and which of them start first.

Lives here: the groups and their order, as functions of a file's path and text. Never here: a test.
Invariants: a file is never spread over workers, so that its module's fixtures are made once; files that are marked
`processes` are one group, so that none of their tests runs beside another; a group is known from the file's path and
text alone, because the controller of pytest-xdist sees no marks.

Why not `xdist_group`: pytest-xdist 3.8 writes the group's name behind the node id, and pytest 9.2 does not let it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

PROCESSES: Final = "processes"
MARK: Final = f"pytest.mark.{PROCESSES}"
SPARK: Final = "tests/pipeline/"

LONGEST_FIRST: Final = (
    PROCESSES,  # only one worker can do it: it is under way from the start
    "tests/pipeline/judge/test_judging.py",
    "tests/pipeline/test_engine.py",
    "tests/pipeline/judge/test_drawn.py",
    "tests/sim/test_planted.py",
    "tests/pipeline/test_incremental_reads.py",
    "tests/pipeline/test_truths.py",
    "tests/pipeline/test_simulated_journal.py",
)
"""Groups of a minute and more; others follow, those of Spark first."""


def group_of(path: str, text: str) -> str:
    """The group of every test in a file, from its path in the repository and its text."""
    return PROCESSES if MARK in text else path


def place_of(group: str) -> int:
    """Groups with a lower number start earlier."""
    if group in LONGEST_FIRST:
        return LONGEST_FIRST.index(group)
    return len(LONGEST_FIRST) + (not group.startswith(SPARK))


@cache
def text_of(path: Path) -> str:
    """Read once: the controller asks again for every test that ended."""
    return path.read_text(encoding="utf-8")


class SuiteScheduling(LoadFileScheduling):  # type: ignore[misc] # pytest-xdist ships no types
    """Gives a worker that is nearly idle the next group; among groups of one place, that with the most tests."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return group_of(path, text_of(self.config.rootpath / path))

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=place_of), last=False)
        super()._assign_work_unit(node)
