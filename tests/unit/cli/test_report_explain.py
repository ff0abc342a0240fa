"""`scale0 explain` reads the journal, the segments and the warehouse of a network, and tells each event once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scale0.cli.main import cli
from scale0.cli.network.explain import gaps_between
from scale0.history.events.tasks import TaskSubmitted
from scale0.history.segments.names import Segment
from tests.pipeline import reports_made as world
from tests.processes.segments.folders import Folder


def explain(*words: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *words])


@pytest.fixture
def folder(tmp_path):
    """A broker's folder, with a journal of just now."""
    made = Folder(tmp_path / "data", wall=time.time() - 60)
    made.enter([TaskSubmitted("t-1", "thumbs.make", "c-1", 4)])
    made.enter([TaskSubmitted("t-2", "thumbs.make", "c-1\x1b[2J", 4)])
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(world.made(tmp_path_factory.mktemp("explain")))


def test_the_journal_of_this_machine_is_shown(folder):
    shown = explain("t-1", "--data-dir", str(folder.path))
    assert shown.exit_code == 0, shown.output
    assert "submitted by c-1 for thumbs.make" in shown.stdout
    assert "t-2" not in shown.stdout
    assert "not covered: there are no tables" in shown.stdout
    assert "scale0 explain c-1" in shown.stderr


def test_a_story_is_data_for_programs(folder):
    found = json.loads(explain("t-1", "--data-dir", str(folder.path), "--json").stdout)
    (entry,) = found["entries"]
    assert (found["sort"], entry["kind"]) == ("task", "task.submitted")
    assert entry["id"].startswith("east-1:")
    assert entry["at"].endswith("Z")


def test_a_terminal_obeys_no_event(folder):
    shown = explain("t-2", "--data-dir", str(folder.path))
    assert "\x1b" not in shown.output
    assert "c-1\\x1b[2J" in shown.stdout


def test_the_warehouse_alone_is_shown_up_to_its_end(root, tmp_path):
    shown = explain("web-1/load", "--data-dir", str(tmp_path / "none"), "--warehouse", root)
    assert shown.exit_code == 0, shown.output
    assert "* incident: down for 1 h, worst state critical, closed 2026-05-18 09:30" in shown.stdout
    assert "not covered: there is no journal here" in shown.stdout
    assert "covered: 2026-05-13 09:30 to 2026-05-20 09:30 UTC" in shown.stdout


def test_nothing_known_says_where_to_look(folder, tmp_path):
    shown = explain("t-9", "--data-dir", str(folder.path))
    assert shown.exit_code == 1
    assert "nothing is known about t-9 in the last 7 d" in shown.stderr
    assert "--last 90d" in shown.stderr
    nowhere = explain("t-9", "--data-dir", str(tmp_path / "none"))
    assert nowhere.exit_code == 1
    assert "scale0 pipeline run" in nowhere.stderr


def test_a_warehouse_that_was_named_must_be_there(folder, tmp_path):
    shown = explain("t-1", "--data-dir", str(folder.path), "--warehouse", str(tmp_path / "none"))
    assert shown.exit_code == 1
    assert "there are no tables in" in shown.stderr


def test_a_segment_that_cannot_be_read_is_reported_and_the_rest_is_shown(folder):
    place = Path(folder.path) / "segments" / f"written={time.strftime('%Y-%m-%d', time.gmtime())}"
    place.mkdir(parents=True)
    (place / "seg-east-2-7-1-5.parquet").write_bytes(b"PAR1 no")
    shown = explain("t-1", "--data-dir", str(folder.path))
    assert shown.exit_code == 1
    assert "submitted by c-1" in shown.stdout
    assert "cannot be read" in shown.stderr
    assert "seg-east-2-7-1-5" in shown.stderr


def test_names_of_segments_prove_what_is_missing():
    segments = [Segment("b", 1, 1, 10), Segment("b", 2, 11, 20), Segment("b", 2, 31, 40), Segment("c", 1, 90, 99)]
    assert gaps_between(segments) == ["the segments of b have a gap: its events 21 to 30 are missing"]


def test_a_length_of_time_must_be_one(folder):
    assert explain("t-1", "--data-dir", str(folder.path), "--last", "soon").exit_code == 2
