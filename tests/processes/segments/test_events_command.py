"""`scale0 events`: what happened, to read and to take away."""

from __future__ import annotations

import csv
import json
import os
import select
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from scale0.cli.main import cli
from scale0.history.events.tasks import TaskSubmitted
from scale0.history.segments.arrow import SCHEMA
from tests.processes.segments.folders import Folder, segment_files


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path / "east", wall=time.time() - 600)
    made.beat()
    made.fill(30)
    made.export()
    made.restart()
    made.fill(10)
    yield made
    made.store.close()


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["events", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def seqs(output: str) -> list[int]:
    return [json.loads(line)["seq"] for line in output.splitlines()]


def test_the_last_events_come_from_segments_and_journal(folder):
    assert seqs(run("tail", "--json", "--data-dir", folder.path)) == list(range(22, 42))
    assert seqs(run("tail", "--json", "-n", 3, "--data-dir", folder.path)) == [39, 40, 41]
    assert seqs(run("tail", "--json", "--since", "1h", "--data-dir", folder.path)) == list(range(1, 42))
    assert seqs(run("tail", "--json", "--since", "1h", "-n", 5, "--data-dir", folder.path)) == list(range(37, 42))
    assert seqs(run("tail", "--json", "--since", "5m", "--data-dir", folder.path)) == []


def test_an_event_is_shown_with_its_columns_and_its_data_decoded(folder):
    (event,) = [
        json.loads(line) for line in run("tail", "--json", "--ref", "t5", "--data-dir", folder.path).splitlines()
    ]
    assert list(event) == SCHEMA.names
    assert event["kind"] == "task.submitted"
    assert event["data"] == {"group": "", "priority": 4}
    assert event["time"].endswith("Z")


def test_people_get_a_table(folder):
    lines = run("tail", "-n", 2, "--data-dir", folder.path).splitlines()
    assert lines[0].split() == ["TIME", "KIND", "IDENTITY", "SERVICE", "STATE", "SECONDS", "REF", "DATA"]
    assert lines[1].split()[2:6] == ["task.submitted", "c", "thumbs.make", "t40"]


def test_two_folders_are_one_history(folder, tmp_path):
    other = Folder(tmp_path / "west", "west-1", folder.wall - 0.0055)
    other.fill(3)
    other.store.close()
    words = ("--data-dir", folder.path, "--data-dir", other.path)
    found = [json.loads(line) for line in run("tail", "--json", "-n", 9, *words).splitlines()]
    assert sorted(event["time"] for event in found) == [event["time"] for event in found]
    assert {event["source"] for event in found} == {"east-1", "west-1"}
    assert seqs(run("tail", "--json", "--source", "west-*", *words)) == [1, 2, 3]
    assert len(seqs(run("tail", "--json", "--since", "1h", *words))) == 44


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_an_export_has_every_event_once(folder, tmp_path, ending):
    target = tmp_path / f"out.{ending}"
    assert run("export", "--to", target, "--data-dir", folder.path) == f"41 events in {target}\n"
    match ending:
        case "parquet":
            table = pq.read_table(target)
            assert table.schema.equals(SCHEMA)
            found = table["seq"].to_pylist()
        case "jsonl":
            found = seqs(target.read_text())
        case _:
            with target.open(newline="") as file:
                found = [int(row["seq"]) for row in csv.DictReader(file)]
    assert found == list(range(1, 42))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["east", target.name]


def test_a_name_from_the_network_is_no_formula_in_a_csv_file(tmp_path):
    folder = Folder(tmp_path / "east")
    folder.enter([TaskSubmitted("=1+1", "@SUM(A1)", "-x", -4)])
    run("export", "--to", tmp_path / "out.csv", "--data-dir", folder.path)
    with (tmp_path / "out.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["ref"], row["service"], row["identity"], row["seq"]) == ("'=1+1", "'@SUM(A1)", "'-x", "1")


def test_an_export_is_of_a_time_and_a_choice(folder, tmp_path):
    target = tmp_path / "out.jsonl"
    middle = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(folder.wall + 2))
    run("export", "--to", target, "--data-dir", folder.path, "--to-time", middle, "--kind", "source.*")
    assert seqs(target.read_text()) == [1]
    run("export", "--to", target, "--force", "--data-dir", folder.path, "--from", middle)
    assert target.read_text() == ""


def test_a_file_that_is_there_is_not_replaced_by_mistake(folder, tmp_path):
    (tmp_path / "out.csv").write_text("mine")
    run("export", "--to", tmp_path / "out.csv", "--data-dir", folder.path, code=1)
    run("export", "--to", tmp_path / "out.txt", "--data-dir", folder.path, code=2)
    assert (tmp_path / "out.csv").read_text() == "mine"


def test_what_cannot_be_read_is_named_and_the_exit_says_so(folder):
    (path,) = segment_files(folder.path / "segments")
    path.write_bytes(b"PAR1")
    output = run("tail", "--json", "--data-dir", folder.path, code=1)
    assert path.name in output
    assert '"seq":41' in output


def test_a_folder_that_is_not_there_is_reported(tmp_path):
    run("tail", "--data-dir", tmp_path / "nowhere", code=1)


@pytest.mark.processes
@pytest.mark.slow
def test_following_shows_what_happens_and_misses_nothing_that_moves_on(folder):
    options = ["-f", "--json", "-n", "1", "--data-dir", str(folder.path)]
    command = [sys.executable, "-m", "scale0", "events", "tail", *options]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        output = b""
        try:
            until = time.monotonic() + 60
            for step in range(4):
                folder.fill(5)
                if step % 2:
                    folder.export()
                    folder.fill(1)
                wanted = f'"seq":{folder.last_seq},'.encode()
                while wanted not in output and time.monotonic() < until:
                    if select.select([process.stdout], [], [], 1.0)[0]:
                        output += os.read(process.stdout.fileno(), 1 << 16)
        finally:
            process.kill()
    found = seqs(output.decode())
    assert found == list(range(found[0], folder.last_seq + 1))
    assert found[0] >= 41
