"""The output of Nagios plugins: the state is never lost, whatever the performance data is."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.history.events.columns import EventMetric
from scale0.monitoring.checks.perfdata import read_perfdata, read_plugin, split_output, upper_end
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS, MAX_METRICS


# Promise: CHECK-5
@pytest.mark.parametrize(
    ("status", "state"),
    [(0, "ok"), (1, "warning"), (2, "critical"), (3, "unknown"), (4, "unknown"), (127, "unknown"), (-9, "unknown")],
)
def test_the_exit_status_alone_decides_the_state(status, state):
    assert read_plugin(status, b"OK - all is well | x=1;;").state == state


def test_an_odd_ending_says_what_it_was():
    assert read_plugin(127, b"").message == "the plugin ended with 127: no output"
    assert read_plugin(-9, b"half a").message == "the plugin was killed by signal 9: half a"


def test_the_stderr_of_a_silent_plugin_is_its_message():
    assert read_plugin(3, b"", b"no such host\n").message == "no such host"
    assert read_plugin(0, b"fine", b"a warning of a library").message == "fine"


def test_text_long_text_and_both_places_of_perfdata():
    out = b"DISK OK | /=2643MB;5948;5958;0;5968\nline two\nline three | /boot=68MB;88;93;0;98\n/home=69MB;;;;\n"
    finding = read_plugin(0, out)
    assert finding.message == "DISK OK\nline two\nline three"
    assert [metric.name for metric in finding.metrics] == ["/", "/boot", "/home"]
    assert finding.metrics[0] == EventMetric("/", 2643.0, "MB", 5948.0, 5958.0, 0.0, 5968.0)


# Promise: CHECK-5
@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        ("load1=0.250;15.000;30.000;0;", [EventMetric("load1", 0.25, None, 15.0, 30.0, 0.0, None)]),
        ("time=0.003s;;;0.000;10.000", [EventMetric("time", 0.003, "s", None, None, 0.0, 10.0)]),
        ("a=1us b=2ms c=3% d=4B e=5KB f=6MB g=7TB h=8c", None),
        ("'a label'=1 'it''s'=2", [EventMetric("a label", 1.0), EventMetric("it's", 2.0)]),
        ("'C:\\ used %'=12%;80;90", [EventMetric("C:\\ used %", 12.0, "%", 80.0, 90.0)]),
        ("rta=U;100;500;0 pl=100%;20;60", [EventMetric("pl", 100.0, "%", 20.0, 60.0)]),
        ("a=1;10:20;~:30 b=2;10:;@5:10", [EventMetric("a", 1.0, None, 20.0, 30.0), EventMetric("b", 2.0)]),
        ("a=1;x;y;z b=-1.5e3", [EventMetric("a", 1.0), EventMetric("b", -1500.0)]),
        ("a=0,5s;0,6;0,7", [EventMetric("a", 0.5, "s", 0.6, 0.7)]),
        ("a= b c=1 =5 'd=4 e=nan f=inf g=1e999 h=2", [EventMetric("c", 1.0), EventMetric("h", 2.0)]),
        ("a=١ b=2", [EventMetric("b", 2.0)]),
        ("", []),
        ("   ", []),
    ],
)
def test_perfdata(text, metrics):
    found = list(read_perfdata(text))
    if metrics is None:
        assert [m.unit for m in found] == ["us", "ms", "%", "B", "KB", "MB", "TB", "c"]
    else:
        assert found == metrics


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("10", 10.0),
        ("5:10", 10.0),
        ("~:10", 10.0),
        ("10:", None),
        ("@5:10", None),
        ("@10", None),
        ("", None),
        (":", None),
    ],
)
def test_of_a_range_the_upper_end_stays(text, end):
    assert upper_end(text) == end


def test_much_is_cut():
    finding = read_plugin(1, b"x" * 60_000 + b"|" + b" a=1" * 1_000)
    assert len(finding.message) == MAX_MESSAGE_CHARS
    assert len(finding.metrics) == MAX_METRICS
    assert read_perfdata("n" * 129 + "=1 ok=1") == (EventMetric("ok", 1.0),)


def test_a_control_character_is_a_blank():
    assert read_plugin(0, b"a\x00b\x1b[2Jc\r\nnext\xff").message == "a b [2Jc\nnext�"


# Promise: CHECK-5
@pytest.mark.parametrize("seed", ["'", "'' ", "'x'' ", "=", "a='", " ", "|", "\n", "'a '", "1;", "a=1;"])
def test_hostile_output_costs_linear_time(seed):
    begun = time.process_time()
    read_plugin(2, ("|" + seed * 65_536)[:65_536].encode())
    assert time.process_time() - begun < 0.5


# Promise: CHECK-5
@given(st.binary(max_size=300), st.integers(-64, 300))
def test_any_bytes_make_a_finding(output, status):
    finding = read_plugin(status, output)
    assert finding.state == {0: "ok", 1: "warning", 2: "critical"}.get(status, "unknown")
    assert all(math.isfinite(metric.value) for metric in finding.metrics)


@given(st.text(max_size=200))
def test_any_text_behind_the_bar(text):
    for metric in read_perfdata(text):
        assert metric.name
    split_output(text)
