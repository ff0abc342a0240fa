"""A database that lost commits is refused and left as it is; a check finds every value that changed on the disk."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scale0.cli.main import cli
from scale0.history.events.sources import SourceClockStepped
from scale0.kernel.clock import Now
from scale0.storage.interface import OpenedStore, StoredJournal, StoreRefused
from scale0.storage.sqlite.commit_mark import MARK_NAME, read_mark
from scale0.storage.sqlite.store import DATABASE_NAME, SqliteStore
from scale0.storage.task_rows import KEPT_ROW_BYTES, AddTaskUsage
from tests.unit.storage.task_model import end, name_of, put

COMMITS = 6
WAL = f"{DATABASE_NAME}-wal"


def write(folder: Path, commits: int = COMMITS, first: int = 1) -> OpenedStore:
    """Commits with a task and an event each; the files stay as `kill -9` leaves them."""
    store = SqliteStore(folder)
    opened = store.open()
    journal = StoredJournal("b", opened.last_boot_us + 1, opened)
    for seq in range(first, first + commits):
        now = Now(float(seq), 1_900_000_000.0 + seq)
        store.commit([put(seq, params=b'["task-%d"]' % seq), *journal.append([SourceClockStepped("b", 1.0)], now)])
    kept = folder.with_name(f"{folder.name}-killed")
    shutil.copytree(folder, kept)
    store.close()
    shutil.rmtree(folder)
    kept.rename(folder)
    return opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Without the lock, which names the process, the index of the log, and a log that is empty: a reader makes both."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    return {name: data for name, data in found.items() if not name.endswith("-shm") and data}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, size: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * size)])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda folder: cut(folder / WAL, 0.6),
    "one frame less": lambda folder: (folder / WAL).write_bytes((folder / WAL).read_bytes()[: -4096 - 24]),
    "flipped": lambda folder: flip(folder / WAL, (folder / WAL).stat().st_size * 2 // 3),
    "flipped head": lambda folder: flip(folder / WAL, 17),
    "empty": lambda folder: (folder / WAL).write_bytes(b""),
    "deleted": lambda folder: (folder / WAL).unlink(),
}


# Promise: STORE-12
@pytest.mark.parametrize("name", DAMAGES)
def test_a_database_that_lacks_commits_is_refused_and_left_as_it_is(folder, name):
    DAMAGES[name](folder)
    before = contents(folder)
    for _ in range(2):
        with pytest.raises(StoreRefused, match=r"lacks the events \d+ to 6, up to .*accept-loss"):
            SqliteStore(folder).open()
        assert contents(folder) == before


# Promise: STORE-12
def test_every_byte_of_the_log_is_either_harmless_or_noticed(tmp_path):
    """No damage of one byte makes a start lose a commit silently."""
    folder = tmp_path / "data"
    write(folder, 3)
    size = (folder / WAL).stat().st_size
    silent = 0
    for at in range(0, size, 997):
        copy = tmp_path / f"copy-{at}"
        shutil.copytree(folder, copy)
        flip(copy / WAL, at)
        store = SqliteStore(copy)
        try:
            opened = store.open()
        except StoreRefused:
            pass
        else:
            assert opened.next_seq == 4, at
            silent += 1
        store.close()
        shutil.rmtree(copy)
    assert silent < size // 997 // 2, "most bytes are of frames that count"


# Promise: STORE-12
def test_an_older_database_in_place_of_the_newer_one_is_refused(folder, tmp_path):
    older = tmp_path / "older"
    write(older, 2)
    for name in (DATABASE_NAME, WAL):
        shutil.copy(older / name, folder / name)
    with pytest.raises(StoreRefused, match="lacks the events 3 to 6, up to"):
        SqliteStore(folder).open()
    for path in folder.glob(f"{DATABASE_NAME}*"):
        path.unlink()
    with pytest.raises(StoreRefused, match="lacks the events 1 to 6"):
        SqliteStore(folder).open()


def test_a_kill_between_commit_and_mark_loses_nothing(folder):
    mark = read_mark(folder / MARK_NAME)
    assert mark is not None
    assert mark.next_seq == COMMITS + 1
    for at in (0, 512):  # the newer record is torn, or the older one
        whole = (folder / MARK_NAME).read_bytes()
        flip(folder / MARK_NAME, at + 9)
        assert (read_mark(folder / MARK_NAME) or mark).next_seq >= mark.next_seq - 1
        opened = write(folder, 2, first=COMMITS + 1 + at // 256)
        assert opened.next_seq > COMMITS
        assert whole != (folder / MARK_NAME).read_bytes()


# Promise: STORE-12
def test_an_accepted_loss_is_no_obstacle_and_no_id_is_used_again(folder):
    cut(folder / WAL, 0.9)
    result = run("accept-loss", folder)
    assert result.exit_code == 0, result.output
    found = re.search(r"the next start continues without the events ([2-6]) to 6, up to", result.output)
    assert found is not None, result.output
    assert run("accept-loss", folder).exit_code == 1
    opened = write(folder, 0)
    assert opened.next_task_seq > 2**32
    assert opened.next_seq == COMMITS + 1, "the numbers of lost events are not used again"
    write(folder, 1, first=2**33)
    rows = json.loads(run("check", folder, "--json").stdout)["findings"]
    assert ("journal", found[1]) in {(row["table"], row["row"]) for row in rows}


MARK_DAMAGES: dict[str, Callable[[Path], Any]] = {
    "garbage": lambda folder: (folder / MARK_NAME).write_bytes(b"x" * 1024),
    "empty": lambda folder: (folder / MARK_NAME).write_bytes(b""),
    "zeros": lambda folder: (folder / MARK_NAME).write_bytes(bytes(1024)),
    "both records": lambda folder: (folder / MARK_NAME).write_bytes((folder / MARK_NAME).read_bytes()[::-1]),
}


# Promise: STORE-12
@pytest.mark.parametrize("name", MARK_DAMAGES)
@pytest.mark.parametrize("has_log", [True, False])
def test_damaged_numbers_of_commits_are_refused_until_the_loss_is_accepted(folder, name, has_log, caplog):
    if not has_log:
        store = SqliteStore(folder)
        store.open()
        store.close()  # the database has the log now
        write(folder, 2, first=COMMITS + 1)
        (folder / WAL).unlink()
    MARK_DAMAGES[name](folder)
    before = contents(folder)
    for _ in range(2):
        with pytest.raises(StoreRefused, match=r"commits is damaged, .*store accept-loss"):
            SqliteStore(folder).open()
        assert contents(folder) == before
    findings = json.loads(run("check", folder, "--json").stdout)["findings"]
    assert any("commits is damaged" in row["problem"] for row in findings)
    accepted = run("accept-loss", folder)
    assert accepted.exit_code == 0, accepted.output
    assert "without the commits that it lacks, if any" in accepted.output
    assert write(folder, 0).next_task_seq > 2**32
    assert "is missing" not in caplog.text


# Promise: STORE-12
def test_missing_numbers_of_commits_are_a_warning(folder, caplog):
    (folder / MARK_NAME).unlink()
    assert write(folder, 0).next_seq == COMMITS + 1
    assert "commits is missing" in caplog.text
    assert (folder / MARK_NAME).exists()


def test_a_new_database_needs_no_numbers_of_commits(tmp_path, caplog):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / MARK_NAME).write_bytes(b"")  # an older version was killed when it had made the file
    write(tmp_path / "data", 1)
    write(tmp_path / "other", 1)
    assert caplog.text == ""


def test_a_directory_in_place_of_a_file_is_named(folder):
    (folder / MARK_NAME).unlink()
    (folder / MARK_NAME).mkdir()
    with pytest.raises(StoreRefused, match=r"cannot read .*/commits: Is a directory"):
        SqliteStore(folder).open()
    assert "commits: Is a directory" in str(run("accept-loss", folder).exception)


# Promise: STORE-12
def test_the_check_of_a_store_in_use_misses_no_commit(folder):
    store = SqliteStore(folder)
    store.open()
    done = threading.Event()

    def work() -> None:
        seq = COMMITS
        while not done.is_set():
            store.commit([put(seq := seq + 1)])

    writer = threading.Thread(target=work)
    writer.start()
    try:
        for _ in range(5):
            findings = json.loads(run("check", folder, "--json").stdout)["findings"]
            assert [row["problem"] for row in findings if row["table"] == "database"] == []
    finally:
        done.set()
        writer.join()
        store.close()


# Promise: STORE-11
def test_the_check_finds_each_damaged_value(tmp_path):
    folder = tmp_path / "data"
    write(folder, 4)
    store = SqliteStore(folder)
    store.open()
    ends = [end(1, result=b'"result-1"'), end(2, result=b'"result-2"')]
    store.commit([*ends, AddTaskUsage("ann", 0, 0, 0, sum(KEPT_ROW_BYTES + len(each.result) for each in ends))])
    assert json.loads(run("check", folder, "--json").stdout)["count"] == usage_missing  # beside the open store
    store.close()
    data = (folder / DATABASE_NAME).read_bytes()
    for old, new in ((b'"task-3"', b'"task-8"'), (b'"result-2"', b'"result-7"')):
        assert data.count(old) >= 1
        data = data.replace(old, new)
    (folder / DATABASE_NAME).write_bytes(data)
    found = run("check", folder, "--json")
    assert found.exit_code == 1
    problems = {(row["table"], row["row"]): row["problem"] for row in json.loads(found.stdout)["findings"]}
    assert "params" in problems.pop(("open_tasks", name_of(3)))
    assert "result" in problems.pop(("ended_tasks", name_of(2)))
    assert set(problems) == {("task_usage", "total")}
    shown = run("check", folder)
    assert shown.exit_code == 1
    assert name_of(3) in shown.output
    assert "open_tasks 2, ended_tasks 2, journal 4" in shown.output


usage_missing = 1
"""These tests write tasks without the sums of their quotas."""


# Promise: STORE-11
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("DELETE FROM journal WHERE first_seq = 3", ("journal", "3")),
        ("UPDATE journal SET body = x'93' WHERE first_seq = 3", ("journal", "3")),
        ("UPDATE journal SET last_seq = 9 WHERE first_seq = 6", ("journal", "6")),
        ("DELETE FROM task_ids WHERE seq = 2", ("open_tasks", name_of(2))),
        ("DELETE FROM open_tasks WHERE seq = 2", ("task_ids", name_of(2))),
        ("DELETE FROM journal WHERE first_seq > 2", ("database", "-")),
    ],
)
def test_the_check_finds_what_is_missing(folder, change, found):
    with sqlite3.connect(folder / DATABASE_NAME) as connection:
        connection.execute(change)
    rows = json.loads(run("check", folder, "--json").stdout)["findings"]
    assert found in {(row["table"], row["row"]) for row in rows}


def test_the_check_changes_nothing(folder):
    before = contents(folder)
    run("check", folder)
    assert contents(folder) == before


def test_the_check_names_a_folder_that_is_none(tmp_path):
    result = run("check", tmp_path / "no")
    assert result.exit_code == 1
    assert "there is no folder" in result.output
    assert "there is no scale0.db" in run("check", tmp_path).output


def run(command: str, folder: Path, *options: str) -> Result:
    runner = CliRunner()
    return runner.invoke(cli, ["store", command, "--data-dir", str(folder), *options])
