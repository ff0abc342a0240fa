"""What the API shows and changes, on a network with workers, tasks and a broker that comes and goes."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import scale0
from tests.fakes.broker_process import broker_process
from tests.fakes.journals import recorded
from tests.fakes.waiting import until
from tests.processes.client.net import client_of, working
from tests.processes.http.site import Site, admins, served
from tests.wire.scale0.raw import raws

pytestmark = pytest.mark.processes


def echo(value: int) -> int:
    return value


def broken(value: int) -> int:
    raise ValueError(f"no {value}")


@pytest.fixture(scope="module")
def busy(site):
    with working(site.broker, echo, broken, slots=4):
        yield site


def test_services_carry_rates_and_the_ring_shows_them(busy):
    # Promise: HTTP-10
    viewer = busy.by_token("viewer")
    with client_of(busy.broker) as net:

        def seen() -> bool:
            for number in range(50):
                net.call("echo", number)
            rows = viewer.get("/services", params={"match": "ech*"}).json()["items"]
            return bool(rows and (rows[0]["rates"]["answered_per_second"] or 0) > 1)

        until(seen, "a rate is seen")
        row = viewer.get("/services", params={"match": "echo"}).json()["items"][0]
        assert 0 < row["rates"]["p50_seconds"] <= row["rates"]["p99_seconds"] < 5
        assert (row["service"], row["backends"], row["slots"]) == ("echo", 1, 4)
        found = viewer.get("/series", params={"service": "echo"}).json()
        assert len({len(column) for column in found.values()}) == 1
        assert max(one or 0 for one in found["answered"]) > 1
        whole = viewer.get("/series").json()
        assert max(one or 0 for one in whole["answered"]) > 1
        assert viewer.get("/overview").json()["rates"]["answered_per_second"] > 0


def test_lists_are_paged_and_filtered(busy):
    # Promise: HTTP-6
    viewer = busy.by_token("viewer")
    clients = [client_of(busy.broker, identity=f"page-{number}") for number in range(5)]
    for client in clients:
        client.ping()
    seen, after = [], None
    while True:
        asked = {"limit": 2, "match": "page-*", **({"after": after} if after else {})}
        page = viewer.get("/clients", params=asked).json()
        assert len(page["items"]) <= 2
        seen += [row["identity"] for row in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [f"page-{number}" for number in range(5)]
    assert viewer.get("/clients", params={"match": "page-", "role": "backend"}).json()["items"] == []
    assert viewer.get("/clients", params={"limit": 1}).json()["next"]
    for client in clients:
        client.close()


@pytest.mark.slow
def test_the_overview_knows_the_queues_beyond_the_first_page(busy):
    # Promise: HTTP-6
    viewer = busy.by_token("viewer")
    names = [f"many.{number:03}" for number in range(250)]
    with raws(busy.broker.endpoints) as net, client_of(busy.broker) as client:
        for number in range(40):
            net.backend(*names, identity=f"{number:03}.{'x' * 124}", heartbeat_interval=60)
        net.backend("slow", identity="slow", heartbeat_interval=60)
        pending = [client.start("slow", timeout=30) for _ in range(2)]
        first = viewer.get("/queues", params={"limit": 1_000}).json()
        assert first["next"]
        assert "slow" not in {row["service"] for row in first["items"]}

        def is_named() -> bool:
            found = viewer.get("/overview").json()["attention"]
            return "queue slow" in {one["what"] for one in found}

        until(is_named, "the overview names the queue whose first request waits long")
        assert not any(one.done for one in pending)


def test_queues_show_who_is_handed_work_next(busy):
    rows = {row["service"]: row for row in busy.by_token("viewer").get("/queues").json()["items"]}
    assert rows["echo"]["backends"] == 1
    assert rows["echo"]["lru"][0]["slots"] == 4


def test_a_failed_task_is_seen_and_retried(busy):
    # Promise: HTTP-7
    viewer, operator = busy.by_token("viewer"), busy.by_cookie("operator")
    with client_of(busy.broker) as net:
        task = net.task(max_attempts=1).submit("broken", 1)
        with pytest.raises(scale0.TaskError):
            task.result(timeout=20)
        rows = viewer.get("/tasks", params={"status": "failed", "method": "broken"}).json()["items"]
        assert task.id in {row["task_id"] for row in rows}
        page = viewer.get(f"/tasks/{task.id}").json()
        assert page["status"] == "failed"
        assert "no 1" in json.dumps(page["error"])
        assert viewer.post(f"/tasks/{task.id}/retry").status_code == 403
        assert operator.post(f"/tasks/{task.id}/retry").json()["status"] == "queued"
        again = until(lambda: ended_after(viewer, task.id, page["finished"]), "it runs and fails again")
        assert again["status"] == "failed"
        response = until(lambda: [one for one in recorded(busy.broker, "retry_task") if one["identity"] == "otto"])
        assert "127.0.0.1" in response[0]["origin"]
        assert operator.post(f"/tasks/{task.id}/cancel").status_code == 200
        assert operator.post("/tasks/nothing/cancel").status_code == 404


def ended_after(viewer, id_: str, moment: float) -> dict | None:
    page = viewer.get(f"/tasks/{id_}").json()
    return page if (page["finished"] or 0) > moment else None


def test_a_change_is_recorded_with_who_and_from_where(busy):
    # Promise: HTTP-7
    operator = busy.by_token("operator", name="robot")
    before = operator.get("/config").json()["version"]
    made = operator.post("/silences", json={"agents": ["db-*"], "seconds": 60, "reason": "moving"})
    assert made.status_code == 201
    found = made.json()
    assert (found["author"], found["state"]) == ("robot", "active")
    assert operator.get("/config").json()["version"] == before + 1
    event = until(lambda: recorded(busy.broker, "patch_config"))[-1]
    assert event["identity"] == "robot"
    assert "http/127.0.0.1" in event["origin"]
    listed = operator.get("/silences").json()["items"]
    assert found["name"] in {row["name"] for row in listed}
    assert operator.post("/silences", json={"agents": ["x"], "name": found["name"]}).status_code == 409
    assert operator.delete(f"/silences/{found['name']}").status_code == 200
    assert operator.delete(f"/silences/{found['name']}").status_code == 404
    assert found["name"] not in {row["name"] for row in operator.get("/silences").json()["items"]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"seconds": 60},
        {"agents": ["x"], "seconds": 1, "ends": 2_000_000_000},
        {"agents": ["x"], "ends": 1},
        {"agents": ["x"], "seconds": 0},
        {"agents": ["["] * 101},
        {"agents": [""]},
        {"agents": ["x"], "name": "a b"},
        {"agents": ["x"], "author": "root"},
    ],
    ids=range(9),
)
def test_a_silence_that_means_nothing_is_refused(busy, body):
    before = busy.manage("get_config")["version"]
    assert busy.by_token("operator").post("/silences", json=body).status_code == 400
    assert busy.manage("get_config")["version"] == before


def test_a_downtime_is_planned_and_taken_back(busy):
    operator = busy.by_token("operator")
    starts = time.time() + 3_600
    found = operator.post("/downtimes", json={"agents": ["*"], "starts": starts, "seconds": 60, "name": "night"})
    assert (found.status_code, found.json()["state"], found.json()["ends"]) == (201, "planned", starts + 60)
    assert operator.post("/downtimes", json={"agents": ["*"]}).status_code == 400
    assert operator.post("/downtimes", json={"agents": ["*"], "starts": 5, "seconds": 5}).status_code == 400
    assert operator.delete("/downtimes/night").status_code == 200


def test_two_who_silence_at_once_both_succeed(busy):
    operator = busy.by_token("operator")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: operator.post("/silences", json={"checks": [f"c{n}"], "seconds": 9}), range(4)))
    assert [one.status_code for one in made] == [201] * 4


def test_a_configuration_is_compared_checked_and_changed_over_its_version(busy):
    admin, operator = busy.by_token("admin"), busy.by_token("operator")
    shown = admin.get("/config").json()
    config, base = shown["config"], shown["version"]
    wrong = {**config, "heartbeat_liveness": 0}
    found = admin.post("/config/check", json={"config": wrong}).json()
    assert not found["ok"]
    assert "heartbeat_liveness" in found["reasons"][0]
    response = admin.put("/config", json={"config": wrong, "base": base})
    assert response.status_code == 400
    assert "heartbeat_liveness" in response.json()["reasons"][0]
    better = {**config, "heartbeat_liveness": 7}
    found = admin.post("/config/check", json={"config": better}).json()
    assert found["ok"]
    assert found["items"] == [{"path": "heartbeat_liveness", "before": config["heartbeat_liveness"], "after": 7}]
    assert operator.put("/config", json={"config": better, "base": base}).status_code == 403
    assert admin.put("/config", json={"config": better, "base": base}).json()["version"] == base + 1
    assert admin.put("/config", json={"config": better, "base": base}).status_code == 409
    diff = admin.get("/config/diff", params={"from": base}).json()
    assert [one["path"] for one in diff["items"]] == ["heartbeat_liveness"]
    assert admin.get(f"/config/versions/{base}").json()["config"]["heartbeat_liveness"] != 7
    assert operator.patch("/config", json={"set": {"heartbeat_liveness": 8}, "base": base}).status_code == 409
    assert admin.post("/config/rollback", json={"version": base, "base": base}).status_code == 409
    assert admin.post("/config/rollback", json={"version": base, "base": base + 1}).json()["version"] == base + 2
    history = admin.get("/config/history", params={"limit": 2}).json()
    assert [row["version"] for row in history["items"]] == [base + 2, base + 1]
    assert history["next"]


def test_a_broker_is_drained_and_enabled_again(busy):
    # Promise: HTTP-10
    operator = busy.by_token("operator")
    assert operator.post("/brokers/broker-1/drain").json()["draining"] is True
    found = operator.get("/overview").json()
    assert found["attention"][0]["what"] == "broker"
    assert "scale0 enable" in found["attention"][0]["next"]
    assert operator.post("/brokers/broker-1/enable").json()["draining"] is False
    assert operator.get("/overview").json()["broker"]["draining"] is False
    assert operator.post("/brokers/broker-9/drain").status_code == 404
    assert operator.post("/brokers/broker-1/explode").status_code == 400


def test_another_broker_has_its_own_server(broker, site, tmp_path):
    with broker_process(tmp_path, identity="broker-2", peers=[broker.endpoints["peer"]]):
        operator = site.by_token("operator")
        until(lambda: len(operator.get("/brokers").json()["items"]) == 2, "both know each other")
        response = operator.post("/brokers/broker-2/drain")
        assert response.status_code == 409
        assert "tcp://" in response.json()["message"]
        found = operator.get("/topology").json()
        assert found["links"][0]["to"] == "broker-2"
        assert [one["brokers"] for one in operator.get("/groups").json()["items"]] == [["broker-1", "broker-2"]]


def test_ten_readers_cost_the_broker_what_one_does(busy):
    # Promise: HTTP-6
    viewer = busy.by_token("viewer")

    def asked(count: int) -> int:
        """How many looks the answers are of."""
        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(lambda _: viewer.get("/overview").json()["time"], range(count)))
        return len(set(answers))

    assert asked(10) <= 3


def test_a_token_is_issued_used_and_revoked(site):
    # Promise: HTTP-3
    admin = site.by_token("admin")
    made = admin.post("/tokens", json={"name": "ci", "role": "operator", "ttl": 60})
    assert made.status_code == 201
    found = made.json()
    client = site.with_token(found["token"])
    assert client.get("/session").json()["role"] == "operator"
    rows = admin.get("/tokens", params={"limit": 1_000}).json()["items"]
    assert {"id", "name", "role", "expires", "once"} == set(rows[0])
    assert found["token"] not in json.dumps(rows)
    assert admin.delete(f"/tokens/{found['id']}").status_code == 200
    assert client.get("/session").status_code == 401
    for body in ({"name": ""}, {"name": "a", "role": "root"}, {"name": "a", "ttl": 0}, {"name": "a", "ttl": 1e12}):
        assert admin.post("/tokens", json=body).status_code == 400


def test_the_server_outlives_its_broker(tmp_path):
    # Promise: HTTP-9
    with (
        broker_process(tmp_path / "broker", admins=admins()) as broker,
        served(tmp_path / "management", broker) as site,
    ):
        viewer = site.by_token("viewer")
        assert viewer.get("/overview").status_code == 200
        broker.kill9()
        response = until(lambda: gone(site, viewer), "the broker is missed")
        assert response["message"]
        assert site.nobody().get(site.server.url + "/healthz").status_code == 200
        broker.restart()
        until(lambda: viewer.get("/overview").status_code == 200, "it is back, and the token is still good")
        until(lambda: viewer.get("/series").json()["busy"][-1] is not None, "it is looked at again")
        assert None in viewer.get("/series").json()["busy"]


def gone(site: Site, viewer) -> dict | None:
    response = viewer.get("/brokers")
    return response.json() if response.status_code in (503, 504) else None
