"""The figures of docs/performance.md are those of the last run, and what a run lacks is reported."""

# Promise: HOUSE-6
from __future__ import annotations

import copy
import json
import xml.dom.minidom  # its own output: nothing from outside is read
from typing import Any

import pytest

from benchmarks import report
from benchmarks.contenders import CONTENDERS, PARTS
from benchmarks.whole import rows_of

LATEST = report.read(report.LATEST)
PAGE = report.PAGE.read_text(encoding="utf-8")


def run(**changes: Any) -> dict[str, Any]:
    """A quiet run in which each row of each contender has three rounds, the first row ten times the others."""
    rows = list(rows_of(CONTENDERS, {}).values())
    for row in rows:
        row["values"] = [1000.0, 3000.0, 2000.0] if row["ours"] else [200.0, 100.0, 300.0]
        if row["table"].endswith("single"):
            row["p99"] = [9000.0, 8000.0, 7000.0]
    machine = {**LATEST["machine"], "load": 0.1, "cores": 2}
    quiet = {"quick": False, "rounds": 3, "machine": machine, "failures": [], "rows": rows}
    return {**copy.deepcopy(LATEST), **quiet, **changes}


# Promise: HOUSE-6
def test_the_section_of_the_page_is_what_the_figures_make():
    assert report.placed(PAGE, report.section(LATEST)) == PAGE, "run: python -m benchmarks.report"


# Promise: HOUSE-6
def test_the_plots_are_what_the_figures_make():
    there = {file.name: file.read_text(encoding="utf-8") for file in report.IMAGES.iterdir()}
    assert there == report.pictures(LATEST)


def test_the_page_is_made_of_a_whole_run():
    assert sorted(LATEST["parts"]) == sorted(PARTS)
    assert {(row["table"], row["name"]) for row in LATEST["rows"]} == rows_of(CONTENDERS, {}).keys()


def test_a_figure_that_was_changed_by_hand_is_seen():
    row = LATEST["rows"][0]
    shown = f"| {report.number(report.middle(row))} |"
    assert shown in report.section(LATEST)
    changed = PAGE.replace(shown, "| 999,000 |", 1)
    assert report.placed(changed, report.section(LATEST)) != changed


def test_medians_spread_and_ratios():
    made = report.section(run())
    assert "| NATS, nats-py | 200 | 100 to 300 | 3 | 10 × | at least 5: reached |" in made
    assert "| Celery, Redis, everysec | 200 | 100 to 300 | 3 | 10 × | at least 50: *missed* |" in made
    assert "| beanstalkd | 200 µs | 8,000 µs | 3 | 10 × | at most 1: *missed* |" in made
    assert "| Scale0, in batches, CURVE | 2,000 | 1,000 to 3,000 | 3 | 1.00 × | at most 1.54: reached |" in made
    assert "| Scale0, SQLite | 2,000 µs | 8,000 µs | 3 |  |  |" in made
    assert "**" not in made


def test_what_is_wanted_is_wanted_of_a_row_that_there_is():
    assert report.WANTED.keys() <= rows_of(CONTENDERS, {}).keys()


def test_durability_stands_beside_every_row():
    for row in run()["rows"]:
        assert row["promise"]
        assert row["promise"] in report.section(run())


def test_a_peer_that_is_missing_is_reported_and_has_no_bar():
    gaps = {one: "nats-server is not installed" for one in CONTENDERS if one.name == "NATS"}
    found = run()
    found["rows"] = [
        row if (row["table"], row["name"]) not in {(r.table, r.name) for one in gaps for r in one.rows} else missing
        for row, missing in zip(found["rows"], rows_of(CONTENDERS, gaps).values(), strict=True)
    ]
    made = report.section(found)
    assert "| NATS, nats-py | - | - | 0 | - |  | not measured: nats-server is not installed |" in made
    assert "NATS" not in report.pictures(found)["requests.svg"]
    assert "zmq.proxy" in report.pictures(found)["requests.svg"]


def test_without_a_figure_of_ours_there_is_no_ratio_and_without_any_no_bar():
    found = run()
    for row in found["rows"]:
        row["values"] = [] if row["ours"] or row["table"] == "tasks" else row["values"]
    made = report.section(found)
    assert "| NATS, nats-py | 200 | 100 to 300 | 3 |  |" in made
    assert "not measured: it failed" in made
    assert "<rect" not in report.pictures(found)["tasks.svg"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"quick": True}, "of a quick run"),
        ({"machine": {**LATEST["machine"], "load": 3.0, "cores": 2}}, "The machine was busy before it began (load 3.0"),
        ({"failures": ["Celery (tasks): no answer"]}, "Failed: Celery (tasks): no answer"),
    ],
)
def test_a_run_that_is_no_good_says_so(changes, text):
    assert text in report.section(run(**changes))


def test_a_page_without_the_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="needs these two lines"):
        report.write(run(), page, tmp_path / "images")
    assert page.read_text() == "nothing\n"
    assert not (tmp_path / "images").exists()


def test_writing_keeps_the_rest_of_the_page_and_removes_plots_of_old(tmp_path):
    page, images = tmp_path / "page.md", tmp_path / "images"
    page.write_text(f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    images.mkdir()
    (images / "gone.svg").write_text("")
    report.write(run(), page, images)
    text = page.read_text()
    assert text == f"before\n\n{report.section(run())}\n\nafter\n"
    assert {file.name for file in images.iterdir()} == {f"{table.key}.svg" for table in report.TABLES}
    for file in images.iterdir():
        xml.dom.minidom.parseString(file.read_text(encoding="utf-8"))


def test_figures_of_another_form_are_refused(tmp_path):
    (tmp_path / "old.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(ValueError, match="measure again"):
        report.read(tmp_path / "old.json")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (61.54, "61.5"), (123.4, "123"), (51_749, "51,700"), (9_999, "10,000"), (0.5, "0.5")]
)
def test_figures_have_the_digits_that_mean_something(value, text):
    assert report.number(value) == text
