"""The warehouse's promises: all or nothing, one driver, nothing lost that a reader may want.

Promise: PIPE-3
"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scale0.pipeline.reading import open_arrow
from scale0.pipeline.time_ranges import DAY_US
from scale0.pipeline.warehouse.ingestion import ingest_segments
from scale0.pipeline.warehouse.records import WarehouseBusy, WarehouseDamaged, WarehouseError, WarehouseFenced
from scale0.pipeline.warehouse.transaction import Transaction
from scale0.pipeline.warehouse.warehouse import FAILPOINTS, Warehouse
from tests.fakes.killed import run_program
from tests.pipeline.warehouse_made import DAY, HOUR, NOW_US, START_US, add, begin, commit, drive, put, rows, run, seqs


def state(root: Path) -> tuple[int, set[int]]:
    """(events, what the data set says): equal to each other whenever a run was committed whole."""
    warehouse = Warehouse(root)
    return len(seqs(warehouse)), set(open_arrow(warehouse, "tally")["count"].to_pylist())


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in (root / "data").rglob("*") if path.is_file()}


# The commit.


def test_a_warehouse_in_which_nothing_was_committed_is_empty(warehouse):
    assert warehouse.latest() is None
    with pytest.raises(WarehouseError, match="is empty: run `scale0 pipeline run` first"):
        open_arrow(warehouse, "events")


def test_a_manifest_says_all_that_the_tables_depend_on(warehouse, segments):
    put(segments, rows(1, 10))
    _, manifest = run(warehouse, segments)
    again = Warehouse(warehouse.root).latest()
    assert again == manifest
    assert (again.number, again.horizon_us, again.parameters, again.code_version) == (
        1,
        START_US + 9_000_000,
        {"a": 1},
        "1",
    )


def test_only_manifests_of_touched_days_are_written_again(warehouse):
    with begin(warehouse) as transaction:
        add(transaction, "tally", [(HOUR + 24 * day, "a", day) for day in range(5)])
        before = commit(transaction)
    with begin(warehouse) as transaction:
        add(transaction, "tally", [(HOUR + 24, "b", 7)])
        after = commit(transaction)
    assert [day for day in after.chapters if after.chapters[day] != before.chapters[day]] == [DAY + 1]
    assert len(list((transaction.staging.folder / "chapters").iterdir())) == 1
    assert sorted(open_arrow(warehouse, "tally")["count"].to_pylist()) == [0, 2, 3, 4, 7]


def test_a_transaction_that_is_not_committed_leaves_nothing(warehouse, segments):
    put(segments, rows(1, 10))
    with warehouse.begin() as staging:
        ingest_segments(Transaction(None, warehouse, staging), str(segments), NOW_US)
        assert files(warehouse.root)
    assert warehouse.latest() is None
    assert files(warehouse.root) == set()


@pytest.mark.parametrize("point", FAILPOINTS)
def test_an_error_at_any_step_leaves_the_old_or_the_new_and_never_a_mix(tmp_path, segments, point):
    root = tmp_path / "warehouse"
    put(segments, rows(1, 10))
    drive(root, segments)
    put(segments, rows(11, 25))
    reached = []

    def fail(name: str) -> None:
        if name == point:
            reached.append(name)
            raise OSError(errno.EIO, "the disk is on fire")

    with pytest.raises((OSError, WarehouseError)):
        drive(root, segments, fail, days=3)
    assert reached
    assert state(root) in ((10, {10}), (25, {25}))
    drive(root, segments, days=3)
    assert state(root) == (25, {25})


@pytest.mark.processes
@pytest.mark.slow
def test_kill_9_at_any_step_leaves_the_old_or_the_new_and_never_a_mix(tmp_path, segments):
    root = tmp_path / "warehouse"
    put(segments, rows(1, 10))
    drive(root, segments)
    total = 10
    for point in FAILPOINTS:
        put(segments, rows(total + 1, total + 5))
        done = run_program("tests.pipeline.warehouse_made", root, segments, point)
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        assert state(root) in ((total, {total}), (total + 5, {total + 5})), point
        drive(root, segments, days=3)
        total += 5
        assert state(root) == (total, {total})
    warehouse = Warehouse(root)
    warehouse.collect(NOW_US + 30 * DAY_US)
    assert warehouse.numbers() == [warehouse.numbers()[-1]]
    assert state(root) == (total, {total})
    once = tmp_path / "once"
    drive(once, segments)
    assert list((root / "manifest").glob(".*")) == []
    assert open_arrow(once, "events").sort_by("seq") == open_arrow(root, "events").sort_by("seq")


@pytest.mark.parametrize("step", ["write", "sync", "sync_tree"])
def test_a_full_disk_leaves_the_old_manifest_and_no_staging_directory(warehouse, segments, monkeypatch, step):
    put(segments, rows(1, 10))
    run(warehouse, segments)
    before = files(warehouse.root)
    put(segments, rows(11, 20))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"scale0.pipeline.warehouse.durable_files.{step}", full)
        with pytest.raises(OSError, match="No space left"):
            run(warehouse, segments)
    assert files(warehouse.root) == before
    assert (warehouse.numbers(), seqs(warehouse)) == ([1], list(range(1, 11)))
    assert list((warehouse.root / "manifest").glob(".*")) == []
    assert run(warehouse, segments)[0].events == 10, "and work goes on once there is room"


def test_a_full_disk_while_segments_are_fetched_says_so(warehouse, segments, monkeypatch):
    put(segments, rows(1, 10))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("scale0.pipeline.warehouse.segment_sources.os.link", full)
    with pytest.raises(WarehouseError, match=r"cannot fetch .*seg-broker-1-7-1-10.*No space left"):
        run(warehouse, segments)
    assert warehouse.latest() is None


# Two drivers.


def test_a_second_driver_is_refused_and_the_owner_is_named(warehouse):
    with warehouse.lock("run"):
        with (
            pytest.raises(WarehouseBusy, match=rf"in use by process {os.getpid()} \(run\)") as refused,
            Warehouse(warehouse.root).lock("run"),
        ):
            pass
        assert refused.value.purpose == "run"
        assert warehouse.locked
    with Warehouse(warehouse.root).lock("stream"):
        pass


@pytest.mark.processes
def test_a_driver_that_was_killed_has_let_go_of_the_lock(warehouse):
    held = (
        "import pathlib, sys\n"
        "from scale0.pipeline.warehouse.warehouse import Warehouse\n"
        "with Warehouse(pathlib.Path(sys.argv[1])).lock('stream'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", held, str(warehouse.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "held\n"
        with pytest.raises(WarehouseBusy, match=rf"process {driver.pid} \(stream\)"), warehouse.lock("run"):
            pass
        driver.kill()
        driver.wait()
        with warehouse.lock("run"):
            pass


def test_without_the_lock_the_manifest_is_the_fence(warehouse, segments):
    put(segments, rows(1, 10))
    with warehouse.begin() as slow, warehouse.begin() as quick:
        one, other = Transaction(None, warehouse, slow), Transaction(None, warehouse, quick)
        ingest_segments(one, str(segments), NOW_US)
        ingest_segments(other, str(segments), NOW_US)
        commit(other)
        with pytest.raises(WarehouseFenced, match="another driver committed manifest 1"):
            commit(one)
    assert not slow.folder.exists()
    assert (warehouse.numbers(), seqs(warehouse)) == ([1], list(range(1, 11)))


def test_a_driver_that_slept_for_days_is_fenced_though_its_number_is_free_again(warehouse, segments):
    put(segments, rows(1, 10))
    run(warehouse, segments)
    with begin(warehouse) as slept:
        for day in range(3):
            put(segments, rows(11 + day, 11 + day))
            run(warehouse, segments, now_us=NOW_US + day * 10 * DAY_US)
        warehouse.collect(NOW_US + 30 * DAY_US)
        assert warehouse.numbers() == [4]
        with pytest.raises(WarehouseFenced):
            commit(slept)
    assert warehouse.numbers() == [4]


def test_of_many_drivers_at_once_exactly_one_wins_each_number(warehouse):
    start, won = threading.Barrier(6), []

    def drive_once() -> None:
        mine = Warehouse(warehouse.root)
        with begin(mine) as transaction:
            start.wait()
            try:
                won.append(commit(transaction).number)
            except WarehouseFenced:
                pass

    threads = [threading.Thread(target=drive_once) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [1]


def test_a_file_system_without_hard_links_is_refused(warehouse, monkeypatch):
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with warehouse.begin() as staging:
        monkeypatch.setattr("scale0.pipeline.warehouse.transaction.os.link", no_links)
        with pytest.raises(WarehouseError, match="hard link"):
            commit(Transaction(None, warehouse, staging))
    assert warehouse.latest() is None


# What is damaged.


@pytest.mark.parametrize("damage", ["half", "flipped", "empty", "other number", "newer"])
def test_a_damaged_newest_manifest_is_an_error_that_says_what_to_do(warehouse, segments, damage):
    put(segments, rows(1, 10))
    _, manifest = run(warehouse, segments)
    run(warehouse, segments)
    path = warehouse.root / "manifest" / "2.json"
    body = path.read_bytes()
    newer = msgspec.structs.replace(manifest, number=2, format=99)
    raw = msgspec.json.encode(newer)
    path.write_bytes(
        {
            "half": body[: len(body) // 2],
            "flipped": body.replace(b"broker-1", b"broker-2"),
            "empty": b"",
            "other number": (warehouse.root / "manifest" / "1.json").read_bytes(),
            "newer": msgspec.json.encode({"sha256": hashlib.sha256(raw).hexdigest(), "manifest": msgspec.Raw(raw)}),
        }[damage]
    )
    with pytest.raises(
        WarehouseDamaged, match="upgrade scale0" if damage == "newer" else r"2\.json is damaged.*move it away"
    ):
        warehouse.latest()
    path.unlink()
    assert warehouse.latest() == manifest


def test_a_gap_between_manifests_is_refused(warehouse, segments):
    for _ in range(3):
        run(warehouse, segments)
    (warehouse.root / "manifest" / "2.json").unlink()
    with pytest.raises(WarehouseDamaged, match="has manifest 3 but not 2"):
        warehouse.latest()


def test_a_damaged_day_manifest_is_never_believed(warehouse, segments):
    put(segments, rows(1, 10))
    _, manifest = run(warehouse, segments)
    path = warehouse.path(manifest.chapters[DAY].path)
    path.write_bytes(path.read_bytes().replace(b'"first_seq":1,', b'"first_seq":2,'))
    with pytest.raises(
        WarehouseDamaged, match=r"day-\d+\.json is damaged: restore it from a backup; or move the .* away"
    ) as met:
        Warehouse(warehouse.root).day_manifest(manifest, DAY)
    assert "backfill" not in str(met.value), "it would read the same day manifest"


@pytest.mark.parametrize("path", ["../elsewhere", "/etc/passwd", "data/../../x"])
def test_no_path_leads_out_of_the_warehouse(warehouse, path):
    with pytest.raises(WarehouseDamaged):
        warehouse.path(path)
