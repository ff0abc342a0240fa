"""Helen is killed while agents run schedules: each result of that time arrives, once.

The full size is `SCALE0_OUTAGE_AGENTS=200 SCALE0_OUTAGE_SECONDS=120`; the default is smaller.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scale0.client.client import Client
from scale0.kernel.edge.secret_files import TOKEN_FILE
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.helen_process import HelenProcess, helen_process
from tests.fakes.journals import journal_events
from tests.fakes.processes import environment
from tests.fakes.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

AGENTS = int(os.environ.get("SCALE0_OUTAGE_AGENTS", "20"))
SECONDS = float(os.environ.get("SCALE0_OUTAGE_SECONDS", "5"))
INTERVAL = 1.0
LOOK_SECONDS = 0.25


def answered(helen: HelenProcess) -> collections.Counter[tuple[str, int]]:
    """How often each run of each agent stands in her journal."""
    found: collections.Counter[tuple[str, int]] = collections.Counter()
    for event in journal_events(Path(helen.folder)):
        if event["kind"] == "check.answered":
            found[event["identity"], int(event["metrics"][0]["value"])] += 1
    return found


def newest(found: collections.Counter[tuple[str, int]]) -> collections.Counter[str]:
    """The last run of each agent that she knows."""
    out: collections.Counter[str] = collections.Counter()
    for agent, run in found:
        out[agent] = max(out[agent], run)
    return out


@contextlib.contextmanager
def crowd(helen: HelenProcess, names: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "tests.processes.helen.many_agents",
        str(helen.signer.folder),
        str(helen.port),
        *names,
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def define(broker: BrokerProcess, client: Client) -> None:
    token = (Path(broker.config["data_dir"]) / TOKEN_FILE).read_text().strip()
    client.manage("patch_config", set={"checks": [{"name": "probe", "interval": INTERVAL}]}, auth_token=token)


# Promise: AGENT-6, AGENT-7
def test_every_result_of_an_outage_arrives_exactly_once(tmp_path: Path) -> None:
    names = [f"agent-{number}" for number in range(AGENTS)]
    with (
        broker_process(tmp_path / "broker", config_service=True) as broker,
        helen_process(tmp_path / "helen", broker) as helen,
        Client(broker.endpoints["frontend"], timeout=10) as client,
    ):
        define(broker, client)
        for name in names:
            helen.certificate(name)
        with crowd(helen, names) as child:
            until(lambda: len({agent for agent, _ in answered(helen)}) == AGENTS, seconds=60, every=LOOK_SECONDS)
            helen.end(signal.SIGKILL)
            time.sleep(SECONDS)  # the outage itself is what is tested: it has a length
            before = answered(helen)
            helen.start()
            least = int(SECONDS / INTERVAL) - 1
            wanted = {name: newest(before)[name] + least for name in names}
            until(
                lambda: all(newest(answered(helen))[name] >= wanted[name] for name in names),
                seconds=120,
                every=LOOK_SECONDS,
            )
            child.send_signal(signal.SIGTERM)
            assert child.stdout is not None
            ran: dict[str, int] = json.loads(child.stdout.readline())
        found = answered(helen)
        assert {key: count for key, count in found.items() if count > 1} == {}
        # What ran last may still be in a spool: all before it must have arrived, with nothing missing in between.
        last = newest(found)
        counts = collections.Counter(agent for agent, _ in found)
        assert counts == last
        assert all(ran[name] - last[name] <= 2 for name in names), (ran, last)
