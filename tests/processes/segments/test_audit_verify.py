"""`scale0 audit verify`: whole after restarts, exports and retention, and broken by tampering.

Promise: AUDIT-1
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from scale0.cli.broker.store import store
from scale0.cli.network.audit import audit
from scale0.history.events.audit import AuditStart
from scale0.history.events.changes import ManagementCommanded
from scale0.history.segments import arrow
from scale0.history.segments.names import day_at, folder_of
from scale0.history.segments.settings import EXPORT_STATE_FILE
from scale0.history.segments.writer import SegmentWriter
from scale0.kernel.confirmed_clock import CONFIRM_SECONDS
from scale0.storage.interface import AUDIT_START
from scale0.storage.rows import DropSetting, PutSetting
from tests.processes.segments.folders import NOON, Folder

pytestmark = pytest.mark.processes


def command(folder: Folder, who: str) -> None:
    folder.enter([ManagementCommanded(who, "patch_config", 200)])
    folder.beat()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Audit events in two segments and in the journal, of three boots."""
    folder = Folder(tmp_path / "data")
    for number in range(9):
        command(folder, f"admin-{number}")
        if number in (2, 5):
            folder.export()
            folder.restart()
    return folder


def verified(folder: Folder, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what it says."""
    result = CliRunner().invoke(audit, ["verify", "--json", "--data-dir", str(folder.path), *options])
    return result.exit_code, json.loads(result.stdout)


def segments(folder: Folder) -> list[Path]:
    return sorted((folder.path / "segments").rglob("*.parquet"), key=lambda path: int(path.stem.split("-")[-2]))


def rewrite(path: Path, edit: Any) -> None:
    """Change a segment as somebody who knows the format would: it is a valid segment afterwards."""
    rows = edit(pq.read_table(path).to_pylist())
    path.unlink()
    arrow.write(pa.Table.from_pylist(rows, arrow.SCHEMA), str(path))


def test_an_untouched_history_is_whole(folder):
    status, [row] = verified(folder)
    assert (status, row["source"], row["rows"], row["unchained"], row["complete"]) == (0, "east-1", 9, 0, True)
    assert row["broken"] is None
    text = CliRunner().invoke(audit, ["verify", "--data-dir", str(folder.path)])
    assert (text.exit_code, row["head"] in text.stdout) == (0, True)


def aged(folder: Folder, days: int) -> Folder:
    """The segments of the folder are so many days older, one day for each of them."""
    for path in segments(folder):
        day = day_at(NOON - days * 86_400)
        path.parent.with_name(folder_of(day)).mkdir()
        path.rename(path.parent.with_name(folder_of(day)) / path.name)
        days -= 1
    return folder


@contextlib.contextmanager
def open_writer(folder: Folder, **settings: Any) -> Iterator[SegmentWriter]:
    """One whose clock is confirmed."""
    now = [NOON]
    writer = SegmentWriter(folder.settings(**settings), wall=lambda: now[0], mono=lambda: now[0])
    now[0] += CONFIRM_SECONDS
    with contextlib.closing(writer):
        yield writer


def retention(folder: Folder, keep_days: int, *, store: bool = True, retries: int = 1) -> list[str]:
    """As the exporter and its broker do it, every few minutes: the days that were removed."""
    removed: list[str] = []
    with open_writer(folder, keep_days=keep_days) as made:
        for _ in range(retries + 1):
            removed += map(str, made.remove_old())
            if store and made.unrecorded is not None:
                folder.store.commit([PutSetting(AUDIT_START, AuditStart(made.unrecorded, folder.source).encode())])
    return removed


def text_of(folder: Folder) -> str:
    text: str = CliRunner().invoke(audit, ["verify", "--data-dir", str(folder.path)]).stdout
    return text


def forget_start(folder: Folder) -> None:
    """As a store of a version that did not record where the chain begins."""
    folder.store.commit([DropSetting(AUDIT_START)])


def test_segments_beyond_the_retention_break_nothing(folder):
    aged(folder, 10)
    assert retention(folder, 9) == ["2026-04-21"]
    status, [row] = verified(folder)
    assert (status, row["rows"], row["complete"], row["broken"]) == (0, 6, False, None)
    assert row["beginning"] == "recorded"
    assert f"those before event {row['first_seq']} are gone, as its store has recorded;" in text_of(folder)
    command(folder, "later")
    assert verified(folder)[0] == 0


def test_nothing_is_removed_before_the_store_has_the_new_beginning(folder):
    aged(folder, 10)
    assert retention(folder, 9, store=False, retries=3) == []
    assert retention(folder, 9, retries=0) == [], "a kill between the commit and the removal"
    status, [row] = verified(folder)
    assert (status, row["rows"], row["complete"]) == (0, 9, True)
    assert retention(folder, 9, retries=0) == ["2026-04-21"]
    assert verified(folder)[0] == 0


def test_oldest_segments_that_somebody_else_removed_are_found(folder):
    aged(folder, 10)
    retention(folder, 9)
    segments(folder)[0].unlink()
    status, [row] = verified(folder)
    assert (status, row["rows"], row["beginning"]) == (1, 3, None)
    assert row["broken"]["seq"] == row["first_seq"]
    assert row["broken"]["reason"] == "events before it were removed, and not by the retention"
    assert "east-1: BROKEN at event" in text_of(folder)


def test_all_segments_and_journal_rows_removed_by_somebody_else_are_found(folder):
    folder.store.trim_journal(folder.last_seq)
    for path in segments(folder):
        path.unlink()
    for option, rows in ((), 1), (("--since", "1h"), 0):
        status, found = verified(folder, *option)
        assert (status, len(found)) == (bool(rows), rows), "nothing was recorded within the last hour"
    assert "east-1: BROKEN: all events were removed (0 entries follow each other)" in text_of(folder)
    assert verified(folder)[1][0]["broken"]["seq"] == 0
    (folder.path / EXPORT_STATE_FILE).unlink()
    assert verified(folder)[0] == 1
    assert "this store: BROKEN" in text_of(folder)


def test_a_retention_that_removed_all_entries_breaks_nothing(folder):
    folder.export()
    aged(folder, 10)
    assert len(retention(folder, 5)) == 3
    status, [row] = verified(folder)
    assert (status, row["rows"], row["beginning"], row["broken"]) == (0, 0, "recorded", None)
    assert "0 entries follow each other; none is left; last hash" in text_of(folder)
    command(folder, "later")
    assert verified(folder)[1][0]["rows"] == 1
    assert verified(folder)[0] == 0


def test_a_store_of_an_older_version_gets_its_beginning_as_it_is_found(folder):
    segments(folder)[0].unlink()
    forget_start(folder)
    status, [row] = verified(folder)
    assert (status, row["rows"], row["beginning"]) == (0, 6, "unknown")
    assert "are missing, and no store that was read says why" in text_of(folder)
    assert retention(folder, 0) == []
    assert verified(folder)[1][0]["beginning"] == "recorded"
    segments(folder)[0].unlink()
    assert verified(folder)[0] == 1


def test_a_broker_with_a_new_identity_continues_the_chain_of_the_former(folder):
    folder.export()
    folder.store.close()
    renamed = Folder(folder.path, source="north-1")
    command(renamed, "ada")
    renamed.export(trim=False)
    status, rows = verified(renamed)
    assert (status, [(row["source"], row["beginning"]) for row in rows]) == (
        0,
        [("east-1", "complete"), ("north-1", "unknown")],
    )
    assert retention(renamed, 0) == []
    assert (verified(renamed)[0], verified(renamed)[1][1]["beginning"]) == (0, "recorded")
    renamed.store.close()


def test_a_store_of_an_older_version_without_entries_is_whole(folder):
    folder.store.trim_journal(folder.last_seq)
    for path in segments(folder):
        path.unlink()
    forget_start(folder)
    assert (verified(folder)[0], verified(folder)[1][0]["beginning"]) == (0, "unknown")
    retention(folder, 0)
    assert (verified(folder)[0], verified(folder)[1][0]["beginning"]) == (0, "recorded")
    command(folder, "later")
    assert verified(folder)[0] == 0


def test_the_retention_of_one_source_leaves_another_a_day_for_its_own(folder, tmp_path):
    aged(folder, 10)
    other = Folder(tmp_path / "other", source="west-1")
    for keep_days, removed in ((9, []), (8, ["2026-04-21"])):
        with open_writer(other, keep_days=keep_days, destination=str(folder.path / "segments")) as made:
            assert list(map(str, made.remove_old())) == removed
    other.store.close()


def test_a_changed_entry_of_a_segment_is_found(folder):
    def edit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        audited = [row for row in rows if row["identity"] == "admin-1"]
        audited[0]["identity"] = "mallory"
        return rows

    rewrite(segments(folder)[0], edit)
    status, [row] = verified(folder)
    assert (status, row["broken"]["seq"], row["broken"]["reason"]) == (
        1,
        5,
        "the event before it was changed or removed",
    )
    text = CliRunner().invoke(audit, ["verify", "--data-dir", str(folder.path)])
    assert (text.exit_code, "east-1: BROKEN at event 5" in text.stdout) == (1, True)


def test_a_missing_segment_in_the_middle_is_found(folder):
    segments(folder)[1].unlink()
    status, [row] = verified(folder)
    assert (status, row["rows"], row["broken"]["seq"]) == (1, 3, 13)


def test_a_removed_end_of_the_journal_is_found(folder):
    folder.store.close()
    with contextlib.closing(sqlite3.connect(folder.path / "scale0.db")) as database:
        database.execute("DELETE FROM journal WHERE first_seq >= 17")
        database.commit()
    status, [row] = verified(folder)
    assert (status, row["broken"]["seq"], row["broken"]["reason"]) == (
        1,
        15,
        "events after it were removed, or it was changed",
    )


def test_a_folder_without_a_store_is_not_called_whole_as_by_store_check(tmp_path):
    for command_of, name in ((audit, "verify"), (store, "check")):
        result = CliRunner().invoke(command_of, [name, "--data-dir", str(tmp_path)])
        assert (result.exit_code, result.stdout) == (1, ""), name


def test_store_check_and_audit_verify_exit_with_1_if_they_find_anything_and_with_0_otherwise(folder):
    folder.store.close()
    for removed, statuses in (("", [0, 0]), ("DELETE FROM journal WHERE first_seq = 15", [1, 1])):
        with contextlib.closing(sqlite3.connect(folder.path / "scale0.db")) as database:
            database.executescript(removed)
        found = [CliRunner().invoke(*each) for each in commands_of(folder)]
        assert [result.exit_code for result in found] == statuses


def commands_of(folder: Folder) -> list[tuple[Any, list[str]]]:
    return [(audit, ["verify", "--data-dir", str(folder.path)]), (store, ["check", "--data-dir", str(folder.path)])]


def test_a_damaged_segment_is_not_called_whole(folder):
    path = segments(folder)[0]
    path.write_bytes(path.read_bytes()[:-40])
    result = CliRunner().invoke(audit, ["verify", "--data-dir", str(folder.path)])
    assert result.exit_code == 1
