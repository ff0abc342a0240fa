"""Samples are taken while somebody wants them, and hold what a real broker and a real Helen say."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scale0.http.broker_client import BrokerClient
from scale0.http.metrics import sampler as module
from scale0.http.metrics.sampler import MetricsSampler
from scale0.http.problem import ApiProblem
from scale0.kernel.edge.secret_files import TOKEN_FILE
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.helen_process import helen_process
from tests.fakes.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.processes


def client_of(broker: BrokerProcess) -> BrokerClient:
    return BrokerClient(broker.endpoints["frontend"], broker.data_dir / TOKEN_FILE)


def value(text: bytes, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return None


# Promise: EXP-3
async def test_nobody_is_asked_while_nobody_reads_and_the_first_reader_gets_a_fresh_sample(broker, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 1.0)
    client = client_of(broker)
    sampler = MetricsSampler(client)
    with pytest.raises(ApiProblem):
        await sampler.text(False)
    async with sampler.running():
        assert sampler.is_idle
        for _ in range(2):
            before = time.time()
            text = await sampler.text(False)
            assert value(text, "scale0_broker_up") == 1
            assert (value(text, "scale0_sample_timestamp_seconds") or 0.0) >= before
            await eventually(lambda: sampler.is_idle, "it rests")
    await client.close()


async def test_without_a_token_file_there_is_only_that_nothing_is_known(broker, tmp_path):
    client = BrokerClient(broker.endpoints["frontend"], tmp_path / "nowhere" / TOKEN_FILE)
    sampler = MetricsSampler(client)
    async with sampler.running():
        text = await sampler.text(False)
        assert value(text, "scale0_broker_up") == 0
        assert value(text, "scale0_sample_failures_total")
    await client.close()


# Promise: EXP-1
async def test_agents_are_counted_by_state_as_the_helens_say(broker, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 1.0)
    monkeypatch.setattr(module, "MONITORING_SECONDS", 0.0)
    client = client_of(broker)
    sampler = MetricsSampler(client)

    async def counted(state: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while value(await sampler.text(False), "scale0_agents", state=state) != 1:  # noqa: ASYNC110  # Helen says when
                await asyncio.sleep(0.1)

    with helen_process(tmp_path / "helen", broker) as helen:
        async with sampler.running():
            with helen.accepted("web-1"):
                await counted("connected")
            await counted("away")
            text = await sampler.text(False)
            assert value(text, "scale0_helens") == 1
            assert value(text, "scale0_checks", state="critical") is not None
    await client.close()
