"""Logs: every line tells who wrote it and what it is about, for people and for programs, and never a secret."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.edge import log_setup
from scale0.kernel.log_context import about
from scale0.monitoring.agent.edge import stage0
from tests.fakes.broker_process import ANY_PORTS, broker_process
from tests.fakes.processes import ServerProcess, scale0_command
from tests.fakes.shell import shell_of

SOURCES = Path(log_setup.__file__).resolve().parents[2]
TOKEN = "s0_" + "0123456789abcdef" * 4
ENROLMENT = f"s1.{'A' * 43}.{'b' * 43}/web-1@helen.example"
TEXT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>[A-Z]+) (?P<who>\S+) (?P<logger>\S+) (?P<text>.*)")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")


@pytest.fixture(autouse=True)
def clean_root() -> Iterator[None]:
    """Logging belongs to the whole process: leave it as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(form: Any, do: Any, who: str = "east-1", stream: io.StringIO | None = None) -> str:
    """What a process of that name writes."""
    target = stream or io.StringIO()
    root = logging.getLogger()
    others = list(root.handlers)
    log_setup.log_to_stderr(who, form=form, stream=target)
    mine = [one for one in root.handlers if one not in others]
    try:
        # Ours alone: what a test says may be no text that the test's own report could carry.
        root.handlers[:] = mine
        do(logging.getLogger("scale0.test"))
    finally:
        root.handlers[:] = [
            *(
                one
                for one in others
                if not isinstance(one.formatter, log_setup.TextLogFormatter | log_setup.JsonLogFormatter)
            ),
            *mine,
        ]
    return target.getvalue()


def raised() -> ValueError:
    try:
        raise ValueError(f"with {TOKEN}")
    except ValueError as error:
        return error


# Promise: LOG-1
def test_a_line_for_people_has_time_level_who_text_and_what_it_is_about():
    line = logged("text", lambda log: log.warning("%s left", "web-1", extra=about(client="web-1", task="t 1")))
    found = TEXT.fullmatch(line.rstrip("\n"))
    assert found
    assert found.groupdict() == {
        "level": "WARNING",
        "who": "east-1",
        "logger": "scale0.test",
        "text": 'web-1 left [client=web-1 task="t 1"]',
    }


# Promise: LOG-1
def test_a_line_for_programs_is_one_json_object_with_the_same():
    line = logged("json", lambda log: log.error("%s left", "web-1", extra=about(client="web-1", task="t 1")))
    found = json.loads(line)
    moment = found.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
    assert found == {
        "level": "error",
        "who": "east-1",
        "logger": "scale0.test",
        "text": "web-1 left",
        "ref": "web-1",
        "client": "web-1",
        "task": "t 1",
    }


def test_a_line_about_nothing_else_is_about_the_process():
    assert json.loads(logged("json", lambda log: log.info("hello")))["ref"] == "east-1"
    assert json.loads(logged("json", lambda log: log.info("hello", extra=about(client=""))))["ref"] == "east-1"


def test_ids_that_are_bytes_are_spelled():
    assert about(client=b"web-1", peer=b"\x00\xff", none=None) == {"about": {"client": "web-1", "peer": "00ff"}}


# Promise: LOG-1
def test_colour_is_for_terminals_alone(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    write = lambda log: log.error("no")  # noqa: E731
    assert "\x1b[31mERROR\x1b[0m" in logged("text", write, stream=Terminal())
    assert "\x1b" not in logged("text", write)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in logged("text", write, stream=Terminal())


def test_a_traceback_follows_its_line_indented_or_is_in_the_object():
    write = lambda log: log.error("it failed", exc_info=raised(), extra=about(check="disk"))  # noqa: E731
    first, *rest = logged("text", write).rstrip("\n").split("\n")
    assert first.endswith("it failed [check=disk]")
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in rest)
    assert "ValueError" in json.loads(logged("json", write))["trace"]


# Promise: LOG-1
def test_what_others_wrote_cannot_look_like_another_line_or_move_the_cursor():
    forged = "name\n2026-01-01 00:00:00,000 CRITICAL east-1 scale0.broker all is lost\x1b[2J\udcff"
    text = logged("text", lambda log: log.info("unknown: %s", forged, extra=about(client=forged)))
    assert [line.startswith("  ") for line in text.rstrip("\n").split("\n")] == [False, True]
    assert "\x1b" not in text
    assert json.loads(logged("json", lambda log: log.info("%s", forged)))["text"].startswith("name\n2026")


