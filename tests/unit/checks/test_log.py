"""The check `log` counts each new line once, over rotations and restarts."""

from __future__ import annotations

import os
import time

import msgspec
import pytest

from scale0.monitoring.checks import log
from scale0.monitoring.checks.registry import built_in
from tests.processes.checks.servers import again, metrics, run


class Watched:
    """A log, and a check that reads it; `restart` forgets what is only in memory."""

    def __init__(self, folder, **args):
        self.data_dir = folder / "data"
        self.path = folder / "app.log"
        self.args = {"path": str(self.path), "match": ["ERROR"], **args}
        self.restart()

    def restart(self):
        self.check = built_in(self.data_dir)["log"]

    def write(self, *lines, end="\n"):
        with self.path.open("a") as file:
            file.write("".join(line + end for line in lines))

    def run(self):
        self.found = again(self.check, **self.args)
        return self.found

    def count(self):
        values = metrics(self.run())
        return int(values["matches"].value), int(values["lines"].value)


@pytest.fixture
def watched(tmp_path):
    found = Watched(tmp_path)
    found.write("ERROR old")
    assert found.count() == (0, 0)
    return found


def test_only_new_lines_count_and_each_once(watched):
    watched.write("fine", "an ERROR here", "ERROR again")
    assert watched.count() == (2, 3)
    assert watched.found.state == "critical"
    assert "ERROR again" in watched.found.message
    assert watched.count() == (0, 0)
    assert watched.found.state == "ok"


def test_old_lines_count_where_that_is_wanted(tmp_path):
    (tmp_path / "app.log").write_text("ERROR old\nfine\n")
    assert Watched(tmp_path, from_start=True).count() == (1, 2)


def test_a_line_counts_when_it_has_its_end(watched):
    watched.write("half of an ERR", end="")
    assert watched.count() == (0, 0)
    watched.write("OR and its end")
    assert watched.count() == (1, 1)


def test_a_line_that_is_being_written_at_the_first_run_is_new(tmp_path):
    watched = Watched(tmp_path)
    watched.write("old ERROR\nnew ERR", end="")
    assert watched.count() == (0, 0)
    watched.write("OR")
    assert watched.count() == (1, 1)


def test_a_rotated_log_is_read_to_its_end_and_then_the_new_one(watched):
    watched.write("ERROR before")
    watched.path.rename(watched.path.with_suffix(".log.1"))
    watched.write("ERROR after", "fine")
    assert watched.count() == (2, 3)
    watched.write("ERROR more")
    assert watched.count() == (1, 1)


def test_a_last_line_without_an_end_counts_when_its_log_was_rotated(watched):
    watched.write("ERROR before", end="")
    assert watched.count() == (0, 0)
    watched.path.rename(watched.path.with_suffix(".log.1"))
    watched.write("fine")
    assert watched.count() == (1, 2)


def test_a_log_that_was_cut_begins_again(watched):
    watched.write(*["fine"] * 50)
    watched.count()
    watched.path.write_text("ERROR new\n")
    assert watched.count() == (1, 1)
    assert "began again" in watched.found.message


def test_a_log_that_was_cut_and_has_grown_past_the_old_place_is_known_by_its_first_bytes(watched):
    watched.write("fine")
    watched.count()
    watched.path.write_text("other ERROR\n" * 50)
    assert watched.count() == (50, 50)


def test_a_log_whose_rest_is_gone_is_reported(watched):
    watched.write("ERROR before")
    new = watched.path.with_suffix(".new")
    new.write_text("ERROR after\n")
    new.replace(watched.path)
    assert watched.count() == (1, 1)
    assert "not to be found" in watched.found.message


def test_after_a_restart_lines_may_count_twice_and_are_never_left_out(watched):
    watched.write("ERROR one")
    assert watched.count() == (1, 1)
    watched.write("ERROR two")
    watched.restart()  # killed before anybody could be sure that `one` was told
    assert watched.count() == (2, 2)
    assert watched.count() == (0, 0)
    watched.restart()  # now it is sure
    assert watched.count() == (0, 0)
    watched.write("ERROR three")
    assert watched.count() == (1, 1)


def test_what_happens_while_the_agent_is_away_is_found(watched):
    watched.restart()
    watched.write("ERROR meanwhile")
    watched.path.rename(watched.path.with_suffix(".log.1"))
    watched.write("ERROR since")
    assert watched.count() == (2, 2)


