"""Brokers among each other with keys, joined by token: configuration, clients, revoked keys; and the HTTP server.

Promise: CURVE-1, CURVE-2, CURVE-12, CURVE-15, CURVE-16, CURVE-17
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

import scale0
from scale0.broker.edge.join_tokens import join_peer, new_join_token
from scale0.broker.edge.key_folder import KeyFolder
from scale0.transport.edge.joining import JoinError
from tests.fakes.ports import free_port
from tests.fakes.postgres import as_url, postgres_database, postgres_server, postgres_url
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.wire.curve.keys import PUBLISHERS, Lock, client_of, enrolled, locked, network, pair_in
from tests.wire.curve.test_identities import call
from tests.wire.scale0.raw import Raw

__all__ = ["postgres_database", "postgres_server", "postgres_url"]

pytestmark = [pytest.mark.processes, pytest.mark.slow]

GONE_SECONDS = 3.0
"""The broker that stores a key sees that it is gone in half a second; the others in a quarter of a heartbeat more."""


def worker_at(lock: Lock, key: Path) -> scale0.Worker:
    worker = scale0.Worker(lock.broker.endpoints["backend"], key=key)
    worker.add("double", lambda number: 2 * number)
    return worker


def test_a_group_on_a_database_goes_on_with_programs_that_only_the_dead_broker_enrolled(
    tmp_path: Path, postgres_url: str
) -> None:
    store = {"store": as_url(postgres_url)}
    with network(tmp_path, "east-1", "east-2", east_1=store, east_2=store) as (one, two):
        caller, working = enrolled(one, "frontend", "caller"), enrolled(one, "backend", "working")
        with worker_at(one, working) as worker, client_of(one, caller, retry=True) as client:
            assert worker.wait_until_up(PATIENCE_SECONDS)
            assert client.submit("double", 1).result(timeout=PATIENCE_SECONDS) == 2
            until(lambda: bool(client.ping() and client._core.session.connection.addresses.has_others))
            two.admitted("frontend", pair_in(caller))
            two.admitted("backend", pair_in(working))
            one.broker.kill9()
            assert client.submit("double", 21).result(timeout=PATIENCE_SECONDS) == 42
            assert client.call("scale0.ping", timeout=PATIENCE_SECONDS)["broker"] == "east-2"


# Promise: OWN-1, OWN-2
def test_a_task_belongs_to_its_key_at_every_broker_of_a_group(tmp_path: Path, postgres_url: str) -> None:
    store = {"store": as_url(postgres_url)}
    with network(tmp_path, "east-1", "east-2", east_1=store, east_2=store) as (one, two):
        caller, other = (pair_in(enrolled(one, "frontend", name)) for name in ("caller", "other"))
        two.admitted("frontend", caller)
        two.admitted("frontend", other)
        here, there = one.raw("frontend", caller), two.raw("frontend", caller)
        assert call(here, "client_connect", "tasks")["result"] == "tasks"
        task = call(here, "client_new_task", "tasks", "nobody.does", [1], None, {"key": "k"})["result"]
        assert call(there, "client_task_status", "tasks", task)["result"]["status"] == "queued"
        assert call(there, "client_new_task", "tasks", "nobody.does", [1], None, {"key": "k"})["result"] == task
        assert call(there, "client_disconnect", "tasks")["result"] is True
        thief = two.raw("frontend", other)
        assert call(thief, "client_connect", "tasks")["result"] == "tasks"
        for method in ("client_task_status", "client_task_result", "client_task_cancel"):
            assert call(thief, method, "tasks", task)["error"]["code"] == -32020, method
        assert call(thief, "client_new_task", "tasks", "nobody.does", [1], None, {"key": "k"})["result"] != task


def test_a_standby_serves_programs_that_only_the_active_broker_enrolled(tmp_path: Path) -> None:
    with network(tmp_path, "a", "s", s={"standby_for": "a"}) as (active, standby):
        caller, working = enrolled(active, "frontend", "caller"), enrolled(active, "backend", "working")
        with worker_at(active, working) as worker, client_of(active, caller, retry=True) as client:
            assert worker.wait_until_up(PATIENCE_SECONDS)
            assert client.call("double", 1, timeout=PATIENCE_SECONDS) == 2
            until(lambda: bool(client.ping() and client._core.session.connection.addresses.has_others))
            for place in ("frontend/caller", "backend/working"):
                until(partial(is_told, standby, "a", place))
            active.broker.kill9()
            standby.broker.restart()  # what it was told it knows, although nobody repeats it
            assert client.call("double", 21, timeout=PATIENCE_SECONDS) == 42
            assert client.call("scale0.ping", timeout=PATIENCE_SECONDS)["broker"] == "s"


def test_a_third_broker_learns_of_the_first_and_a_key_taken_away_is_gone_at_all(tmp_path: Path) -> None:
    with network(tmp_path, "one", "two", "three") as locks:
        one, two, three = locks
        caller = enrolled(three, "frontend", "caller")
        for lock in locks:
            lock.admitted("frontend", pair_in(caller))
        until(lambda: is_told(one, "three", "frontend/caller"))
        check_where(one, "caller", "three")
        check_revocation(three, locks, caller)
        check_a_broker_that_was_away(one, two, three)
        check_a_revoked_broker(one, two, three)


def check_where(lock: Lock, name: str, broker: str) -> None:
    """As the command shows it, from files alone."""
    from click.testing import CliRunner

    from scale0.cli.keys.keys import keys

    words = ["list", "--json", "--data-dir", str(lock.folder.parent)]
    rows = json.loads(CliRunner().invoke(keys, words, catch_exceptions=False).stdout)
    assert [row["stored_at"] for row in rows if row["name"] == name] == [broker]
    refused = CliRunner().invoke(keys, ["revoke", "frontend", name, "--data-dir", str(lock.folder.parent)])
    assert f"stored at the broker {broker}" in refused.output
    taken = CliRunner().invoke(keys, ["new", "frontend", name, "--data-dir", str(lock.folder.parent)])
    assert f"in the files of {broker}" in taken.output
    with pytest.raises(JoinError, match=f"in the files of {broker}"):
        enrolled(lock, "frontend", name)


def check_revocation(owner: Lock, locks: list[Lock], file: Path) -> None:
    """Connections and subscriptions that were there, at every broker."""
    pair = pair_in(file)
    raws = [lock.raw("frontend", pair) for lock in locks]
    subs = [lock.subscriber(socket, pair) for lock in locks for socket in PUBLISHERS]
    for raw in raws:
        assert raw.check("caller").command == "CONFIG"
    KeyFolder(owner.folder.parent).revoke("frontend", "caller")
    end = time.monotonic() + GONE_SECONDS
    for lock, raw in zip(locks, raws, strict=True):
        until_silent(raw, end)
        gets_nowhere(lock, file)
    for sub in subs:
        drain(sub)
        assert not sub.poll(100)


def until_silent(raw: Raw, end: float) -> None:
    """It is told so once, and nothing after that."""
    told = []
    while True:
        raw.say("REQUEST", {"service": "scale0.ping", "id": 1})
        heard = raw.hear_or_none(0.4)
        if heard is None:
            break
        told.append((heard.command, heard.code))
        assert time.monotonic() < end + 1, "it is still answered"
    assert ("DISCONNECTERROR", 403) in told


def gets_nowhere(lock: Lock, file: Path) -> None:
    """A key that another broker told of, and that is gone there: at every socket of this one."""
    pair = pair_in(file)
    raws = [lock.raw(socket, pair) for socket in ("frontend", "backend", "peer")]
    subs = [lock.subscriber(socket, pair) for socket in PUBLISHERS]
    for raw in raws:
        raw.say("HELLO", {"identity": "caller", "time": time.time()})
        raw.say("CHECKCONFIG", {"identity": "caller", "config_type": "json"})
        raw.say("REQUEST", {"service": "scale0.ping", "id": 1})
        raw.say("MANAGEMENTREQ", {"command": "status", "id": "m"})
        raw.frames(b'{"jsonrpc":"2.0","id":1,"method":"zerotask.broker.client_connect","params":[]}')
    assert not zmq.select([*(raw.socket for raw in raws), *subs], [], [], 0.6)[0]
    for raw in raws:
        raw.close()


def drain(socket: zmq.Socket[bytes]) -> None:
    while socket.poll(0):
        socket.recv_multipart()


def check_a_broker_that_was_away(one: Lock, two: Lock, three: Lock) -> None:
    """Two has a key on disk that is gone by now; who stored it is dead, and the third one knows better."""
    caller = enrolled(three, "frontend", "second")
    for lock in (one, two):
        lock.admitted("frontend", pair_in(caller))
        until(partial(is_told, lock, "three", "frontend/second"))  # a broker accepts a key before it has stored it
    two.broker.kill9()
    KeyFolder(three.folder.parent).revoke("frontend", "second")
    until(lambda: not is_told(one, "three", "frontend/second"))
    three.broker.kill9()
    assert is_told(two, "three", "frontend/second")
    two.broker.restart()
    until(lambda: not is_told(two, "three", "frontend/second"))
    gets_nowhere(two, caller)
    three.broker.restart()


def is_told(lock: Lock, teller: str, place: str) -> bool:
    """True if this broker has on disk that another one told of a key."""
    file = lock.folder / "told" / f"{teller}.json"
    return file.exists() and place in json.loads(file.read_text())["rows"]


def check_a_revoked_broker(one: Lock, two: Lock, three: Lock) -> None:
    """The second let the third one in; when it does so no more, all that the third one told is gone."""
    caller = enrolled(three, "frontend", "third")
    one.admitted("frontend", pair_in(caller))
    KeyFolder(two.folder.parent).revoke("peer", "three")
    until(lambda: not (one.folder / "told" / "three.json").exists())
    gets_nowhere(one, caller)
    gets_nowhere(two, caller)


def test_a_broker_that_shares_no_keys_tells_none_and_believes_none(tmp_path: Path) -> None:
    with network(tmp_path, "one", "two", two={"share_keys": False}) as (one, two):
        at_one, at_two = enrolled(one, "frontend", "first"), enrolled(two, "frontend", "second")
        one.admitted("frontend", pair_in(at_one))
        time.sleep(1.0)  # two rounds: that nothing comes is not a condition that can be awaited
        gets_nowhere(one, at_two)
        gets_nowhere(two, at_one)


def key_of(lock: Lock, role: str) -> str:
    return str(lock.folder / "local" / f"{role}.key_secret")


def peers_of(lock: Lock) -> dict[str, str]:
    with client_of(lock) as client:
        return {row["broker"]: row["state"] for row in client.brokers()}


def test_two_brokers_know_each_other_by_their_keys(tmp_path: Path) -> None:
    common = {"group": "east", "default_heartbeat_interval": 1}
    with locked(tmp_path / "one", identity="east-1", config_service=True, **common) as one:
        token = new_join_token(KeyFolder(one.folder.parent), "peer", "east-2", 60.0)
        data_dir = tmp_path / "two" / "data"
        assert join_peer(one.broker.endpoints["peer"], token, "east-2", KeyFolder(data_dir))
        with locked(
            tmp_path / "two",
            identity="east-2",
            state="joining",
            peers=[one.broker.endpoints["peer"]],
            config_sub_ports=[one.broker.endpoints["config_pub"]],
            **common,
        ) as two:
            until(lambda: peers_of(one).get("east-2") == "active" and peers_of(two).get("east-1") == "active")
            check_calls_across(one, two)
            check_configuration_spreads(one, two)
            check_a_client_goes_to_the_other(one, two)
            check_a_revoked_peer_is_gone(two)


def check_calls_across(one: Lock, two: Lock) -> None:
    worker = scale0.Worker(two.broker.endpoints["backend"], key=key_of(two, "backend"))
    worker.add("there", lambda: "done")
    with worker, client_of(one) as client:
        assert worker.wait_until_up(PATIENCE_SECONDS)
        until(lambda: any(row["service"] == "there" for row in client.services()))
        assert client.call("there", timeout=PATIENCE_SECONDS) == "done"


def check_configuration_spreads(one: Lock, two: Lock) -> None:
    """By PUB and SUB: the second broker hears of a change without asking."""
    auth: dict[str, Any] = {"auth_token": (one.folder.parent / "token").read_text()}
    with client_of(one) as client:
        found = client.manage("get_config", **auth)
        brokers = [b for group in found["config"]["group_config"] for b in group["brokers"]]
        keys = {b["identity"]: b["endpoints"]["server_key"] for b in brokers}
        assert keys["east-1"] == one.server_key.decode()
        version = client.manage("patch_config", set={"heartbeat_liveness": 4}, remove=[], **auth)["version"]
    other: dict[str, Any] = {"auth_token": (two.folder.parent / "token").read_text()}
    with client_of(two) as client:
        until(lambda: client.manage("get_config", **other)["version"] >= version)


def check_a_client_goes_to_the_other(one: Lock, two: Lock) -> None:
    """A client that both know, by one key: the other broker's own key it learns from the first."""
    pair = one.new("frontend", "alice")
    two.store("frontend", "alice", pair)
    two.admitted("frontend", pair)
    file = one.folder / "local" / "alice.key_secret"
    file.touch(mode=0o600)
    file.write_text(f'curve\n    public-key = "{pair.public.decode()}"\n    secret-key = "{pair.secret.decode()}"\n')
    place = one.broker.endpoints["frontend"]
    with scale0.Client(place, key=file, server_key=one.server_key.decode(), retry=True) as client:
        until(lambda: client.ping()["broker"] == "east-1" and client.identity is not None)
        one.broker.kill9()
        until(lambda: client.call("scale0.ping", timeout=PATIENCE_SECONDS)["broker"] == "east-2")
        assert str(client.identity).startswith("alice.")
        one.broker.restart()


