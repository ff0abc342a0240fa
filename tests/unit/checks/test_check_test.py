"""`scale0 check test`: a built-in check on this machine, without a network."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from scale0.cli.common import errors
from scale0.cli.monitoring import check_test
from scale0.monitoring.checks.registry import BUILT_IN


def invoke(*words):
    return CliRunner().invoke(check_test.test, list(words))


def test_a_check_shows_state_message_and_metrics():
    done = invoke("uptime")
    assert done.exit_code == 0
    assert done.output.startswith("ok: up ")
    assert "uptime_seconds" in done.output
    assert done.output.splitlines()[2].split() == ["METRIC", "VALUE", "UNIT", "MIN"]


def test_any_other_state_exits_with_one():
    done = invoke("uptime", "--arg", "warn=@0:1e12", "--json")
    assert done.exit_code == 1
    output = json.loads(done.output)
    assert (output["check"], output["state"], output["metrics"][0]["warn"]) == ("uptime", "warning", 1e12)
    wrong = invoke("uptime", "--arg", "wran=5")
    assert wrong.exit_code == 1
    assert "the nearest known one is warn" in wrong.output


def test_words_become_what_the_check_takes(tmp_path):
    def args(name, *words):
        return json.loads(check_test.args_of_words(name, words))

    assert args("tcp", "host=1", "port=80")["port"] == 80
    assert args("tcp", "host=1", "port=80")["host"] == "1"
    assert args("disk", "include=/")["include"] == ["/"]
    assert args("disk", "include=/", "include=/b")["include"] == ["/", "/b"]
    assert args("disk", 'include=["/"]', "warn=null")["warn"] is None
    assert args("log", "path=x", "match=a", "glob=true")["glob"] is True
    assert args("log", "path=x", "match=[ab]*")["match"] == ["[ab]*"]
    assert args("load", "warn=[1, null, 3]")["warn"] == [1, None, 3]
    assert args("http", "url=x", 'headers={"A": "b"}')["headers"] == {"A": "b"}
    assert args("http", "url=x?a=b", "verify=false")["verify"] is False


@pytest.mark.parametrize(
    "words", [("load", "--arg", "x"), ("load", "--arg", "=x"), ("tcp", "--arg", "host=a", "--arg", "host=b")]
)
def test_words_that_are_no_args_are_wrong_usage(words):
    assert invoke(*words).exit_code == 2


def test_a_log_can_be_tried_from_its_start(tmp_path):
    (tmp_path / "a.log").write_text("an error\n")
    done = invoke("log", "--arg", f"path={tmp_path / 'a.log'}", "--arg", "match=error", "--arg", "from_start=true")
    assert done.exit_code == 1
    assert "an error" in done.output


def test_a_check_that_compares_tells_of_now():
    assert "since boot" not in invoke("cpu", "--arg", "warn=null", "--arg", "crit=null").output


def test_without_a_name_it_says_which_there_are():
    assert all(name in invoke().output for name in BUILT_IN)
    assert [one["name"] for one in json.loads(invoke("--json").output)] == list(BUILT_IN)


def test_an_unknown_name_is_answered_with_the_nearest():
    done = invoke("dsk")
    assert done.exit_code != 0
    assert isinstance(done.exception, SystemExit | errors.CommandError)
    assert "there is no built-in check dsk" in done.output


def test_a_shell_completes_the_names_of_checks():
    context = click.Context(check_test.test)
    items = check_test.names_of_checks(context, check_test.test.params[0], "ne")
    assert [item.value for item in items] == ["network"]
