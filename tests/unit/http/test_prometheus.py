"""Prometheus's own parsers read what we write, in both formats, and promtool finds nothing wrong."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from scale0.http.metrics.current import CurrentSample
from scale0.http.metrics.model import LabelLimit, metrics_of
from scale0.http.metrics.prometheus import encoded, wants_openmetrics
from scale0.http.metrics.sample import sample_of
from tests.processes.http.metric_samples import STATUS, big, rates, whole

NASTY = 'a "quoted" \\ name,\nwith=lines{} and ünïcode'


def found_in(families: Iterable[Any]) -> dict[tuple[Any, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


# Promise: EXP-1
@pytest.mark.parametrize("as_openmetrics", [False, True])
def test_their_parser_reads_our_values(as_openmetrics):
    text = encoded(metrics_of(whole(), LabelLimit()), as_openmetrics).decode()
    families = list((parse_openmetrics if as_openmetrics else parse_plain)(text))
    found = found_in(families)
    assert found["scale0_requests_answered_total", ("service", "thumbs.make")] == 4
    assert found["scale0_request_duration_seconds_bucket", ("le", "0.025"), ("service", "thumbs.make")] == 3
    assert found["scale0_request_duration_seconds_bucket", ("le", "+Inf"), ("service", "thumbs.make")] == 4
    assert found["scale0_request_duration_seconds_count", ("service", "thumbs.make")] == 4
    assert found["scale0_request_duration_seconds_sum", ("service", "thumbs.make")] == pytest.approx(0.242)
    labels = (("broker", "east-1"), ("group", "east"), ("version", "0.1.0"))
    assert found[("scale0_broker_info", *labels)] == 1
    kinds = {family.name: family.type for family in families}
    assert kinds["scale0_request_duration_seconds"] == "histogram"
    assert kinds["scale0_requests_answered"] == "counter"
    assert as_openmetrics == text.endswith("# EOF\n")


@pytest.mark.parametrize("as_openmetrics", [False, True])
def test_any_name_of_a_service_comes_back_as_it_was(as_openmetrics):
    sample = sample_of(1.0, status=STATUS, rates=[rates(NASTY, 0.1)])
    text = encoded(metrics_of(sample, LabelLimit()), as_openmetrics).decode()
    found = found_in((parse_openmetrics if as_openmetrics else parse_plain)(text))
    assert found["scale0_requests_answered_total", ("service", NASTY)] == 1


# Promise: EXP-1
def test_promtool_has_nothing_to_say():
    text = encoded(metrics_of(whole(), LabelLimit()), False)
    done = subprocess.run(
        ["/usr/bin/promtool", "check", "metrics"], input=text, capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*", True),
        ("application/OpenMetrics-Text; version=nonsense; escaping=allow-utf-8", True),
        ("application/openmetrics-text; q=0, text/plain", False),
        ("application/openmetrics-textual", False),
        (";;;,,,;version=", False),
    ],
)
def test_openmetrics_is_for_those_who_ask_for_it(accept, wanted):
    assert wants_openmetrics(accept) is wanted


# Promise: EXP-3
async def test_a_sample_is_written_once_and_the_loop_goes_on_meanwhile():
    loop = asyncio.get_running_loop()
    current = CurrentSample(loop)
    current.put(big(1_000))
    writing = loop.create_task(current.text(True))
    turns = 0
    while not writing.done():
        await asyncio.sleep(0.001)
        turns += 1
    first = await writing
    assert await current.text(True) is first
    current.put(whole())
    assert await current.text(True) != first
    assert len(first) > 1_000_000
    assert turns > 5  # written on the loop itself, it would be one
