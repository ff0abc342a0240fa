"""`scale0 audit verify`: whole after restarts, exports and retention, and broken by tampering.

Promise: AUDIT-1
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from scale0.cli.network.audit import audit
from scale0.history.events.changes import ManagementCommanded
from scale0.history.segments import arrow
from tests.processes.segments.folders import Folder

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


def test_segments_beyond_the_retention_break_nothing(folder):
    segments(folder)[0].unlink()
    status, [row] = verified(folder)
    assert (status, row["rows"], row["complete"], row["broken"]) == (0, 6, False, None)


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


def test_a_damaged_segment_is_not_called_whole(folder):
    path = segments(folder)[0]
    path.write_bytes(path.read_bytes()[:-40])
    result = CliRunner().invoke(audit, ["verify", "--data-dir", str(folder.path)])
    assert result.exit_code == 1
