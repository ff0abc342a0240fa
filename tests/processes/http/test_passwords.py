"""A thousand wrong passwords: few are looked at, none gets in, and the network does not notice."""

# Promise: HTTP-4
from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

import scale0
from scale0.http.auth.login_limits import (
    ADDRESS_BURST,
    ADDRESS_SECONDS,
    FRESH,
    MAX_KEYS,
    MAX_TURNS,
    NAME_BURST,
    PROVEN,
    LoginLimits,
    LoginTurns,
    TokenBuckets,
    host_of,
)
from scale0.http.problem import ApiProblem
from tests.fakes.waiting import until
from tests.processes.client.net import working
from tests.processes.http.site import API, PASSWORD, Site, served

pytestmark = pytest.mark.processes

TRIES = 1_000
CLIENTS = 20


class Answer(NamedTuple):
    status: int
    retry_after: str | None
    body: bytes


def try_some(site: Site, numbers: Iterable[int]) -> list[Answer]:
    host, port = site.server.address
    connection = http.client.HTTPConnection(host, port, timeout=60)
    found = []
    for number in numbers:
        body = json.dumps({"name": ("ada", "vera", "root")[number % 3], "password": f"wrong {number}"})
        connection.request("POST", f"{API}/session", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found.append(Answer(answer.status, answer.headers["retry-after"], answer.read()))
    connection.close()
    return found


def joined(site: Site) -> dict[str, float]:
    """Since when each worker is there: one that missed its heartbeats would have come again."""
    return {row["identity"]: row["since"] for row in site.manage("list_clients")["items"] if row["role"] == "backend"}


def test_a_thousand_wrong_passwords_get_nobody_in_and_cost_no_heartbeat(site):
    def echo(value: int) -> int:
        return value

    before = site.manage("status")["counters"].get("passwords_wrong", 0)
    token = site.by_token("viewer")
    with working(site.broker, echo) as worker, scale0.Client(site.broker.endpoints["frontend"], timeout=10) as net:
        since = joined(site)
        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            parts = pool.map(lambda one: try_some(site, range(one, TRIES, CLIENTS)), range(CLIENTS))
            answers = [answer for part in parts for answer in part]
        seconds = time.monotonic() - began
        assert net.call("echo", 7) == 7
        assert worker.wait_until_up(0)
        assert joined(site) == since
        assert site.manage("list_error_clients")["items"] == []
    statuses = [one.status for one in answers]
    assert set(statuses) <= {401, 429}
    allowed = ADDRESS_BURST + seconds / ADDRESS_SECONDS + 1
    assert statuses.count(401) <= allowed
    assert site.manage("status")["counters"]["passwords_wrong"] - before <= allowed
    limited = [one for one in answers if one.status == 429]
    assert all(int(one.retry_after or 0) >= 1 for one in limited)
    assert any(b"scale0 access link" in one.body for one in limited)
    # Who has a token is not locked out.
    assert token.get("/session").status_code == 200


def test_the_right_password_does_not_count(broker, tmp_path):
    with served(tmp_path, broker) as fresh:
        client = fresh.nobody()
        for _ in range(ADDRESS_BURST + 5):
            body = client.post("/session", json={"name": "ada", "password": PASSWORD})
            assert body.status_code == 200, body.text
        until(lambda: client.get("/session").status_code == 200)


def test_tries_are_counted_by_address_and_by_name():
    attempts = LoginLimits()
    for _ in range(ADDRESS_BURST):
        attempts.begin("10.0.0.1", "ada", 0.0)
    with pytest.raises(ApiProblem, match="too many"):
        attempts.begin("10.0.0.1", "vera", 0.0)
    attempts.begin("10.0.0.2", "vera", 0.0)
    assert ADDRESS_BURST == NAME_BURST
    with pytest.raises(ApiProblem) as caught:
        attempts.begin("10.0.0.2", "ada", 0.0)
    assert caught.value.status == 429
    assert caught.value.retry_after is not None
    attempts.begin("10.0.0.2", "ada", caught.value.retry_after)


def test_buckets_are_bounded_and_fill_again():
    buckets = TokenBuckets(2, 10.0)
    for _ in range(2):
        buckets.take("a", 0.0)
    assert buckets.wait("a", 0.0) == 10.0
    assert buckets.wait("a", 5.0) == 5.0
    assert buckets.wait("a", 10.0) == 0.0
    buckets.give_back("a", 0.0)
    assert buckets.wait("a", 0.0) == 0.0
    for number in range(MAX_KEYS + 100):
        buckets.take(str(number), 0.0)
    assert len(buckets) <= MAX_KEYS


# Promise: HTTP-4
def test_a_flood_of_a_name_does_not_lock_out_its_owner_at_a_known_address():
    attempts = LoginLimits()
    attempts.begin("10.0.0.1", "anna", 0.0)
    attempts.succeed("10.0.0.1", "anna", 0.0)
    for number in range(NAME_BURST):
        attempts.begin(f"10.9.0.{number}", "anna", 1.0)
    with pytest.raises(ApiProblem):
        attempts.begin("10.9.1.1", "anna", 1.0)
    for _ in range(5):
        attempts.begin("10.0.0.1", "anna", 1.0)
        attempts.succeed("10.0.0.1", "anna", 1.0)
    for _ in range(ADDRESS_BURST):
        attempts.begin("10.0.0.1", "anna", 2.0)
    with pytest.raises(ApiProblem):
        attempts.begin("10.0.0.1", "anna", 2.0)


# Promise: HTTP-4
def test_logins_from_fresh_addresses_do_not_delay_the_owner_at_a_known_one():
    attempts, order = LoginLimits(), []
    attempts.begin("10.0.0.1", "anna", 0.0)
    attempts.succeed("10.0.0.1", "anna", 0.0)
    ranks = {f"10.9.{n // 250}.{n % 250}": 0 for n in range(2 * MAX_TURNS)}
    for number, address in enumerate(ranks):
        ranks[address] = attempts.begin(address, f"name {number}", 1.0)
    assert set(ranks.values()) == {FRESH}
    ranks["10.0.0.1"] = attempts.begin("10.0.0.1", "anna", 1.0)
    assert ranks["10.0.0.1"] == PROVEN

    async def log_in(turns: LoginTurns, address: str, rank: int) -> None:
        async with turns.turn(address, rank):
            order.append(address)

    async def all_at_once() -> None:
        turns = LoginTurns(1)
        async with turns.turn("running", 0):
            logins = [asyncio.create_task(log_in(turns, *one)) for one in ranks.items()]
            await asyncio.sleep(0)
        await asyncio.gather(*logins)

    asyncio.run(all_at_once())
    assert order == ["10.0.0.1", *list(ranks)[:-1]]


# Promise: HTTP-4
def test_addresses_of_one_ipv6_network_count_as_one():
    assert host_of("2001:db8:1:2:3:4:5:6") == host_of("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert host_of("2001:db8:1:3::1") != host_of("2001:db8:1:2::1")
    assert host_of("::ffff:10.0.0.1") == host_of("10.0.0.1") == "10.0.0.1"
    assert host_of("fe80::1%eth0") == "fe80::/64"
    assert host_of("unknown") == "unknown"
