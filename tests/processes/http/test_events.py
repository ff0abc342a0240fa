"""Events over HTTP, with a real broker that is killed and restarted, and a worker that dies."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.journals import journal_events
from tests.fakes.processes import background
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.processes.http.site import admins
from tests.processes.segments.folders import segment_files

pytestmark = pytest.mark.processes


class Item(NamedTuple):
    id: str
    event: str
    data: dict[str, Any]


@contextlib.contextmanager
def streamed(client: httpx.Client, after: str = "", **query: str) -> Iterator[Iterator[Item]]:
    headers = {"Last-Event-ID": after} if after else {}
    with client.stream("GET", "/events/stream", params=query, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield items_of(answer)


def items_of(answer: httpx.Response) -> Iterator[Item]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        assert fields["id"], "everything says where the reader stands"
        if fields["event"] != "here":
            yield Item(fields["id"], fields["event"], json.loads(fields["data"]))
        fields = {}


def taken(items: Iterator[Item], enough: Any) -> list[Item]:
    found = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    for item in items:
        found.append(item)
        if enough(item):
            return found
        assert time.monotonic() < deadline, found[-3:]
    raise AssertionError(f"the stream ended: {found[-3:]}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    options: dict[str, Any] = {"admins": admins(), "segments": "", "segment_seconds": 1.0}
    with broker_process(tmp_path_factory.mktemp("broker"), **options) as running:
        yield running


def submitted(broker: BrokerProcess, count: int) -> None:
    with scale0.Client(broker.endpoints["frontend"], timeout=20) as client:
        for n in range(count):
            client.submit("nobody.does", n)


def recorded(broker: BrokerProcess) -> int:
    folder = broker.data_dir
    last = max((event["seq"] for event in journal_events(folder)), default=0)
    files = segment_files(folder / "segments")
    return max(last, int(files[-1].stem.rsplit("-", 1)[1]) if files else 0)


# Promise: FEED-1
@pytest.mark.slow
def test_a_stream_goes_on_over_trims_and_kills_of_the_broker(site, broker):
    viewer = site.by_token("viewer")
    found: list[Item] = []
    with streamed(viewer) as items:
        submitted(broker, 3)
        found += taken(items, lambda item: item.data["kind"] == "task.submitted")
        broker.kill9()
        broker.start()
        found += taken(items, lambda item: item.data["kind"] == "broker.started")
        submitted(broker, 3)
        found += taken(items, lambda item: item.data["kind"] == "task.submitted")
    broker.restart()
    submitted(broker, 50)
    folder = broker.data_dir
    until(lambda: not journal_events(folder), "the journal is trimmed", PATIENCE_SECONDS)
    submitted(broker, 1)
    last = recorded(broker)
    until(lambda: viewer.get("/session").status_code == 200, "the server has found its broker again", PATIENCE_SECONDS)
    with streamed(viewer, after=found[-1].id) as items:
        found += taken(items, lambda item: item.data["seq"] >= last)
    assert {item.event for item in found} == {"event"}
    numbers = [item.data["seq"] for item in found]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "each once and in order"
    assert all(item.id == f"broker-1:{item.data['seq']}" for item in found)


# Promise: FEED-4
def test_a_stream_and_pages_are_filtered(site, broker):
    viewer = site.by_token("viewer")
    with streamed(viewer, kind="management.*", identity="t-admin") as items:
        submitted(broker, 2)
        admin = site.by_token("admin")
        assert admin.post("/brokers/broker-1/reload").status_code == 200
        (item,) = taken(items, lambda item: True)
    assert item.data["data"]["command"] == "reload_config"
    page = viewer.get("/events", params={"kind": "task.submitted", "limit": 2}).json()
    assert [event["kind"] for event in page["items"]] == ["task.submitted"] * 2
    second = viewer.get("/events", params={"kind": "task.submitted", "limit": 2, "after": page["next"]}).json()
    numbers = [event["seq"] for event in (*page["items"], *second["items"])]
    assert numbers == sorted(set(numbers), reverse=True)
    audit = viewer.get("/audit", params={"limit": 1000}).json()
    kinds = {event["kind"] for event in audit["items"]}
    assert {"management.commanded", "broker.started"} <= kinds
    assert "task.submitted" not in kinds


# Promise: FEED-5
@pytest.mark.slow
def test_the_story_of_a_task_whose_worker_was_killed(site, broker, tmp_path):
    program = (
        "import sys, time, scale0\n"
        "worker = scale0.Worker(sys.argv[1], identity=sys.argv[2])\n"
        "@worker.service('hang.or.not')\n"
        "def work():\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(float(sys.argv[3]))\n"
        "    return 7\n"
        "worker.run()\n"
    )

    command = [sys.executable, "-c", program, broker.endpoints["backend"]]
    with scale0.Client(broker.endpoints["frontend"], timeout=60) as client:
        task = client.submit("hang.or.not")
        with background([*command, "doomed", "600"], tmp_path) as first:
            first.wait_for("begun")
        with background([*command, "heir", "0"], tmp_path):
            assert task.result(timeout=60) == 7
    viewer = site.by_token("viewer")
    story = viewer.get(f"/tasks/{task.id}/timeline").json()
    rows = [(one["kind"], one["node"], one["attempt"], one["state"]) for one in story["items"]]
    assert rows == [
        ("task.submitted", None, None, None),
        ("task.attempt_ended", "doomed", 1, "lost"),
        ("task.completed", "heir", 2, "finished"),
    ]
    assert "attempt 1 on doomed ended: lost" in story["items"][1]["words"]
    assert story["unseen"] == []
    assert viewer.get("/tasks/nobody/timeline").status_code == 404


# Promise: FEED-3
def test_there_are_so_many_streams_and_no_more(site, broker):
    viewer = site.by_token("viewer")
    with contextlib.ExitStack() as stack:
        limits = httpx.Limits(max_connections=100)
        many = stack.enter_context(httpx.Client(base_url=viewer.base_url, limits=limits))
        users = [site.by_token("viewer", name=f"v{number}").headers for number in range(6)]
        refused = 0
        for number in range(52):
            headers = {"Authorization": users[number % 6]["Authorization"]}
            answer = stack.enter_context(many.stream("GET", "/events/stream", headers=headers, timeout=30))
            if answer.status_code == 429:
                refused += 1
                assert answer.headers["retry-after"]
                assert "event streams are open" in json.loads(answer.read())["message"]
        assert refused == 2
    until(lambda: is_open(viewer), "who left made room", PATIENCE_SECONDS)


# Promise: FEED-3
def test_one_user_has_so_many_streams_and_leaves_room_for_others(site):
    viewer = site.by_token("viewer", name="greedy")
    with contextlib.ExitStack() as stack:
        limits = httpx.Limits(max_connections=100)
        many = stack.enter_context(httpx.Client(base_url=viewer.base_url, headers=viewer.headers, limits=limits))
        codes = [stack.enter_context(many.stream("GET", "/events/stream")).status_code for _ in range(12)]
        assert codes == [200] * 10 + [429] * 2
        assert is_open(site.by_token("viewer", name="other"))


def is_open(viewer: httpx.Client) -> bool:
    with viewer.stream("GET", "/events/stream") as answer:
        return answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/events", {"after": "x"}, 400),
        ("/events", {"after": "a:1,a:2"}, 400),
        ("/events", {"since": "yesterday"}, 400),
        ("/events", {"since": "9999-99-99"}, 400),
        ("/events", {"limit": "0"}, 400),
        ("/events", {"limit": "1001"}, 400),
        ("/events", {"strange": "1"}, 400),
        ("/events", {"kind": "x" * 300}, 400),
        ("/events/stream", {"after": "no position"}, 400),
        ("/reports/weather", {}, 404),
        ("/reports/tasks", {}, 404),
        ("/reports/tasks", {"last": "1"}, 400),
        ("/reports/tasks", {"from": "2026-01-02", "to": "2026-01-01"}, 400),
        ("/warehouse", {}, 404),
        ("/warehouse/tasks", {}, 404),
        ("/checks/nobody/nothing/series", {}, 200),
        ("/events", {"since": "2h", "kind": "[", "ref": "'"}, 200),
        ("/reports", {}, 200),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(site, path, query, status):
    response = site.by_token("viewer").get(path, params=query)
    assert response.status_code == status, response.text
    if status >= 400:
        body = response.json()
        assert body["status"] == status
        assert body["message"]
        assert body["next"]


# Promise: FEED-3
@pytest.mark.slow
def test_a_stream_ends_when_its_token_is_revoked(site, broker):
    viewer = site.by_token("viewer", name="short-lived")
    with streamed(viewer) as items:
        assert site.manage("revoke_token", token=viewer.headers["Authorization"].removeprefix("Bearer "))
        (*_, last) = list(items)
    assert last.event == "dropped"
    assert last.data["reason"] == "access"
    assert viewer.get("/events").status_code == 401
