"""A flood of wrong passwords from several addresses and names: an honest login passes.

Promise: HTTP-11
"""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import threading
import time

import pytest

from tests.fakes.waiting import until
from tests.processes.http.site import API, PASSWORD, Site

pytestmark = pytest.mark.processes

ADDRESSES = 7
UNKNOWN = ("n1", "n2", "n3", "n4", "n5")
ATTEMPTS = 2 + len(UNKNOWN)
"""Of each address, at once and each with another name: more in total than the server sends to the broker."""
HONEST_SECONDS = 2.0


def log_in(site: Site, address: str, name: str, password: str, timeout: float = 60.0) -> int:
    host, port = site.server.address
    connection = http.client.HTTPConnection(host, port, timeout=timeout, source_address=(address, 0))
    with contextlib.closing(connection):
        body = json.dumps({"name": name, "password": password})
        connection.request("POST", f"{API}/session", body, {"Content-Type": "application/json"})
        return connection.getresponse().status


@pytest.mark.timeout(120)
def test_an_honest_login_passes_during_a_flood_of_wrong_passwords(site):
    stop = threading.Event()
    statuses: list[int] = []

    def flood(address: int, attempt: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                statuses.append(log_in(site, f"127.0.1.{address}", ("ada", "otto", *UNKNOWN)[attempt], "wrong"))
            stop.wait(0.05)

    threads = [
        threading.Thread(target=flood, args=(address, attempt), daemon=True)
        for address in range(1, ADDRESSES + 1)
        for attempt in range(ATTEMPTS)
    ]
    for thread in threads:
        thread.start()
    until(lambda: site.manage("status")["counters"].get("passwords_wrong", 0) >= ADDRESSES, "the flood has begun")
    seconds = []
    for number in range(5):
        began = time.monotonic()
        assert log_in(site, f"127.0.2.{number}", "vera", PASSWORD) == 200, "from an address that is not known"
        seconds.append(time.monotonic() - began)
    assert statistics.median(seconds) < HONEST_SECONDS, seconds
    stop.set()
    for thread in threads:
        thread.join(60)
    assert set(statuses) <= {401, 429}
