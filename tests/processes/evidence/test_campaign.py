"""The evidence campaign itself: a short one is green, and a planted bug turns it red."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evidence.bugs import try_bug
from evidence.faults_group import GroupPart
from evidence.main import main
from evidence.planting import read_all

pytestmark = [pytest.mark.processes, pytest.mark.slow]

QUICK = (
    "broker_killed",
    "connection_without_a_key",
    "forged_management_token",
    "identity_of_another_key",
    "second_result",
    "task_of_another_client",
    "zmtp_1",
)
"""One fault, and attacks on both brokers that take a second or less."""
BUGS = {bug.name: bug for bug in read_all()}


@pytest.mark.timeout(120)
def test_a_campaign_of_seconds_is_green(tmp_path: Path):
    arguments = ["--parts", "faults,attacks", "--only", ",".join(QUICK), "--minutes", "0.02", "--seed", "7"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "evidence.json").read_text())
    assert document["violations"] == []
    assert document["totals"]["finished"] == document["totals"]["acknowledged"] > 0
    assert {one["kind"] for one in document["fault_list"]} | {one["name"] for one in document["attacks"]} == set(QUICK)


@pytest.mark.extended
@pytest.mark.timeout(400)
def test_a_short_campaign_is_green_and_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # An open defect, which `make evidence` shows: a suspended broker of a group may stop the acknowledgements of all.
    monkeypatch.delitem(GroupPart.FAULTS, "group_broker_stopped")
    assert main(["--minutes", "0.6", "--seed", "7", "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "evidence.json").read_text())
    assert document["green"]
    assert document["totals"]["acknowledged"] > 50
    assert document["totals"]["attacks"] > 10
    assert document["totals"]["seeds"] >= 2
    assert document["faults"]
    assert "Kept." in (tmp_path / "evidence.html").read_text()


@pytest.mark.extended
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["leases-end-with-the-broker", "task-of-any-client", "task-key-makes-two"])
def test_a_planted_bug_of_each_part_is_found(name: str):
    verdict = try_bug(BUGS[name])
    assert verdict.found, verdict.said
