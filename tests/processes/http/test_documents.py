"""Documents that cost a second to check delay nobody else, and one user has few of them at a time."""

# Promise: HTTP-5
from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.processes

HEADERS = {"Content-Type": "application/json"}
CHECKS = [{"name": f"c{number}", "check": "http", "args": {"url": "x"}, "agents": ["*"]} for number in range(45_000)]
LARGE = json.dumps({"config": {"network": "x", "checks": CHECKS}}).encode()
DUPLICATES = b'{"config":{' + b",".join([b'"a":1'] * 690_000) + b"}}"


def posted(site, token, data):
    client = site.with_token(token)
    began = time.monotonic()
    response = client.post("/config/check", content=data, headers=HEADERS)
    return response, time.monotonic() - began


def test_others_are_answered_while_a_document_is_checked(site):
    token = site.token("viewer")
    other = site.nobody()
    longest = 0.0
    with ThreadPoolExecutor(1) as pool:
        checking = pool.submit(posted, site, token, LARGE)
        while not checking.done():
            longest = max(longest, other.get(site.server.url + "/healthz").elapsed.total_seconds())
        response, lasted = checking.result()
    assert response.status_code == 200, response.text
    assert longest < lasted / 3


def test_many_duplicate_keys_are_refused(site):
    response, _ = posted(site, site.token("viewer"), DUPLICATES)
    assert (response.status_code, response.json()["message"]) == (400, "config.a is given more than once")


def test_one_user_has_few_documents_at_a_time(site):
    tokens = [site.token("viewer", name="many") for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        many = [pool.submit(posted, site, tokens[number % 2], LARGE) for number in range(8)]
        answers = [one.result()[0] for one in many]
    found = {answer.status_code for answer in answers}
    assert found == {200, 429}
    (refused, *_) = (answer for answer in answers if answer.status_code == 429)
    assert "many" in refused.json()["message"]
    assert refused.headers["Retry-After"]
    assert posted(site, tokens[0], b'{"config": {"network": "x"}}')[0].status_code == 200