def test_a_position_that_cannot_be_read_is_none(watched):
    for file in (watched.data_dir / log.FOLDER).iterdir():
        file.write_bytes(b"\xff\x00 not ours")
    watched.restart()
    watched.write("ERROR unseen")
    assert watched.count() == (0, 0)
    watched.write("ERROR seen")
    assert watched.count() == (1, 1)


def test_a_log_that_appears_is_new_from_its_first_line(tmp_path):
    watched = Watched(tmp_path)
    assert watched.run().state == "unknown"
    watched.write("ERROR first")
    assert watched.count() == (1, 1)
    assert run("log", path=str(tmp_path / "no"), match=["x"], missing="ok").state == "ok"


def test_patterns_may_be_ignored_folded_or_globs(tmp_path):
    file = tmp_path / "app.log"
    file.write_text("Error: disk\nerror: known\nwarn 17 of 20\n[x] done\n")

    def matches(**args):
        return int(metrics(run("log", path=str(file), from_start=True, **args))["matches"].value)

    assert matches(match=["error"]) == 1
    assert matches(match=["ERROR"], ignore_case=True) == 2
    assert matches(match=["error"], ignore_case=True, ignore=["KNOWN"]) == 1
    assert matches(match=["warn * of ??"], glob=True) == 1
    assert matches(match=["warn"], glob=True) == 0
    assert matches(match=["ERROR*", "[[]x] *"], glob=True, ignore_case=True, ignore=["*KNOWN"]) == 2
    assert matches(match=["[x]"]) == 1


# Promise: CHECK-1
def test_no_glob_takes_longer_than_its_line_is_long(tmp_path):
    (tmp_path / "app.log").write_text("a" * 60_000 + "\n")
    began = time.perf_counter()
    found = run("log", path=str(tmp_path / "app.log"), match=["*a*a*a*a*a*a*a*a*a*a*a*b"], glob=True, from_start=True)
    assert found.state == "ok"
    assert time.perf_counter() - began < 2


def test_one_run_reads_so_much_and_the_next_goes_on(watched, monkeypatch):
    monkeypatch.setattr(log, "MAX_RUN_BYTES", 1_000)
    monkeypatch.setattr(log, "BLOCK_BYTES", 500)
    watched.write(*[f"ERROR {number:04}" for number in range(300)])
    watched.path.rename(watched.path.with_suffix(".log.1"))
    watched.write(*[f"ERROR {number:04}" for number in range(300, 400)])
    counts = [watched.count()[0]]
    assert metrics(watched.found)["behind_bytes"].value > 0
    while counts[-1]:
        counts.append(watched.count()[0])
    assert sum(counts) == 400
    assert len(counts) > 4


def test_a_line_without_an_end_in_sight_is_read_in_pieces(watched):
    watched.write("x" * 300_000 + "ERROR", end="")
    watched.write("")
    matches, lines = watched.count()
    assert matches == 1
    assert lines >= 1


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        found = run("log", path=str(tmp_path / name), match=["x"], missing="ok")
        assert found.state == "unknown"


def test_a_log_check_must_say_what_to_look_for(tmp_path):
    assert "match is missing" in run("log", path=str(tmp_path), match=[]).message


def test_positions_on_disk_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "MAX_POSITION_FILES", 3)
    (tmp_path / "app.log").touch()
    checks = built_in(tmp_path / "data")
    for number in range(6):
        again(checks["log"], path=str(tmp_path / "app.log"), match=[str(number)])
    assert len(list((tmp_path / "data" / log.FOLDER).iterdir())) == 3


# Promise: CHECK-3
def test_only_files_that_the_agents_own_file_allows_are_read(tmp_path):
    secret, log, link = tmp_path / "secret", tmp_path / "logs" / "app.log", tmp_path / "logs" / "link.log"
    log.parent.mkdir()
    for file in (secret, log):
        file.write_text("one word\n")
    link.symlink_to(secret)
    check = built_in(log_paths=(f"{tmp_path}/logs/*",))["log"].run

    def look(path):
        return check(msgspec.json.encode({"path": str(path), "match": ["word"], "from_start": True}), 5.0)

    assert "1 of 1 new lines" in look(log).message
    for path in (secret, link, log.parent / ".." / "secret"):
        found = look(path)
        assert found.state == "unknown"
        assert "log_paths" in found.message
        assert "one word" not in found.message
