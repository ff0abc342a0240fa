"""The web application under uvicorn: what it promises to its own callers (test_pages: what its README shows)."""

# Promise: CLI-3
from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.ports import free_port
from tests.fakes.processes import background
from tests.fakes.shell import EXAMPLES, shell_of
from tests.fakes.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

APP = EXAMPLES / "fastapi_app"
CAT = {"url": "https://example.com/cat.png", "width": 100}


@pytest.fixture
def broker(tmp_path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def web(broker, tmp_path) -> Iterator[httpx.Client]:
    """The application, without a worker."""
    port = free_port()
    shell = shell_of(broker, tmp_path, SCALE0_BROKER=broker.endpoints["frontend"])
    words = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port)]
    with background(words, APP, shell.environment) as running:
        running.wait_for("Uvicorn running")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client


def test_what_it_promises(web, broker, tmp_path):
    # The same key is the same task, whoever dies between; without a key each is its own.
    first = web.post("/thumbnails", json=CAT, headers={"Idempotency-Key": "cat"})
    assert first.status_code == 202
    assert first.headers["location"] == first.json()["href"] == f"/tasks/{first.json()['id']}"
    broker.kill9()
    away = web.post("/thumbnails", json=CAT, headers={"Idempotency-Key": "cat"})
    assert (away.status_code, away.headers["retry-after"]) == (503, "5")
    assert web.get(first.json()["href"]).status_code == 503
    broker.restart()
    again = until(lambda: post(web, {"Idempotency-Key": "cat"}), "the application finds its broker again")
    assert again.json() == first.json()
    other = web.post("/thumbnails", json=CAT)
    assert other.json()["id"] != first.json()["id"]

    # What is not there, or not right.
    assert web.get("/tasks/nobody-made-it").status_code == 404
    assert web.get("/tasks/no%20id").status_code == 404
    assert web.post("/thumbnails", json={"url": "ftp://example.com/cat.png"}).status_code == 422

    # A task that is cancelled before anybody took it.
    assert web.get(other.json()["href"]).json()["status"] == "queued"
    assert web.delete(other.json()["href"]).status_code == 204
    assert web.get(other.json()["href"]).json()["status"] == "cancelled"

    # Watched from before its start to its end.
    with (
        web.stream("GET", f"{first.json()['href']}/events") as events,
        shell_of(broker, tmp_path).background("worker", str(APP / "thumbnails.py")) as worker,
    ):
        assert events.headers["content-type"].startswith("text/event-stream")
        worker.wait_for("ready ")
        received = list(sent(events))
    assert [event for event, _ in received[:-1]] == ["progress"] * (len(received) - 1)
    assert received[0][1]["status"] == "queued"
    assert any(view["status"] == "running" and view["note"] for _, view in received)
    assert received[-1][0] == "end"
    assert received[-1][1]["result"] == {"thumbnail": "/thumbnails/49b774fe8007.png", "width": 100}
    assert web.get(first.json()["href"]).json() == received[-1][1]


def post(web: httpx.Client, headers: dict[str, str]) -> httpx.Response | None:
    """The answer, once it is a good one."""
    answer = web.post("/thumbnails", json=CAT, headers=headers)
    return answer if answer.status_code == 202 else None


def sent(response: httpx.Response) -> Iterator[tuple[str, dict]]:
    """The events of a stream: their names and data."""
    name = ""
    for line in response.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
