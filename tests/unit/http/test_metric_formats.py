"""The lines of Graphite and StatsD, and the data of OTLP: strictly in their formats, whatever a service is called."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.http.metrics import line_protocols, otlp, senders
from scale0.http.metrics.line_protocols import datagrams, graphite_lines, statsd_lines
from scale0.http.metrics.model import LabelLimit, Metric, PreviousValues, metrics_of, previous_values
from scale0.http.metrics.sample import NetworkSample, sample_of
from scale0.kernel.errors import ConfigError
from tests.processes.http.metric_samples import STATUS, big, queue, rates, whole

GRAPHITE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+ -?\d+(\.\d+)? \d+")
STATSD = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+:(-?\d+(\.\d+)?\|g|\d+(\.\d+)?\|c)")


def metrics(sample: NetworkSample) -> tuple[Metric, ...]:
    return metrics_of(sample, LabelLimit())


def graphite_of(sample: NetworkSample, before: PreviousValues | None = None) -> dict[str, str]:
    lines = list(graphite_lines(metrics(sample), before or PreviousValues(), "scale0", "east-1", sample.time))
    assert all(GRAPHITE.fullmatch(line) for line in lines)
    found = {line.split()[0]: line.split()[1] for line in lines}
    assert len(found) == len(lines)
    return found


def statsd_of(sample: NetworkSample, before: PreviousValues) -> dict[str, str]:
    lines = list(statsd_lines(metrics(sample), before, "scale0", "east-1"))
    assert all(STATSD.fullmatch(line) for line in lines)
    return dict(line.split(":") for line in lines)


# Promise: EXP-4
def test_graphite_gets_paths_values_and_the_time_of_the_sample():
    lines = list(graphite_lines(metrics(whole(1_234.7)), PreviousValues(), "scale0", "east-1", 1_234.7))
    assert "scale0.east-1.requests_answered_total.thumbs_make 4 1234" in lines
    assert "scale0.east-1.broker_uptime_seconds 60.5 1234" in lines
    assert "scale0.east-1.clients.backend 3 1234" in lines
    assert "scale0.east-1.request_duration_seconds.thumbs_make.count 4 1234" in lines
    found = graphite_of(whole())
    assert float(found["scale0.east-1.request_duration_seconds.thumbs_make.p50"]) == pytest.approx(0.02, rel=0.01)
    assert float(found["scale0.east-1.request_duration_seconds.thumbs_make.p99"]) == pytest.approx(0.2, rel=0.01)


# Promise: EXP-4
def test_percentiles_are_of_what_came_since_the_last_batch():
    first = sample_of(1.0, status=STATUS, rates=[rates("a", *[5.0] * 100)])
    then = sample_of(2.0, status=STATUS, rates=[rates("a", *[5.0] * 100, 0.01)])
    before = previous_values(metrics(first))
    path = "scale0.east-1.request_duration_seconds.a"
    assert float(graphite_of(then, before)[f"{path}.p99"]) == pytest.approx(0.01, rel=0.01)
    assert float(statsd_of(then, before)[f"{path}.p99"].removesuffix("|g")) == pytest.approx(0.01, rel=0.01)
    assert f"{path}.p99" not in graphite_of(first, before)  # nothing came: there is nothing to say


# Promise: EXP-4
def test_statsd_gets_differences_of_counters_and_gauges_as_they_are():
    before = previous_values(metrics(sample_of(1.0, status=STATUS, rates=[rates("a", 0.1, 0.1)])))
    found = statsd_of(sample_of(2.0, status=STATUS, rates=[rates("a", *[0.1] * 5)], queues=[queue("a", 2)]), before)
    assert found["scale0.east-1.requests_answered_total.a"] == "3|c"
    assert found["scale0.east-1.request_duration_seconds.a.count"] == "3|c"
    assert found["scale0.east-1.service_waiting_requests.a"] == "2|g"
    assert "scale0.east-1.requests_failed_total.a" not in found


def test_the_first_batch_knows_no_differences_and_a_restarted_counter_counts_from_nothing():
    sample = sample_of(2.0, status=STATUS, rates=[rates("a", 0.1, 0.1)])
    assert "scale0.east-1.requests_answered_total.a" not in statsd_of(sample, PreviousValues())
    before = previous_values(metrics(sample_of(1.0, status=STATUS, rates=[rates("a", *[0.1] * 9)])))
    assert statsd_of(sample, before)["scale0.east-1.requests_answered_total.a"] == "2|c"


def test_a_gauge_below_nothing_is_no_difference():
    assert list(line_protocols._statsd_gauge("a.b", -1.5)) == ["a.b:0|g", "a.b:-1.5|g"]


# Promise: EXP-4
@given(st.lists(st.text(max_size=150), unique=True, max_size=6), st.text(max_size=20))
def test_whatever_a_service_is_called_the_lines_are_clean_and_no_two_share_a_path(names, broker):
    sample = sample_of(1.0, status={**STATUS, "broker": broker}, rates=[rates(name, 0.1) for name in names])
    for line in graphite_lines(metrics(sample), PreviousValues(), "scale0", broker, 1.0):
        assert GRAPHITE.fullmatch(line)
    found = graphite_of(sample)
    assert sum(path.startswith("scale0.east-1.requests_answered_total.") for path in found) == len(
        {name if name else "other" for name in names}
    )


def test_names_that_look_alike_are_distinguished_the_same_way_each_time():
    sample = sample_of(1.0, status=STATUS, rates=[rates("a.b", 0.1), rates("a_b", 0.1, 0.1), rates("a/b", 0.1)])
    first, again = graphite_of(sample), graphite_of(sample)
    paths = [path for path in first if path.startswith("scale0.east-1.requests_answered_total.a_b")]
    assert len(paths) == 3
    assert first == again


# Promise: EXP-4
def test_datagrams_fit_into_a_frame_and_hold_every_line():
    lines = list(statsd_lines(metrics(big(100)), PreviousValues(), "scale0", "east-1"))
    packed = list(datagrams(lines))
    assert all(len(datagram) <= line_protocols.MAX_DATAGRAM_BYTES for datagram in packed)
    assert b"\n".join(packed).decode().split("\n") == lines
    assert len(packed) < len(lines) / 10
    assert list(datagrams(["x" * 2_000, "a.b:1|g"])) == [b"a.b:1|g"]


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15))
def test_numbers_have_no_exponent(value):
    text = line_protocols.number(value)
    assert re.fullmatch(r"-?\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(value, abs=1e-9)


def test_a_batch_for_otlp_holds_every_metric_but_information():
    data = otlp.data_of(metrics(whole()), otlp.OtlpResource("east-1", "east", 900.0, 1_000.0))
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert set(found) == {metric.name for metric in metrics(whole()) if metric.kind != "info"}
    assert found["scale0_request_duration_seconds"].unit == "s"
    assert found["scale0_request_bytes_total"].unit == "By"
    assert data.resource_metrics[0].resource.attributes["service.instance.id"] == "east-1"


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("10.0.0.1", ("10.0.0.1", 2003)),
        ("carbon.example:2013", ("carbon.example", 2013)),
        ("[::1]:2013", ("::1", 2013)),
        ("::1", ("::1", 2003)),
    ],
)
def test_an_address_is_taken_apart(address, place):
    assert senders.host_and_port("graphite", address) == place


@pytest.mark.parametrize("address", ["", ":2003", "host:", "host:0", "host:70000", "host:٣", "a b:1", "http://h:1"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError):
        senders.host_and_port("graphite", address)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        ("https://otel.example", "https://otel.example/v1/metrics"),
        ("https://otel.example/v1/metrics?x=1", "https://otel.example/v1/metrics?x=1"),
    ],
)
def test_an_otlp_address_becomes_a_url(address, url):
    assert senders.otlp_url(address) == url


def test_an_address_is_shown_without_what_is_secret_in_it():
    assert senders.public_address("https://me:secret@otel.example/v1?key=secret") == "https://otel.example/v1"
    assert senders.public_address("me:secret@otel.example:4318") == "otel.example:4318"
    with pytest.raises(ConfigError) as caught:
        senders.otlp_url("ftp://me:secret@otel.example")
    assert "secret" not in str(caught.value)


# Promise: EXP-6
def test_headers_come_from_a_file_and_are_never_said(tmp_path):
    file = tmp_path / "headers"
    file.write_text("# for the collector\n\nAuthorization: Bearer abc: def\nX-Scope-OrgID: 1\n")
    assert senders.read_headers(str(file)) == {"Authorization": "Bearer abc: def", "X-Scope-OrgID": "1"}
    assert senders.read_headers("") == {}
    for bad in ("no-colon-secret", "Bad Name: secret", "A: secret\x07"):
        file.write_text(f"{bad}\n")
        with pytest.raises(ConfigError) as caught:
            senders.read_headers(str(file))
        assert "line 1" in str(caught.value)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        senders.read_headers(str(tmp_path / "absent"))
    file.write_bytes(b"A: " + b"x" * 100_000)
    with pytest.raises(ConfigError, match="exceeds"):
        senders.read_headers(str(file))


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigError, match=r"pip install 'scale0\[otlp\]'"):
        otlp.open_exporter("http://127.0.0.1:1/v1/metrics", {}, 1.0)
