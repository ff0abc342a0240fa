"""`python -m simulator.history`: its arguments, its table of what was planted, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from simulator.history.command import Amount, Day, generate_history

SMALL = ("--events", "20k", "--days", "2")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("20M", 20_000_000),
        ("1.5M", 1_500_000),
        ("200k", 200_000),
        ("200K", 200_000),
        ("50000", 50_000),
        ("2G", 2 * 10**9),
    ],
)
def test_large_numbers_are_read_as_people_write_them(text: str, number: int):
    assert Amount().convert(text, None, None) == number


@pytest.mark.parametrize("text", ["", "M", "-5", "+5", "1_000", "٣", "1e6", "20MM", " 20M", "1.M", "0x10", "9" * 13])
def test_other_numbers_are_refused(text: str):
    with pytest.raises(click.BadParameter):
        Amount().convert(text, None, None)


@pytest.mark.parametrize(
    "text", ["", "today", "2026-13-01", "2026-2-1", "2026-02-30", "02-01-2026", "2026-02-01T00:00"]
)
def test_what_is_no_day_is_refused(text: str):
    with pytest.raises(click.BadParameter):
        Day().convert(text, None, None)


def test_it_says_what_was_planted_and_what_to_do_next(tmp_path: Path):
    out = tmp_path / "history"
    done = CliRunner().invoke(generate_history, [*SMALL, "--seed", "3", "--start", "2026-03-01", "--out", str(out)])
    assert done.exit_code == 0, done.output
    for word in ("backend_outage", "slow_release", "flapping_check", "lost_segment", "rewind", "2026-03-0"):
        assert word in done.stdout
    assert " segments to " in done.stdout
    assert "scale0 pipeline run --segments" in done.stderr
    assert (out / "truths.json").is_file()
    assert list(out.glob("written=2026-03-01/seg-*.parquet"))


def test_programs_get_json(tmp_path: Path):
    out = tmp_path / "history"
    done = CliRunner().invoke(generate_history, [*SMALL, "--out", str(out), "--json"])
    reported = json.loads(done.stdout)
    assert reported["folder"] == str(out)
    assert reported["segments"] == len(list(out.glob("written=*/seg-*.parquet")))
    assert {"kind", "subject_kind", "subject", "from_us", "to_us", "facts"} == set(reported["truths"][0])
    assert reported["truths"] == json.loads((out / "truths.json").read_text())["truths"]


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    done = CliRunner().invoke(generate_history, [*SMALL, "--out", str(tmp_path)])
    assert done.exit_code != 0
    assert "is not empty" in done.stderr
    assert "--out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    on_file = CliRunner().invoke(generate_history, [*SMALL, "--out", str(tmp_path / "mine")])
    assert "is a file" in on_file.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def test_too_few_events_are_refused_with_the_number_that_would_do(tmp_path: Path):
    done = CliRunner().invoke(generate_history, ["--events", "1k", "--days", "30", "--out", str(tmp_path / "history")])
    assert done.exit_code != 0
    assert "at least 265,000 events" in done.stderr
    assert "next: raise --events" in done.stderr
    assert not (tmp_path / "history").exists()
