"""Tests share a worker as tests/scheduling.py says: a file stays whole, Spark has one, the longest files begin."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer

from tests.scheduling import (
    MARK,
    PLAIN,
    PROCESSES,
    SHARED_SECONDS,
    SPARK,
    Durations,
    SuiteScheduling,
    kind_of,
    next_for,
    table,
    written,
)

REPOSITORY = Path(__file__).resolve().parents[3]
TEXT = "def test_it(): ...\n"
MARKED = f"@{MARK}\n{TEXT}"
ENGINE, TRUTHS = "tests/pipeline/test_engine.py", "tests/pipeline/test_truths.py"


class Worker:
    """What the scheduler knows of a worker; it does nothing by itself."""

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


def test_a_kind_is_known_from_path_and_text():
    assert kind_of("tests/io/test_a.py", TEXT) == PLAIN
    assert kind_of(ENGINE, TEXT) == SPARK
    for path in ("tests/io/test_a.py", "tests/wire/test_b.py", "tests/pipeline/test_cluster.py"):
        assert kind_of(path, TEXT + MARKED) == PROCESSES


def test_the_longest_of_the_kind_that_a_worker_takes_is_the_next():
    waiting = {
        "p1": (PROCESSES, 5.0),
        "p2": (PROCESSES, 9.0),
        "s": (SPARK, 3.0),
        "t1": (PLAIN, 1.0),
        "t2": (PLAIN, 2.0),
    }
    assert [next_for(number, waiting) for number in range(3)] == ["s", "p2", "p2"]
    rest = {path: row for path, row in waiting.items() if row[0] == PLAIN}
    assert [next_for(number, rest) for number in range(3)] == ["t2", "t2", "t2"]


def test_the_worker_of_spark_takes_processes_last_and_one_other_helps_it_if_that_is_worth_it():
    assert next_for(0, {"p": (PROCESSES, 100.0), "t": (PLAIN, 0.1)}) == "t"
    assert next_for(0, {"p": (PROCESSES, 100.0)}) == "p"
    much, little = {"s": (SPARK, SHARED_SECONDS + 1)}, {"s": (SPARK, SHARED_SECONDS - 1)}
    assert [next_for(number, much) for number in range(3)] == ["s", "s", None]
    assert [next_for(number, little) for number in range(3)] == ["s", None, None]


def test_every_file_of_the_table_is_there():
    assert [name for name in table() if not (REPOSITORY / name).is_file()] == []


def test_every_mark_stands_in_the_text_of_its_file(request: pytest.FixtureRequest):
    """A mark that comes from elsewhere is not seen by the controller, and would have no effect."""
    marked = {item.path for item in request.session.items if item.get_closest_marker(PROCESSES)}
    assert [path for path in sorted(marked) if MARK not in path.read_text()] == []


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_workers_run_every_test_once_and_keep_files_whole_and_processes_from_spark(tmp_path, workers):
    files = {
        "tests/agent/test_real.py": (30, MARKED),
        "tests/broker/test_few.py": (2, TEXT),
        "tests/broker/test_many.py": (9, TEXT),
        "tests/pipeline/test_cluster.py": (2, MARKED),
        ENGINE: (7, TEXT),
        "tests/pipeline/test_other.py": (3, TEXT),
        TRUTHS: (8, TEXT),
        "tests/wire/test_real.py": (30, MARKED),
    }
    all_ran = ran(tmp_path, files, workers)
    ids = [nodeid for of_one in all_ran for nodeid in of_one]
    assert sorted(ids) == sorted({*ids})
    assert len(ids) == sum(count for count, _ in files.values())
    entered = [path for of_one in all_ran for path in files_of(of_one)]
    assert sorted(entered) == sorted(files)
    if workers > 1:
        assert {ENGINE, TRUTHS} <= {*files_of(all_ran[0])}
        kinds = [files[path][1] == MARKED for path in files_of(all_ran[0])]
        assert kinds == sorted(kinds), "processes come last"


def test_workers_without_processes_to_run_share_what_is_left(tmp_path):
    files = {f"tests/broker/test_{number}.py": (4, TEXT) for number in range(10)}
    first, second = ran(tmp_path, {"tests/agent/test_real.py": (4, MARKED), **files})
    assert abs(len(first) - len(second)) <= 4
    assert set(files_of(first)).isdisjoint(files_of(second))


def test_durations_are_written_for_files_that_are_there_and_take_long(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("long", "short", "other"):
        (tmp_path / name).write_text("")
    file = tmp_path / "durations.json"
    file.write_text(json.dumps({"gone": 9.0, "long": 1.0, "other": 2.0}))
    plugin = Durations(file)
    for nodeid, seconds in (("long::test_a", 3.0), ("long::test_b[::]", 4.04), ("short::test_c", 0.1)):
        plugin.pytest_runtest_logreport(types.SimpleNamespace(nodeid=nodeid, duration=seconds))  # type: ignore[arg-type]
    plugin.pytest_sessionfinish()
    assert table(file) == {"long": 7.0, "other": 2.0}
    assert file.read_text() == written(table(file).items(), tmp_path)
