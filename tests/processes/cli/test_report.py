"""`scale0 report`: the same numbers for people and programs, and clear words where there are none."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner, Result

from scale0.cli.common.errors import CommandError
from scale0.cli.main import cli
from scale0.cli.pipeline.report import FILTERS
from scale0.cli.pipeline.report_output import as_csv
from scale0.pipeline.reports import REPORTS
from scale0.pipeline.reports.catalog import MAKERS, TAKES
from scale0.pipeline.reports.model import ReportColumn, ReportDocument, ReportTable
from scale0.pipeline.reports.period import Period
from tests.pipeline import reports_made as world

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(world.made(tmp_path_factory.mktemp("report")))


def run_report(*words: str) -> Result:
    return CliRunner().invoke(cli, ["report", *words])


def test_the_commands_are_the_reports():
    assert {name: filters for name, (filters, _) in REPORTS.items()} == TAKES
    assert list(REPORTS) == list(MAKERS)
    assert {each for filters in TAKES.values() for each in filters} == set(FILTERS)


@pytest.mark.parametrize("name", [*REPORTS, "all"])
def test_every_report_is_shown_in_every_form(root, name):
    shown = run_report(name, "--warehouse", root)
    assert shown.exit_code == 0, shown.output
    assert "The tables end at 2026-05-20 09:30 UTC." in shown.stdout
    for line in run_report(name, "--warehouse", root, "--format", "json", "--why").stdout.splitlines():
        found = json.loads(line)
        assert found["to"] == "2026-05-20T09:30:00Z"
        assert all(
            set(row) == {c["name"] for c in table["columns"]} for table in found["tables"] for row in table["rows"]
        )
    rows = list(csv.reader(io.StringIO(run_report(name, "--warehouse", root, "--format", "csv").stdout)))
    assert len(rows) > 1
    assert run_report(name, "--warehouse", root, "--format", "html").stdout.startswith("<!doctype html>")


def test_a_page_is_written_whole_or_not_at_all(root, tmp_path):
    out = tmp_path / "report.html"
    assert run_report("all", "--warehouse", root, "--format", "html", "--out", str(out)).exit_code == 0
    text = out.read_text()
    assert text.endswith("</html>\n")
    assert all(f'<section id="{name}"' in text for name in REPORTS)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    refused = run_report("all", "--warehouse", root, "--format", "html", "--out", str(tmp_path / "no" / "report.html"))
    assert refused.exit_code == 1
    assert "cannot write" in refused.stderr


def test_a_table_may_go_to_a_file_too(root, tmp_path):
    out = tmp_path / "tasks.txt"
    assert run_report("tasks", "--warehouse", root, "--out", str(out)).exit_code == 0
    assert "report.daily" in out.read_text()


def test_no_warehouse_says_how_to_make_one(tmp_path):
    for words in (["--warehouse", str(tmp_path / "none")], ["--data-dir", str(tmp_path)]):
        shown = run_report("tasks", *words)
        assert shown.exit_code == 1
        assert "there are no tables in" in shown.stderr
        assert "scale0 pipeline run" in shown.stderr


def test_a_name_that_nobody_has_says_who_there_is(root):
    shown = run_report("availability", "--warehouse", root, "--subject", "web-1/lod")
    assert shown.exit_code == 1
    assert "nothing in this period matches --subject web-1/lod" in shown.stderr
    assert "web-1/load" in shown.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--from", "2026-06-01"), "the tables end at 2026-05-20 09:30 UTC"),
        (("--from", "2026-01-01", "--to", "2026-02-01"), "the tables begin at 2026-05-10 00:00 UTC"),
    ],
)
def test_a_time_without_tables_says_where_they_are(root, words, why):
    shown = run_report("tasks", "--warehouse", root, *words)
    assert shown.exit_code == 1
    assert why in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("tasks", "--last", "1y"),
        ("tasks", "--last", "٣d"),
        ("tasks", "--from", "2026-05-12", "--to", "2026-05-11"),
        ("tasks", "--agent", "web-1"),
        ("noise", "--method", "x"),
        ("tasks", "--format", "xml"),
        ("weather",),
    ],
)
def test_a_question_that_makes_no_sense_is_wrong_usage(root, words):
    name, *rest = words
    assert run_report(name, *rest, *(["--warehouse", root] if name in REPORTS else [])).exit_code == 2


def test_all_passes_a_filter_to_the_reports_that_know_it(root):
    lines = run_report("all", "--warehouse", root, "--format", "json", "--method", "report.daily").stdout.splitlines()
    found = {one["report"]: one for one in map(json.loads, lines)}
    assert [row["method"] for row in found["tasks"]["tables"][0]["rows"]] == ["report.daily"]
    assert len(found["availability"]["tables"][0]["rows"]) == len(world.SUBJECTS)


def test_people_get_few_rows_and_programs_all(root):
    few = run_report("availability", "--warehouse", root, "--limit", "2")
    assert "web-2/load" in few.stdout
    assert "web-1/disk" not in few.stdout
    assert "the first 2 of 8: --limit N shows more" in few.stderr
    as_rows = ("availability", "--warehouse", root, "--format", "csv")
    assert len(run_report(*as_rows).stdout.splitlines()) == 9
    assert len(run_report(*as_rows, "--limit", "2").stdout.splitlines()) == 3


def test_a_name_is_no_formula_and_moves_no_cursor():
    period = Period(0, 3_600_000_000, 3_600_000_000, "hour")
    columns = (ReportColumn("name", "Name"), ReportColumn("change", "Change", "change"))
    evil = ("=cmd()", -0.5), ("+1", None), ("@x", 1.0), ("fine", 2.0)
    report = ReportDocument("r", "R", period, "", (ReportTable("t", "T", columns, evil),))
    assert as_csv([report], None).splitlines() == ["name,change", "'=cmd(),-0.5", "'+1,", "'@x,1.0", "fine,2.0"]


def test_a_terminal_obeys_no_name(root, tmp_path):
    subjects = {"availability.hour": [(part, {**row, "subject": "\x1b[2Jx"}) for part, row in
                                      world.availability_rows("hour", world.HOURS, 3_600_000_000)]}  # fmt: skip
    world.write(tmp_path / "w", subjects, world.results(tmp_path / "s"), restated=False)
    shown = run_report("availability", "--warehouse", str(tmp_path / "w"), "--last", "24h")
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert "\\x1b[2Jx" in shown.stdout


@pytest.mark.processes
def test_a_report_needs_no_spark(root):
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from scale0.cli.main import main\n"
        "sys.argv = ['scale0', 'report', 'all', '--warehouse', sys.argv[1], '--format', 'html']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True, check=True, timeout=60)
    assert "</html>" in done.stdout


def test_an_error_has_a_cause_and_a_next_step(root):
    with pytest.raises(CommandError) as caught:
        cli.main(["report", "tasks", "--warehouse", f"{root}/none"], standalone_mode=False)
    assert isinstance(caught.value, click.ClickException)
    assert caught.value.next_step
