"""The HTTP server beside a broker: started with it, started again when it dies, gone with it."""

# Promise: HTTP-9
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fakes.broker_process import PORTS, BrokerProcess, broker_process
from tests.fakes.processes import environment, gone, scale0_command
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes

CONSOLE = re.compile(r"^console: (http\S+)$", re.MULTILINE)
LINK = re.compile(r"opens it once, within ten minutes: (http\S+)$", re.MULTILINE)
MANAGEMENT = {"enabled": True, "port": 0}


def served_at(broker: BrokerProcess, times: int = 1) -> str:
    """Its URL, once it has logged so many."""
    until(lambda: len(CONSOLE.findall(broker.log_text())) >= times, "it serves", 30)
    found: str = CONSOLE.findall(broker.log_text())[times - 1]
    return found


def server_of(broker: BrokerProcess) -> psutil.Process:
    children = psutil.Process(broker.pid).children()
    return next(one for one in children if "scale0.http" in one.cmdline())


def test_it_is_off_unless_the_file_says_so(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        assert not [one for one in psutil.Process(broker.pid).children() if "scale0.http" in one.cmdline()]


def test_a_server_that_dies_is_started_again_and_the_broker_does_not_notice(tmp_path: Path) -> None:
    with broker_process(tmp_path, management=MANAGEMENT) as broker:
        first = served_at(broker)
        assert httpx.get(f"{first}/healthz").status_code == 200
        old = server_of(broker)
        old.kill()
        second = served_at(broker, 2)
        assert second == first, "an open console finds it again, though any port was good"
        assert httpx.get(f"{second}/healthz").status_code == 200
        assert server_of(broker).pid != old.pid
        assert broker.running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_broker_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    with broker_process(tmp_path, management=MANAGEMENT) as broker:
        served_at(broker)
        server = server_of(broker)
        os.kill(broker.pid, number)
        until(lambda: gone(server.pid), "the server is gone", 10)


def test_the_first_start_tells_a_terminal_a_link_that_works_once(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path) as output:
        until(lambda: LINK.search(output()), "a way in is told", 30)
        link = LINK.findall(output())[0]
        url, _, once = link.partition("/#/login?once=")
        assert CONSOLE.findall(output()) == [url]
        answer = httpx.post(f"{url}/api/v1/session", json={"once": once})
        assert answer.status_code == 200, answer.text
        assert answer.json()["role"] == "admin"
        assert httpx.post(f"{url}/api/v1/session", json={"once": once}).status_code == 401
        assert once not in output().replace(link, "")


def test_a_log_shows_how_to_get_a_link_and_no_link(tmp_path: Path) -> None:
    with broker_process(tmp_path, management=MANAGEMENT) as broker:
        served_at(broker)
        until(lambda: "scale0 access link" in broker.log_text(), "a way to a way in is told")
        assert "once=" not in broker.log_text()


@contextlib.contextmanager
def on_a_terminal(folder: Path) -> Iterator[Callable[[], str]]:
    """A broker whose stderr is a terminal; what it has printed there."""
    file, ours = folder / "broker.json", os.openpty()
    ports = dict.fromkeys((f"{name}_port" for name in PORTS), 0)
    file.write_text(json.dumps({"state": "active", "data_dir": str(folder), "management": MANAGEMENT, **ports}))
    process = subprocess.Popen(
        scale0_command("broker", "--config", str(file)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=ours[1],
        env=environment(),
    )
    os.close(ours[1])
    os.set_blocking(ours[0], False)
    found = [b""]

    def output() -> str:
        with contextlib.suppress(BlockingIOError):
            found[0] += os.read(ours[0], 65_536)
        return found[0].decode(errors="replace").replace("\r\n", "\n")

    try:
        yield output
    finally:
        process.kill()
        process.wait()
        os.close(ours[0])
