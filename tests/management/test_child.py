"""The HTTP server beside a broker: started with it, started again when it dies, gone with it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from tests.client.net import until
from tests.support.broker_process import BrokerProcess, broker_process

pytestmark = pytest.mark.processes

CONSOLE = re.compile(r"^console: (http\S+)$", re.MULTILINE)
LINK = re.compile(r"it works once: (http\S+)$", re.MULTILINE)
MANAGEMENT = {"enabled": True, "port": 0}


def served_at(broker: BrokerProcess, times: int = 1) -> str:
    """Where it serves, once it has said so that often."""
    until(lambda: len(CONSOLE.findall(broker.log.read_text())) >= times, "it serves", 30)
    found: str = CONSOLE.findall(broker.log.read_text())[times - 1]
    return found


def server_of(broker: BrokerProcess) -> psutil.Process:
    children = psutil.Process(broker.pid).children()
    return next(one for one in children if "scale0.management" in one.cmdline())


# Promise: HTTP-9
def test_it_is_off_unless_the_file_says_so(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        assert not [one for one in psutil.Process(broker.pid).children() if "scale0.management" in one.cmdline()]


# Promise: HTTP-9
def test_a_server_that_dies_is_started_again_and_the_broker_does_not_notice(tmp_path: Path) -> None:
    with broker_process(tmp_path, management=MANAGEMENT) as broker:
        first = served_at(broker)
        assert httpx.get(f"{first}/healthz").status_code == 200
        old = server_of(broker)
        old.kill()
        second = served_at(broker, 2)
        assert httpx.get(f"{second}/healthz").status_code == 200
        assert server_of(broker).pid != old.pid
        assert broker.running


# Promise: HTTP-9
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_broker_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    with broker_process(tmp_path, management=MANAGEMENT) as broker:
        served_at(broker)
        server = server_of(broker)
        os.kill(broker.pid, number)
        until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "the server is gone", 10)


# Promise: HTTP-9
def test_the_first_start_tells_a_link_that_works_once(tmp_path: Path) -> None:
    with broker_process(tmp_path, management=MANAGEMENT) as broker:
        url = served_at(broker)
        until(lambda: LINK.search(broker.log.read_text()), "a way in is told")
        link = LINK.findall(broker.log.read_text())[0]
        once = link.partition("once=")[2]
        assert link.startswith(f"{url}/#/login?once=")
        said = httpx.post(f"{url}/api/v1/session", json={"once": once})
        assert said.status_code == 200, said.text
        assert said.json()["role"] == "admin"
        assert httpx.post(f"{url}/api/v1/session", json={"once": once}).status_code == 401
        assert once not in broker.log.read_text().replace(link, "")
