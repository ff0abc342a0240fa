"""`scale0 pipeline` where it needs no Spark: where it looks, what it names, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scale0.cli.common.errors import CommandError
from scale0.cli.main import cli
from scale0.cli.pipeline.locations import local_segments, segments_of
from scale0.cli.pipeline.pipeline import say_first
from scale0.history.segments.settings import ExportState, write_export_state
from tests.pipeline.idle_runs import DAMAGED, FOREIGN, Place

URL = "s3://KEY:hush@bucket/segments"


def pipeline(*words: str) -> Result:
    return CliRunner().invoke(cli, ["pipeline", *words])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def asked(place: Place, command: str, *words: str) -> Result:
    return pipeline(command, "--segments", str(place.segments), "--warehouse", str(place.warehouse), *words)


# Where it looks.


def noted(data_dir: Path, place: str) -> Path:
    """A folder in which a writer left where it writes."""
    data_dir.mkdir(parents=True, exist_ok=True)
    write_export_state(data_dir, ExportState(source="broker-1", destination=place))
    return data_dir


def test_segments_are_where_the_writer_says_that_they_are(tmp_path: Path):
    data_dir = noted(tmp_path / "data", URL)
    assert segments_of((), str(data_dir)) == (URL,)
    assert segments_of(("elsewhere",), str(data_dir)) == ("elsewhere",)
    noted(data_dir / "monitoring" / "helen", "s3://bucket/helen")
    assert local_segments(str(data_dir)) == (URL, "s3://bucket/helen")


def test_what_was_written_before_counts_and_one_folder_is_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "segments").mkdir(parents=True)
    noted(tmp_path / "data", str(tmp_path / "data" / "segments"))
    assert local_segments("data") == ("data/segments",)
    noted(tmp_path / "data", URL)
    assert local_segments("data") == ("data/segments", URL)
    (tmp_path / "shared").mkdir()
    noted(tmp_path / "data", str(tmp_path / "shared"))
    assert local_segments("data") == ("data/segments", str(tmp_path / "shared"))


def test_a_folder_without_segments_says_what_to_do(tmp_path: Path):
    noted(tmp_path, str(tmp_path / "gone"))
    with pytest.raises(CommandError, match="there are no segments in"):
        segments_of((), str(tmp_path))


# What it names.


def test_a_foreign_file_is_named_and_all_is_well(place: Place):
    (place.segments / FOREIGN).write_text("hello")
    ran = asked(place, "run")
    assert ran.exit_code == 0, ran.output
    assert f"ignored: {place.segments}/{FOREIGN}: not a segment" in ran.stderr
    assert "ignored" not in asked(place, "run").stderr, "it is said once"
    status = asked(place, "status")
    assert status.exit_code == 0
    assert f"ignored: {place.segments}/{FOREIGN}: not a segment" in status.stderr
    found = json.loads(asked(place, "status", "--json").stdout)
    assert (found["problems"], len(found["ignored"])) == ([], 1)


def test_damage_is_named_by_run_and_status_and_both_say_no(place: Place):
    (place.segments / DAMAGED).write_bytes(b"PAR1")
    for command in ("run", "status"):
        done = asked(place, command)
        assert done.exit_code == 1
        assert f"problem: {place.segments}/{DAMAGED}: " in done.stderr


def test_a_status_that_cannot_reach_some_segments_says_so_and_tells_the_rest(place: Place):
    gone = place.segments.parent / "no-folder"
    gone.write_text("hello")
    done = asked(place, "status", "--segments", str(gone))
    assert done.exit_code == 1
    assert f"problem: cannot list the segments in {gone}: " in done.stderr
    assert "up to 2026-05-10" in done.stdout
    found = json.loads(asked(place, "status", "--segments", str(gone), "--json").stdout)
    assert (found["pending"], len(found["unreachable"]), found["problems"]) == ({"segments": 0, "events": 0}, 1, [])


def test_a_name_cannot_command_a_terminal(place: Place):
    (place.segments / "written=2026-05-10" / "a\x07b").write_text("hello")
    for command in ("run", "status"):
        done = asked(place, command)
        assert "\x07" not in done.stderr
        assert "a\\x07b: not a segment" in done.stderr


# What it refuses.


@pytest.mark.parametrize("command", ["run", "stream"])
def test_too_few_days_are_wrong_usage(place: Place, command: str):
    done = asked(place, command, "--keep-days", "30")
    assert done.exit_code == 2
    assert "keep 62 days or more" in " ".join(done.stderr.split())


def test_a_stream_says_once_that_it_is_ready(capsys):
    progress: list[tuple[str, int, int]] = []
    report = say_first("ready", lambda *words: progress.append(words))
    assert capsys.readouterr().out == ""
    report("segments", 0, 1)
    report("tables", 1, 2)
    assert capsys.readouterr().out == "ready\n"
    assert progress == [("segments", 0, 1), ("tables", 1, 2)]
