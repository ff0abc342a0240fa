"""Every built-in check returns a result for any input; quick checks are quick; the documentation lists all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.checks.check_run import MAX_STATES, RunState
from scale0.monitoring.checks.registry import BUILT_IN, TABLE, args_of, built_in
from scale0.monitoring.protocol.results import read_result, write_result
from tests.processes.checks.servers import run

CHECKS = {
    *("load", "cpu", "memory", "swap", "disk", "network", "process", "ping", "tcp", "http", "tls", "dns"),
    *("file_age", "log", "ntp", "uptime"),
}
QUICK = {"load", "cpu", "memory", "swap", "uptime", "network"}
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "checks.md").read_text(encoding="utf-8")


# Promise: CHECK-6
def test_these_checks_are_built_in():
    assert set(BUILT_IN) == CHECKS
    assert {name for name, check in BUILT_IN.items() if check.quick} == QUICK
    assert all(check.about for check in BUILT_IN.values())


# Promise: CHECK-6
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_wrong_args_are_unknown_and_say_so(name):
    for args in (b"{", b"[]", b"\xff", b"null", b'{"nosuch": 1}', b"[" * 100_000, b'{"warn": NaN}', b"7"):
        found = BUILT_IN[name].run(args, 1.0)
        assert found.state == "unknown"
        assert found.message.startswith(f"{name}: ")
        assert found.seconds is not None
        assert found.started == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_an_unknown_key_is_answered_with_the_nearest_known_one(name):
    found = BUILT_IN[name].run(b'{"wran": 5}', 1.0)
    assert found.message == f"{name}: there is no arg 'wran'; the nearest known one is warn"


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_every_threshold_is_read_before_anything_is_done(name):
    needed = {
        field.name: 1 if field.type is int or "port" in field.name else ["x"] if field.name == "match" else "x"
        for field in msgspec.structs.fields(args_of(name))
        if field.required
    }
    for field in args_of(name).__struct_fields__:
        if field.endswith(("warn", "crit")):
            found = BUILT_IN[name].run(json.dumps({**needed, field: "20:10"}).encode(), 1.0)
            assert found.message.startswith(f"{name}: arg {field}: '20:10' is not a range"), found.message


# Promise: CHECK-5
@given(
    st.sampled_from(sorted(QUICK)),
    st.dictionaries(
        st.sampled_from(["warn", "crit", "per_core", "include"]),
        st.none() | st.text(max_size=5) | st.floats() | st.lists(st.text(max_size=3), max_size=3),
    ),
)
def test_any_args_have_an_answer_that_can_be_sent(name, args):
    found = BUILT_IN[name].run(json.dumps(args).encode(), 1.0)
    assert read_result(write_result(found)).finding.state == found.state


def test_what_a_check_finds_is_read_back_as_it_was():
    found = run("load")
    assert read_result(write_result(found)).finding == found


@pytest.mark.parametrize("name", ["load", "uptime", "memory"])
def test_the_quickest_cost_less_than_100_microseconds(name):
    check = BUILT_IN[name].run
    check(b"{}", 10.0)
    best = min(_timed(check) for _ in range(200))
    assert best < 100e-6


@pytest.mark.parametrize("name", sorted(QUICK))
def test_the_quick_ones_never_wait(name):
    check = built_in()[name].run
    check(b"{}", 10.0)
    assert min(_timed(check) for _ in range(20)) < 5e-3


def _timed(check):
    began = time.perf_counter()
    check(b"{}", 10.0)
    return time.perf_counter() - began


def test_no_time_at_all_is_no_crash():
    for timeout in (0.0, -1.0, float("nan")):
        assert run("tcp", timeout, host="127.0.0.1", port=1).state in ("critical", "unknown")


def test_what_is_kept_between_runs_is_bounded():
    kept = RunState()
    for number in range(MAX_STATES + 10):
        kept.put(number, number)
    assert kept.get(9) is None
    assert kept.get(10) == 10


@pytest.mark.processes
def test_an_agent_imports_only_what_it_uses():
    code = (
        "import sys; from scale0.monitoring.checks.registry import BUILT_IN; BUILT_IN['load'].run(b'', 1);"
        "print([m for m in ('http.client', 'psutil', 'ssl', 'zmq', 'click') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def sections():
    parts = re.split(r"^## `(\w+)`$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_page_has_every_check_in_the_registrys_order():
    assert list(sections()) == [entry.name for entry in TABLE]


# Promise: CHECK-6
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_the_page_has_every_arg_with_its_default(name):
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", sections()[name].split("| metric |")[0], re.MULTILINE)
    expected = []
    for field in msgspec.structs.fields(args_of(name)):
        if field.required:
            default = "needed"
        else:
            value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            default = f"`{json.dumps(value)}`"
        expected.append((field.name, default))
    assert rows == expected


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_the_example_of_the_page_has_args_that_the_check_takes(name):
    example = re.search(r"^    (\{.*\})$", sections()[name], re.MULTILINE)
    assert example is not None
    definition = json.loads(example[1])
    assert definition["check"] == name
    msgspec.convert(definition["args"], args_of(name))


LOCAL = {"load", "cpu", "memory", "uptime", "network", "disk"}


# Promise: CHECK-6
@pytest.mark.parametrize("name", sorted(LOCAL))
def test_the_page_has_every_metric_that_a_run_gives(name):
    values = {
        row.partition(":")[0]
        for row in re.findall(r"^\| `([\w:…]+)` \|", sections()[name].split("| metric |")[1], re.MULTILINE)
    }
    assert {metric.name.partition(":")[0] for metric in run(name).metrics} <= values


def test_no_check_has_an_arg_without_a_type():
    for name in CHECKS:
        assert typing.get_type_hints(args_of(name))