def check_a_revoked_peer_is_gone(two: Lock) -> None:
    until(lambda: peers_of(two).get("east-1") == "active")
    (two.folder / "peers" / "east-1.key").unlink()
    until(lambda: peers_of(two).get("east-1") != "active")


def status(site: str, token: str | None) -> int:
    """Of a question that only the broker can answer; 0: there is no server."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    try:
        asked = httpx.get(f"{site}/api/v1/tokens", headers=headers, timeout=PATIENCE_SECONDS, trust_env=False)
        return asked.status_code
    except httpx.ConnectError:
        return 0


def test_a_key_of_zeromq_is_no_way_around_a_token_and_a_server_without_its_key_gets_nowhere(tmp_path: Path) -> None:
    site = f"http://127.0.0.1:{(port := free_port())}"
    with locked(tmp_path, management={"enabled": True, "port": port}, default_heartbeat_interval=1) as lock:
        token = (lock.folder.parent / "token").read_text()
        until(lambda: status(site, None) != 0)
        for nobody in (None, "x", "s0_" + "0" * 64, key_text(lock)):
            assert status(site, nobody) == 401
        assert status(site, token) == 200
        KeyFolder(lock.folder.parent).revoke("frontend", "management")
        until(lambda: status(site, token) in (502, 503, 504))


def key_text(lock: Lock) -> str:
    """What a thief of the server's own key could show."""
    return (lock.folder / "local" / "management.key_secret").read_text().split('secret-key = "')[1][:40]