@given(st.text(), st.text())
def test_any_text_is_one_line_of_json(text, id_):
    lines = logged("json", lambda log: log.info("%s", text, extra=about(client=id_))).splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["level"] == "info"


def test_a_line_has_an_end():
    line = logged("text", lambda log: log.info("x" * 1_000_000))
    assert len(line) < log_setup.MAX_TEXT_CHARS + 200
    assert "900000 characters more" in line


# Promise: LOG-2
@pytest.mark.parametrize(
    "secret",
    [
        TOKEN,
        f"Authorization: Bearer {TOKEN}",
        f"http://127.0.0.1:5780/#/login?once={TOKEN}",
        f"{{'auth_token': '{TOKEN}'}}",
        ENROLMENT,
        '{"auth_password": "open sesame 0123456789abcdef"}',
        "{'auth_id': 'me', 'auth_password': 'open sesame 0123456789abcdef'}",
        r'"{\"auth_password\": \"0123456789abcdef\"}"',
        "auth_password=0123456789abcdef",
        "auth_password = 0123456789abcdef",
        "password_hash: $argon2id$v=19$m=65536,t=3,p=4$0123456789abcdef$0123456789abcdef",
        "$argon2id$v=19$m=65536,t=3,p=4$0123456789abcdef$x",
        "postgresql://scale0:0123456789abcdef@db.example:5432/scale0",
        "Bearer 0123456789abcdef",
        "Cookie: scale0_session=0123456789abcdef",
        "-----BEGIN EC PRIVATE KEY-----\n0123456789abcdef\n-----END EC PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\n0123456789abcdef and no end",
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_secret_that_somebody_logs_does_not_leave(secret, form):
    def write(log: logging.Logger) -> None:
        log.info("got %s", secret, extra=about(client=secret))
        try:
            raise ValueError(secret)
        except ValueError:
            log.exception("failed")

    output = logged(form, write)
    assert "0123456789abcdef" not in output
    assert "b" * 43 not in output
    assert "…" in output
    assert "got" in output


@pytest.mark.parametrize(
    "innocent",
    [
        "3 passwords were wrong",
        "the token file is not there: No such file",
        "postgresql://db.example:5432/scale0 is away",
        "s0_ is how tokens begin",
        "http://127.0.0.1:5780/ is served",
        "helen@example.com",
    ],
)
def test_what_is_no_secret_is_left_as_it_is(innocent):
    assert log_setup.redacted(innocent) == innocent


def test_a_process_that_learns_its_name_has_it_from_then_on():
    target = io.StringIO()
    log_setup.log_to_stderr("worker", form="json", stream=target)
    logging.getLogger("scale0.a").info("one")
    log_setup.set_process_name("backend-1")
    logging.getLogger("scale0.a").info("two")
    assert [json.loads(line)["who"] for line in target.getvalue().splitlines()] == ["worker", "backend-1"]


def test_a_second_call_replaces_the_first():
    first, second = io.StringIO(), io.StringIO()
    log_setup.log_to_stderr("a", form="text", stream=first)
    log_setup.log_to_stderr("b", level="ERROR", form="text", stream=second)
    logging.getLogger("scale0.a").warning("quiet")
    logging.getLogger("scale0.a").error("loud")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


@pytest.mark.parametrize(("value", "form"), [("json", "json"), ("text", "text"), ("JSON5", "text"), (None, "text")])
def test_the_environment_chooses_the_form(value, form):
    assert log_setup.chosen_form({} if value is None else {log_setup.FORM_VARIABLE: value}) == form


@pytest.mark.parametrize(
    ("value", "level"), [("debug", "DEBUG"), ("WARNING", "WARNING"), ("loud", "INFO"), ("", "INFO"), (None, "INFO")]
)
def test_the_environment_chooses_the_level_where_nobody_says(value, level, monkeypatch):
    monkeypatch.delenv(log_setup.LEVEL_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(log_setup.LEVEL_VARIABLE, value)
    log_setup.log_to_stderr("a", stream=io.StringIO())
    assert logging.getLogger().level == getattr(logging, level)
    log_setup.log_to_stderr("a", level="ERROR", stream=io.StringIO())
    assert logging.getLogger().level == logging.ERROR


def test_a_handlers_process_logs_as_its_worker_does_and_others_are_left_alone(monkeypatch):
    before = list(logging.getLogger().handlers)
    monkeypatch.delenv(log_setup.WHO_VARIABLE, raising=False)
    log_setup.configure_logging()
    assert logging.getLogger().handlers == before
    monkeypatch.setenv(log_setup.WHO_VARIABLE, "backend-1")
    log_setup.configure_logging()
    formatter = logging.getLogger().handlers[-1].formatter
    assert isinstance(formatter, log_setup.TextLogFormatter)
    assert formatter.who == "backend-1"


NAMED = re.compile(r"\b_*log(?:ger)?\b", re.IGNORECASE)


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not NAMED.search(text):  # to parse all takes two seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            who = node.func.value
            is_log = isinstance(who, ast.Name) and who.id.lower().lstrip("_") in ("log", "logger")
            if is_log and node.func.attr in LEVELS:
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node


# Promise: LOG-1
def test_every_line_of_ours_says_what_it_is_about():
    silent, reserved, found = [], [], 0
    for place, call in log_calls():
        found += 1
        extra = next((keyword.value for keyword in call.keywords if keyword.arg == "extra"), None)
        if extra is None:
            silent.append(place)
        elif isinstance(extra, ast.Call):
            reserved += [place for keyword in extra.keywords if keyword.arg in log_setup.RESERVED]
    assert found > 70
    assert silent == [], "give them extra=about(…); about() alone for what is about the process itself"
    assert reserved == []


def test_nothing_of_ours_sets_logging_up_in_another_way():
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "basicConfig" not in text, path
        assert "StreamHandler" not in text or path.name == "log_setup.py", path


# Promise: LOG-1
@pytest.mark.parametrize("form", ["text", "json"])
def test_stage0_writes_lines_like_the_agents(form, monkeypatch, capfd):
    monkeypatch.setenv(log_setup.FORM_VARIABLE, form)
    stage0.write_log('the agent "ended"', "web-1")
    line = capfd.readouterr().err.rstrip("\n")
    if form == "json":
        found = json.loads(line)
        assert (found["who"], found["logger"], found["ref"]) == ("web-1", "scale0.stage0", "web-1")
        assert set(found) == {"time", "level", "who", "logger", "text", "ref"}
    else:
        match = TEXT.fullmatch(line)
        assert match
        assert match["who"] == "web-1"
    assert stage0.name_in(b"ready web-1 127.0.0.1:4166\n") == "web-1"
    assert stage0.name_in(b"") == stage0.NAMELESS


# Promise: LOG-1
@pytest.mark.processes
def test_a_broker_and_a_worker_and_its_children_log_as_json_under_their_names(tmp_path, monkeypatch):
    (tmp_path / "work.py").write_text(
        "import scale0\n\nworker = scale0.Worker(identity='thumbs-1')\n\n\n"
        "@worker.service('fails', mode='process')\ndef fails():\n    raise ValueError('as it does')\n"
    )
    monkeypatch.setenv(log_setup.FORM_VARIABLE, "json")
    with broker_process(tmp_path) as broker:
        worker = ServerProcess(
            tmp_path / "worker.log",
            scale0_command("worker", str(tmp_path / "work.py"), "--endpoint", broker.endpoints["backend"]),
        )
        try:
            assert worker.start().startswith("ready thumbs-1")
            assert shell_of(broker, tmp_path).run("call", "fails").returncode == 1
            worker.end()
        finally:
            worker.close()
    lines = [json.loads(line) for line in worker.log_text().splitlines()]
    up = next(line for line in lines if line["text"] == "connected as thumbs-1")
    assert up["client"] == "thumbs-1"
    failed = next(line for line in lines if line["text"].startswith("fails failed"))
    assert failed["who"] == "thumbs-1"
    assert failed["service"] == "fails"
    assert failed["ref"] == failed["request"]
    assert all(json.loads(line)["who"] == "broker-1" for line in broker.log_text().splitlines())


@pytest.mark.processes
def test_the_option_chooses_the_form_of_a_broker(tmp_path):
    options = ("--identity", "east-1", "--log-format", "json", "--data-dir", str(tmp_path / "data"))
    broker = ServerProcess(tmp_path / "log", scale0_command("broker", *options, *ANY_PORTS, "--join", "127.0.0.1:1"))
    try:
        assert broker.start().startswith("ready east-1")
        broker.end()
    finally:
        broker.close()
    assert all(json.loads(line)["who"] == "east-1" for line in broker.log_text().splitlines())
