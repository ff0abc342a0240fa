"""Tests share a worker as tests/scheduling.py says: a file stays whole, and real processes run one after the other."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer

from tests.scheduling import LONGEST_FIRST, MARK, PROCESSES, SuiteScheduling, group_of, place_of, text_of

REPOSITORY = Path(__file__).resolve().parents[2]
PLAIN = "def test_it(): ...\n"
MARKED = f"@{MARK}\n{PLAIN}"
ENGINE, TRUTHS = "tests/pipeline/test_engine.py", "tests/pipeline/test_truths.py"


class Worker:
    """What the scheduler knows of a worker; it does nothing until it is told to."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = types.SimpleNamespace(id=name)
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def ran(root: Path, files: dict[str, tuple[int, str]], workers: int = 2) -> list[list[str]]:
    """The node ids that each worker ran, in its order; the workers take turns, test by test."""
    for name, (_, text) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    ids = [f"{name}::test_it[{number}]" for name, (count, _) in files.items() for number in range(count)]
    words = {"tx": ["popen"] * workers}
    option = types.SimpleNamespace(loadscopereorder=True)
    config: Any = types.SimpleNamespace(getvalue=words.get, option=option, rootpath=root)
    scheduler = SuiteScheduling(config, Producer("scheduler", enabled=False))
    nodes: list[Any] = [Worker(f"gw{number}") for number in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, ids)
    scheduler.schedule()
    for turn in range(len(ids)):
        for node in nodes:
            if turn < len(node.given):
                scheduler.mark_test_complete(node, node.given[turn])
    return [[ids[index] for index in node.given] for node in nodes]


def files_of(ids: list[str]) -> list[str]:
    """The files of tests in the order in which they were entered; a file that was left and entered again is twice."""
    paths = [nodeid.partition("::")[0] for nodeid in ids]
    return [path for number, path in enumerate(paths) if number == 0 or path != paths[number - 1]]


def test_a_file_is_a_group_and_all_files_that_are_marked_are_one():
    assert group_of("tests/io/test_a.py", PLAIN) == "tests/io/test_a.py"
    assert group_of(ENGINE, PLAIN) == ENGINE
    for path in ("tests/io/test_a.py", "tests/wire/test_b.py", "tests/pipeline/test_cluster.py"):
        assert group_of(path, PLAIN + MARKED) == PROCESSES


def test_what_takes_long_starts_first_then_spark_then_the_rest():
    groups = ["tests/broker/test_a.py", "tests/pipeline/test_z.py", *reversed(LONGEST_FIRST)]
    assert sorted(groups, key=place_of) == [*LONGEST_FIRST, "tests/pipeline/test_z.py", "tests/broker/test_a.py"]


def test_every_file_that_takes_long_is_there():
    assert [name for name in LONGEST_FIRST if name != PROCESSES and not (REPOSITORY / name).is_file()] == []


def test_every_mark_stands_in_the_text_of_its_file(request: pytest.FixtureRequest):
    """A mark that comes from elsewhere is not seen by the controller, and would have no effect."""
    marked = {item.path for item in request.session.items if item.get_closest_marker(PROCESSES)}
    assert [path for path in sorted(marked) if MARK not in text_of(path)] == []


def test_workers_run_every_test_once_and_keep_files_whole_and_processes_together(tmp_path):
    files = {
        "tests/agent/test_real.py": (30, MARKED),
        "tests/broker/test_few.py": (2, PLAIN),
        "tests/broker/test_many.py": (9, PLAIN),
        "tests/pipeline/test_cluster.py": (2, MARKED),
        ENGINE: (7, PLAIN),
        "tests/pipeline/test_other.py": (3, PLAIN),
        TRUTHS: (8, PLAIN),
        "tests/wire/test_real.py": (30, MARKED),
    }
    first, second = ran(tmp_path, files)
    assert sorted(first + second) == sorted({*first, *second})
    assert len(first + second) == sum(count for count, _ in files.values())
    assert files_of(first)[:3] == [name for name, (_, text) in files.items() if text == MARKED]
    rest = ["tests/pipeline/test_other.py", "tests/broker/test_many.py", "tests/broker/test_few.py"]
    assert files_of(second) == [ENGINE, TRUTHS, *rest]


def test_a_worker_without_processes_to_run_takes_what_is_left(tmp_path):
    files = {f"tests/broker/test_{number}.py": (4, PLAIN) for number in range(10)}
    first, second = ran(tmp_path, {"tests/agent/test_real.py": (4, MARKED), **files})
    assert abs(len(first) - len(second)) <= 4
    assert set(files_of(first)).isdisjoint(files_of(second))
