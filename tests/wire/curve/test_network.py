"""A network of brokers with keys: who enrolled at one is known at its peers, and is gone everywhere at once.

Promise: CURVE-15, CURVE-16, CURVE-17
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest
import zmq

import scale0
from scale0.broker.edge.key_folder import KeyFolder
from scale0.transport.edge.joining import JoinError
from tests.fakes.postgres import as_url, postgres_database, postgres_server, postgres_url
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.wire.curve.hands import PUBLISHERS, Lock
from tests.wire.curve.joined import client_of, enrolled, network, pair_in
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
    subs = [lock.subscriber(door, pair) for lock in locks for door in PUBLISHERS]
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
    raws = [lock.raw(door, pair) for door in ("frontend", "backend", "peer")]
    subs = [lock.subscriber(door, pair) for door in PUBLISHERS]
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
    until(lambda: is_told(two, "three", "frontend/second"))
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
