"""Pushes at real receivers that are there, away, slow or back: dropped and counted, and the loop never waits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import socket
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from scale0.config import ExportConfig
from scale0.http.metrics.current import CurrentSample
from scale0.http.metrics.exports import MAX_BACKOFF_SECONDS, MAX_EXPORTS, Pusher, PushInterval, exporting, open_sender
from scale0.http.metrics.line_protocols import graphite_lines
from scale0.http.metrics.model import PreviousValues
from scale0.http.metrics.sample import ExportHealth, NetworkSample, sample_of
from scale0.http.metrics.senders import Sender
from tests.fakes.ports import free_port
from tests.fakes.waiting import eventually
from tests.processes.http.metric_samples import STATUS, rates, whole
from tests.processes.http.receivers import Datagrams, carbon, collector

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 2.0
STALL_SECONDS = 1.0
"""Longer than any turn of a loop on a busy machine, shorter than what a receiver may take here."""


def health(kind: str = "graphite") -> ExportHealth:
    return ExportHealth(kind=kind, address="there")


class Steady(Random):
    """No chance: the longest waits."""

    def random(self) -> float:
        return 1.0


# Promise: EXP-5
def test_a_receiver_that_fails_is_asked_less_and_less_and_what_is_due_meanwhile_is_dropped():
    pace = PushInterval(10.0, health(), Steady(), 0.0)
    tries, now = [], 0.0
    for _ in range(200):
        now = pace.due
        if pace.take(now):
            tries.append(now)
            pace.failed(now)
    gaps = [round(b - a) for a, b in itertools.pairwise(tries)]
    assert gaps[:5] == [10, 20, 40, 80, 120]
    assert set(gaps[4:]) == {MAX_BACKOFF_SECONDS}
    assert pace.health.failures == len(tries)
    assert pace.health.dropped == 200
    assert pace.health.pushed == 0
    assert not pace.health.up


# Promise: EXP-5
def test_a_receiver_that_is_back_is_asked_at_each_interval_again():
    pace = PushInterval(10.0, health(), Steady(), 0.0)
    for _ in range(5):
        if pace.take(pace.due):
            pace.failed(pace.due)
    while not pace.take(now := pace.due):
        pass
    pace.sent()
    before = pace.health
    assert before.up
    assert [pace.take(pace.due) for _ in range(3)] == [True] * 3
    assert pace.due == now + 40.0
    assert pace.health.dropped == before.dropped


def test_batches_that_were_missed_are_dropped_and_counted_and_not_caught_up():
    pace = PushInterval(10.0, health(), Steady(), 0.0)
    assert pace.take(10.0)
    assert pace.take(57.0)
    assert pace.health.dropped == 3
    assert pace.due == 60.0


def test_servers_that_start_together_come_one_after_the_other():
    dues = {PushInterval(10.0, health(), Random(seed), 0.0).due for seed in range(20)}
    assert len(dues) == 20
    assert all(0.0 <= due <= 10.0 for due in dues)


@contextlib.asynccontextmanager
async def pushing(kind: Any, address: str, **options: Any) -> AsyncIterator[tuple[CurrentSample, Any]]:
    """A pusher at a receiver, with a short interval; the loop is watched, and never stands still."""
    loop = asyncio.get_running_loop()
    current = CurrentSample(loop)
    current.put(whole(time.time()))
    sender: Sender = open_sender(ExportConfig(kind=kind, address=address, **options), loop)
    pusher = Pusher(
        sender, PushInterval(0.05, health(kind), Random(1), loop.time()), current, loop.time, PATIENCE_SECONDS
    )
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            before = loop.time()
            await asyncio.sleep(0.005)
            stalls.append(loop.time() - before)

    tasks = [loop.create_task(pusher.run()), loop.create_task(watch())]
    try:
        yield current, pusher
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
        assert max(stalls) < STALL_SECONDS


# Promise: EXP-4, EXP-5
@pytest.mark.processes
@pytest.mark.slow  # carbon takes a second to start, and is started twice
async def test_carbon_keeps_what_graphite_gets_and_a_restart_of_it_costs_only_what_was_meanwhile(tmp_path):
    with carbon(tmp_path) as receiver:
        async with pushing("graphite", f"127.0.0.1:{receiver.port}") as (current, pusher):
            lines = graphite_lines(await current.metrics(), PreviousValues(), "scale0", "east-1", 0.0)
            expected = {line.split()[0] for line in lines}
            await eventually(lambda: expected <= set(receiver.paths()))  # it writes when it likes
            stop = asyncio.get_running_loop().run_in_executor
            await stop(None, receiver.stop)
            await eventually(lambda: pusher.health.failures >= 1)
            assert not pusher.health.up
            assert pusher.health.dropped >= 1
            await stop(None, receiver.start)
            pushed = pusher.health.pushed
            more = [rates("thumbs.make", *[0.1] * 9)]
            current.put(sample_of(time.time(), status={**STATUS, "config_version": 8}, rates=more))
            await eventually(lambda: pusher.health.pushed > pushed + 1)
            assert pusher.health.up
        receiver.has("scale0.east-1.requests_answered_total.thumbs_make", 9.0)
        receiver.has("scale0.east-1.config_version", 8.0)
        receiver.has("scale0.east-1.request_duration_seconds.thumbs_make.p50", pytest.approx(0.1, rel=0.01))


# Promise: EXP-5
async def test_a_graphite_receiver_that_never_reads_is_given_up_and_nobody_waits():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with pushing("graphite", f"127.0.0.1:{port}") as (_, pusher):
            await eventually(lambda: pusher.health.failures >= 1)
            assert pusher.health.pushed == 0
            await eventually(lambda: pusher.health.dropped >= 10)  # those whose time came meanwhile


# Promise: EXP-4
async def test_an_otlp_collector_reads_every_metric_with_its_own_classes(tmp_path):
    secret = tmp_path / "headers"
    secret.write_text("Authorization: Bearer s3cret\n")
    with collector() as receiver:
        async with pushing("otlp", receiver.url, headers_file=str(secret)) as (_, pusher):
            await eventually(lambda: pusher.health.pushed >= 1 and receiver.requests)
        assert receiver.headers[0]["authorization"] == "Bearer s3cret"
        resource = receiver.requests[0].resource_metrics[0].resource
        attributes = {pair.key: pair.value.string_value for pair in resource.attributes}
        assert attributes["service.name"] == "scale0"
        assert attributes["service.instance.id"] == "east-1"
        answered = receiver.values("scale0_requests_answered_total")[0]
        assert answered[(("service", "thumbs.make"),)].as_double == 4
        spread = receiver.values("scale0_request_duration_seconds")[0][(("service", "thumbs.make"),)]
        assert spread.count == 4
        assert sum(spread.bucket_counts) == 4
        assert len(spread.bucket_counts) == len(spread.explicit_bounds) + 1
        assert spread.sum == pytest.approx(0.242)
        assert 0 < spread.start_time_unix_nano < spread.time_unix_nano
        sums = [
            metric.sum
            for metric in receiver.requests[0].resource_metrics[0].scope_metrics[0].metrics
            if metric.WhichOneof("data") == "sum"
        ]
        assert sums
        assert all(one.is_monotonic and one.aggregation_temporality == 2 for one in sums)


# Promise: EXP-4
async def test_otlp_counters_begin_with_the_broker_and_again_only_with_another():
    with collector() as receiver:
        async with pushing("otlp", receiver.url) as (current, pusher):

            async def start(sample: NetworkSample) -> int:
                current.put(sample)
                pushed = pusher.health.pushed
                await eventually(lambda: pusher.health.pushed > pushed + 1)
                point = receiver.values("scale0_sample_failures_total")[-1][()]
                begun: int = point.start_time_unix_nano
                return begun

            first = await start(whole(10_000.0, uptime=60.5))
            assert first == int(9_939.5 * 1e9)
            assert await start(whole(10_010.0, uptime=70.4)) == first
            assert await start(sample_of(10_020.0)) == first  # it is away
            assert await start(whole(10_030.0, uptime=2.0)) == int(10_028.0 * 1e9)


# Promise: EXP-5
async def test_an_otlp_collector_that_is_slow_refuses_or_is_back_is_dropped_counted_and_used_again(caplog):
    with collector() as receiver:
        async with pushing("otlp", receiver.url) as (_, pusher):
            await eventually(lambda: pusher.health.pushed >= 1)
            receiver.status = 400
            await eventually(lambda: pusher.health.failures >= 1)
            receiver.status = 200
            pushed = pusher.health.pushed
            await eventually(lambda: pusher.health.pushed > pushed)
            failures = pusher.health.failures
            receiver.gate.clear()
            await eventually(lambda: pusher.health.failures > failures)
            receiver.gate.set()
            pushed = pusher.health.pushed
            await eventually(lambda: pusher.health.pushed > pushed)
            assert pusher.health.dropped >= pusher.health.failures
    told = [record.message for record in caplog.records if record.name == "scale0.exports"]
    assert sum("does not accept metrics" in line for line in told) == 2
    assert sum("accepts metrics again" in line for line in told) == 2


# Promise: EXP-4, EXP-5
async def test_statsd_gets_differences_of_all_that_happened_while_it_was_away():
    receiver = Datagrams()
    port = receiver.port
    lines: list[str] = []
    async with pushing("statsd", f"127.0.0.1:{port}") as (current, pusher):

        def answered(count: int) -> None:
            sample = sample_of(time.time(), status=STATUS, rates=[rates("a", *[0.1] * count)])
            current.put(sample)

        answered(5)
        await eventually(lambda: pusher.health.pushed >= 2)
        receiver.close()
        answered(7)
        await eventually(lambda: pusher.health.failures >= 1)
        answered(11)
        receiver = Datagrams(port)
        pushed = pusher.health.pushed
        await eventually(lambda: pusher.health.pushed > pushed + 1)
        lines += receiver.lines()
    receiver.close()
    assert all(re.fullmatch(r"[\w.-]+:-?\d+(\.\d+)?\|[cg]", line) for line in lines)
    assert lines.count("scale0.east-1.requests_answered_total.a:6|c") == 1
    assert "scale0.east-1.connections:12|g" in lines
    assert sum("requests_answered_total" in line for line in lines) == 1


# Promise: EXP-5
@pytest.mark.parametrize("kind", ["graphite", "statsd", "otlp"])
async def test_a_receiver_that_is_away_costs_batches_and_nothing_else(kind):
    async with pushing(kind, f"127.0.0.1:{free_port()}") as (current, pusher):
        await eventually(lambda: pusher.health.failures >= 3)
        assert (pusher.health.pushed, pusher.health.up) == (0, False)
        assert pusher.health.dropped >= 3
        assert b"scale0_broker_up 1.0" in await current.text(False)


async def test_exports_start_and_end_with_their_block_and_their_health_is_in_the_next_sample():
    with collector() as receiver:
        current = CurrentSample(asyncio.get_running_loop())
        exports = [
            ExportConfig(kind="otlp", address=receiver.url, interval=1.0),
            ExportConfig(kind="graphite", address=f"127.0.0.1:{free_port()}", interval=1.0),
        ]
        async with exporting(exports, current):
            current.put(whole(time.time()))
            await eventually(lambda: all(one.pushed or one.failures for one in current.health()))
            current.put(whole(time.time()))
        text = (await current.text(False)).decode()
        assert f'scale0_export_up{{address="{receiver.url}",kind="otlp"}} 1.0' in text
        assert "scale0_export_failures_total" in text
    assert len(asyncio.all_tasks()) == 1


# Promise: EXP-5
@pytest.mark.parametrize(
    "bad",
    [
        ExportConfig(kind="graphite", address="nowhere:0"),
        ExportConfig(kind="otlp", address="ftp://there"),
        ExportConfig(kind="otlp", address="there", headers_file="/nonexistent"),
    ],
    ids=["no port", "no URL", "no headers"],
)
async def test_an_invalid_export_is_logged_and_costs_the_others_nothing(bad, caplog):
    udp = Datagrams()
    good = ExportConfig(kind="statsd", address=f"127.0.0.1:{udp.port}", interval=1.0)
    current = CurrentSample(asyncio.get_running_loop())
    current.put(whole(time.time()))
    async with exporting([bad, good], current):
        await eventually(lambda: current.health()[1].pushed)
        assert (current.health()[0].kind, current.health()[0].failures) == (bad.kind, 1)
    udp.close()
    assert "management.exports" in caplog.text


async def test_more_exports_than_the_limit_are_logged_and_left_out(caplog):
    current = CurrentSample(asyncio.get_running_loop())
    exports = [ExportConfig(kind="statsd", address=f"127.0.0.1:{port}") for port in range(1, MAX_EXPORTS + 3)]
    async with exporting(exports, current):
        assert sum(one.failures for one in current.health()) == 2
    assert "more than" in caplog.text
