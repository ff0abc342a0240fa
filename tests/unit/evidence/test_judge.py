"""The judge of the evidence campaign: what is red, and what its page shows."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from evidence import model
from evidence.bugs import found_in, red_without
from evidence.model import AttackRecord, Campaign, FaultRecord, Run, Seeds, TaskRecord, Violation
from evidence.page import html_page

FOLDER = Path(model.__file__).parent


def campaign(**found: Any) -> Campaign:
    return Campaign(seed=1, began="2026-01-01 00:00 UTC", versions={"Python": "3"}, minutes=1.0, **found)


def task(number: int = 1, **more: Any) -> TaskRecord:
    known: dict[str, Any] = {"ids": ["t1"], "submissions": 1, "results": ['{"run": "aa"}'], "ended": "finished"}
    return TaskRecord(number, **{**known, **more})


def run(run: str = "aa", attempt: int = 1, pid: int = 10, number: int = 1) -> Run:
    return Run(number, run, attempt, pid, 1.0, 2.0)


GOOD = campaign(
    tasks=[task(), TaskRecord(2, submissions=3)],
    runs=[run()],
    faults=[FaultRecord("broker_killed", 1.0, 0.7), FaultRecord("worker_killed", 2.0)],
    attacks=[AttackRecord("deep_json", "WIRE-5", "open", "400", latency=(0.01, 0.2))],
    seeds=[Seeds("networks", 3, 1, 3)],
)


def test_a_campaign_in_which_everything_was_kept_is_green():
    assert model.judge(GOOD) == []
    document = model.as_json(GOOD)
    assert document["green"]
    assert document["totals"] | {"operations": 4, "acknowledged": 1, "lost": 0, "doubled": 0} == document["totals"]
    assert json.loads(json.dumps(document)) == json.loads(json.dumps(document))
    assert "Kept." in html_page(document)


@pytest.mark.parametrize(
    ("found", "promise"),
    [
        ({"tasks": [task(ended="")], "runs": [run()]}, "TASK-11"),
        ({"tasks": [task(ended="-32020 unknown")], "runs": [run()]}, "TASK-11"),
        ({"tasks": [task(ids=["t1", "t2"])], "runs": [run()]}, "TASK-4"),
        ({"tasks": [task(results=['{"run": "aa"}', '{"run": "bb"}'])], "runs": [run()]}, "TASK-5"),
        ({"tasks": [task(results=['{"run": "zz"}'])], "runs": [run()]}, "TASK-5"),
        ({"tasks": [task()], "runs": [run(), run("bb", 2, 11)]}, "TASK-11"),
        ({"tasks": [task()], "runs": [run(), run("bb", 1, 11)], "lost_workers": {10}}, "TASK-16"),
        ({"faults": [FaultRecord("broker_killed", 1.0, 13.0)]}, "NEGO-5"),
        ({"faults": [FaultRecord("worker_killed", 1.0, 8.0)]}, "TASK-7"),
        ({"attacks": [AttackRecord("x", "MGMT-1", "open", "200", succeeded="it was answered")]}, "MGMT-1"),
        ({"attacks": [AttackRecord("x", "MGMT-1", "open", "401", latency=(0.1, 0.6))]}, "ZMTP-5"),
        ({"checks_run": ["a", "b"], "results_stored": ["a"]}, "AGENT-7"),
        ({"checks_run": ["a"], "results_stored": ["a", "a"]}, "AGENT-7"),
        ({"checks_run": [], "results_stored": ["a"]}, "AGENT-7"),
        ({"seeds": [Seeds("networks", 1, 1, 1, ["seed 1 broke task-once: two"])]}, "task-once"),
        ({"extra": [Violation("WIRE-3", "the broker ended")]}, "WIRE-3"),
    ],
)
def test_each_broken_promise_is_red(found: dict[str, Any], promise: str):
    broken = campaign(**found)
    assert [one.promise for one in model.judge(broken)] == [promise]
    document = model.as_json(broken)
    assert not document["green"]
    assert f"<code>{promise}</code>" in html_page(document)


def test_an_attack_that_was_not_judged_is_red_and_finds_no_bug():
    unjudged = AttackRecord("x", "MGMT-1", "open", "", unjudged="OSError: no answer")
    document = model.as_json(campaign(attacks=[unjudged]))
    assert not document["green"]
    assert document["totals"]["attacks_not_judged"] == 1
    assert document["totals"]["attacks_succeeded"] == 0
    assert "not judged: OSError" in html_page(document)
    assert found_in(document, ("MGMT-1",)) == (False, "did not judge MGMT-1: attack x: OSError: no answer")


def test_a_bug_is_found_only_by_its_own_promise():
    broken = model.as_json(campaign(attacks=[AttackRecord("x", "MGMT-1", "open", "", succeeded="it was answered")]))
    assert found_in(broken, ("WIRE-5", "MGMT-1"))[0]
    assert not found_in(broken, ("WIRE-5",))[0]
    assert not found_in(model.as_json(GOOD), ("MGMT-1",))[0]


def test_a_bug_is_not_found_by_what_is_red_without_it():
    red = model.as_json(campaign(attacks=[AttackRecord("x", "MGMT-1", "open", "", succeeded="it was answered")]))
    assert red_without(red, "") == "red without the bug: broke MGMT-1: attack x succeeded: it was answered"
    assert red_without(None, "exit status 2") == "red without the bug: exit status 2"
    assert red_without(model.as_json(GOOD), "") == ""


def test_a_result_that_a_kill_of_the_agent_interrupted_may_be_missing_but_not_stored_twice():
    assert model.judge(campaign(checks_run=["a"], checks_unsure={"a"})) == []
    twice = campaign(checks_run=["a"], checks_unsure={"a"}, results_stored=["a", "a"])
    assert [one.promise for one in model.judge(twice)] == ["AGENT-7"]


def test_a_task_may_run_again_if_its_worker_was_lost():
    kept = campaign(tasks=[task(results=['{"run": "bb"}'])], runs=[run(), run("bb", 2, 11)], lost_workers={10})
    assert model.judge(kept) == []


def test_a_suspended_worker_may_begin_an_old_attempt_when_the_next_one_has_ended():
    late = run("cc", 1, 12)._replace(begun=9.0, ended=9.5)
    kept = campaign(tasks=[task()], runs=[run("aa", 2), late], lost_workers={12})
    assert model.judge(kept) == []


def test_a_task_that_was_not_acknowledged_is_not_lost():
    assert model.judge(campaign(tasks=[TaskRecord(1, submissions=5)])) == []


def test_percentiles_are_by_nearest_rank():
    values = [float(number) for number in range(1, 101)]
    assert [model.percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert model.percentile([], 0.5) is None


def test_a_percentile_of_too_few_values_is_not_shown_and_neither_is_a_fault_that_was_not_tried():
    few = campaign(faults=[FaultRecord("broker_killed", 1.0, 0.7)], faults_known=["broker_killed", "log_cut"])
    document = model.as_json(few)
    (row,) = document["faults"]
    assert (row["max"], row["p50"], row["p99"]) == (0.7, None, None)
    assert "Not tried: log cut." in html_page(document)


def test_runs_are_read_from_lines_and_a_cut_line_is_dropped():
    lines = ["begun 7 aa 1 1.5 10", "ended 7 aa 1 2.5 10", "begun 8 bb 2 3.5 11", "begun 9 c"]
    assert model.read_runs(lines) == [Run(7, "aa", 1, 10, 1.5, 2.5), Run(8, "bb", 2, 11, 3.5, None)]


def test_text_from_outside_is_escaped_on_the_page():
    bad = campaign(attacks=[AttackRecord("x", "WIRE-5", "open", "<script>alert(1)</script>")])
    assert "<script>" not in html_page(model.as_json(bad))


def test_only_the_worker_imports_the_package():
    found = set()
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] in ("scale0", "simulator", "tests") for name in names):
                found.add(path.name)
    assert found == {"worker.py"}
