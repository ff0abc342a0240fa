"""Who gets in, and who gets nowhere: raw sockets at every socket of a broker (PROTOCOL 11).

Promise: CURVE-1, CURVE-2, CURVE-3, CURVE-4
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import zmq

from tests.wire.curve.keys import FOLDERS, PUBLISHERS, ROLES, ROUTERS, Lock, Pair, new_pair
from tests.wire.scale0.raw import Raw, unique

pytestmark = pytest.mark.processes

MOMENT_SECONDS = 0.8
"""Longer than a broker takes to answer, and than it takes to look at its keys."""
PUBLISHED_SECONDS = 5.0
"""A beacon is published every second."""
GONE_SECONDS = 6.0
"""How soon a key that was taken away must be worth nothing."""


def speak(raw: Raw, socket_name: str) -> None:
    """What gets an answer from anybody who may speak."""
    raw.say("HELLO" if socket_name == "peer" else "CHECKCONFIG", {"identity": "nobody", "config_type": "json"})


def ping(raw: Raw) -> None:
    raw.say("REQUEST", {"service": "scale0.ping", "id": 1})


def stranger(lock: Lock, who: str, socket_name: str) -> Any:
    """A key that must not work here; None: no key at all."""
    if who == "nobody":
        return None
    if who == "unknown":
        return new_pair()
    if who == "revoked":
        role, name = socket_name if socket_name in ROUTERS else "frontend", unique("for-a-moment")
        pair = lock.new(role, name)
        (lock.folder / FOLDERS[role] / f"{name}.key").unlink()
        lock.refused(role, pair)
        return pair
    role = who.removeprefix("a ")
    return lock.new(role, unique("other"))


STRANGERS = ("unknown", "revoked", "nobody", "a frontend", "a backend", "a peer")


@pytest.mark.parametrize("socket_name", ROUTERS)
def test_a_key_that_is_not_stored_for_a_router_gets_no_answer(lock: Lock, socket_name: str) -> None:
    raws = {
        who: lock.raw(socket_name, stranger(lock, who, socket_name)) for who in STRANGERS if who != f"a {socket_name}"
    }
    for raw in raws.values():
        speak(raw, socket_name)
        if socket_name == "frontend":
            ping(raw)
            raw.frames(b'{"jsonrpc":"2.0","id":1,"method":"zerotask.broker.client_connect","params":[]}')
            raw.frames(b"", b"MDPC01", b"mmi.service", b"x")
        raw.say("MANAGEMENTREQ", {"command": "status", "id": "m"})
    assert answered(raws, MOMENT_SECONDS) == {}


def answered(raws: dict[str, Raw], seconds: float) -> dict[str, list[tuple[str, Any]]]:
    """Whoever hears anything within this time, and what."""
    end = time.monotonic() + seconds
    found: dict[str, list[tuple[str, Any]]] = {}
    names = {raw.socket: name for name, raw in raws.items()}
    while (left := end - time.monotonic()) > 0:
        for socket in zmq.select(list(names), [], [], left)[0]:
            heard = raws[names[socket]].hear()
            found.setdefault(names[socket], []).append((heard.command, heard.code))
    return found


@pytest.mark.parametrize("socket_name", PUBLISHERS)
def test_a_key_that_is_not_stored_hears_nothing_published(lock: Lock, socket_name: str) -> None:
    # All three roles may hear of configuration.
    wrong = [
        who for who in ("unknown", "revoked", "a peer", "nobody") if (socket_name, who) != ("config_pub", "a peer")
    ]
    pairs = {who: stranger(lock, who, socket_name) for who in wrong}
    announced = announce(lock) if socket_name == "task_pub" else None
    sockets = {lock.subscriber(socket_name, pair): who for who, pair in pairs.items()}
    assert [sockets[socket] for socket in zmq.select(list(sockets), [], [], 1.5)[0]] == []
    for socket in sockets:
        socket.close(linger=0)
    if announced is not None:
        announced.close()


def test_every_role_hears_of_configuration(lock: Lock) -> None:
    for role in ROLES:
        socket = lock.subscriber("config_pub", lock.new(role, unique("reader")))
        assert socket.poll(round(PUBLISHED_SECONDS * 1000)), role
        socket.close(linger=0)


def test_a_name_and_a_password_are_no_key(lock: Lock) -> None:
    """The mechanism PLAIN, at every socket."""
    sockets = []
    for socket_name in (*ROUTERS, *PUBLISHERS):
        socket = lock.suited(zmq.DEALER if socket_name in ROUTERS else zmq.SUB, None)
        socket.set(zmq.PLAIN_USERNAME, b"admin")
        socket.set(zmq.PLAIN_PASSWORD, b"admin-secret")
        if socket_name in PUBLISHERS:
            socket.set(zmq.SUBSCRIBE, b"")
        socket.connect(lock.broker.endpoints[socket_name])
        sockets.append(socket)
    for socket in sockets[: len(ROUTERS)]:
        socket.send_multipart([b"SCALE0/1", b"CHECKCONFIG", b'{"config_type": "json"}'])
    assert not zmq.select(sockets, [], [], 1.5)[0]


def announce(lock: Lock, pair: Pair | None = None) -> Raw:
    """Have a task of this key announced again and again, as long as somebody subscribed."""
    raw = lock.raw("frontend", pair or lock.new("frontend", unique("submitter")))
    name = unique("teller").encode()
    raw.frames(b'{"jsonrpc":"2.0","id":1,"method":"zerotask.broker.client_connect","params":["%b"]}' % name)
    assert raw.receive() is not None
    call = b'{"jsonrpc":"2.0","id":2,"method":"zerotask.broker.client_new_task","params":["%b","nobody.does",[]]}'
    raw.frames(call % name)
    assert b'"result"' in (raw.receive() or [b""])[0]
    return raw


def test_those_with_the_right_key_are_heard_and_hear(lock: Lock) -> None:
    for socket_name in ("frontend", "backend"):
        name = unique("right")
        raw = lock.raw(socket_name, lock.new(socket_name, name))
        assert raw.check(name).command == "CONFIG"
    peer = lock.raw("peer", lock.new("peer", "other-broker"))
    peer.say("HELLO", {"identity": "other-broker", "time": time.time()})
    assert peer.hear().command == "HELLO"
    for role in ("frontend", "backend"):
        listener = lock.new(role, unique("listener"))
        sub = lock.subscriber("task_pub", listener)
        # A frontend hears of its own tasks, a backend of those that it may take.
        teller = announce(lock, listener if role == "frontend" else None)
        assert sub.poll(round(PUBLISHED_SECONDS * 1000))
        teller.close()


def test_a_client_that_expects_another_server_tells_it_nothing(lock: Lock) -> None:
    raw = lock.raw("frontend", lock.new("frontend", unique("careful")), server_key=new_pair().public)
    ping(raw)
    assert raw.silent(MOMENT_SECONDS)


def test_a_key_that_comes_is_let_in_without_a_restart(lock: Lock) -> None:
    pair, name = new_pair(), unique("late")
    raw = lock.raw("frontend", pair)
    ping(raw)
    assert raw.silent(MOMENT_SECONDS)
    raw.close()
    lock.store("frontend", name, pair)
    lock.admitted("frontend", pair)
    assert lock.raw("frontend", pair).request("scale0.ping").command == "REPLY"


def test_a_key_taken_away_is_worth_nothing_on_a_connection_that_was_there(lock: Lock) -> None:
    """At each router, for those who choose their routing id and those who do not."""
    sockets = {
        f"{socket_name} {routing_id!r}": (socket_name, routing_id)
        for socket_name in ROUTERS
        for routing_id in (b"", b"chosen")
    }
    names = {who: unique("leaving") for who in sockets}
    raws, paths = {}, []
    for who, (socket_name, routing_id) in sockets.items():
        pair = new_pair()
        paths.append(lock.store(socket_name, names[who], pair))
        lock.admitted(socket_name, pair)
        raws[who] = lock.raw(socket_name, pair, routing_id and routing_id + socket_name.encode())
        say_something(raws[who], socket_name, names[who])
        assert raws[who].hear().command in ("CONFIG", "HELLO")
    for path in paths:
        path.unlink()

    def say_all() -> dict[str, list[tuple[str, Any]]]:
        for who, raw in raws.items():
            say_something(raw, sockets[who][0], names[who])
        return answered(raws, MOMENT_SECONDS)

    end = time.monotonic() + GONE_SECONDS
    told: dict[str, list[tuple[str, Any]]] = {}
    while heard := say_all():
        assert time.monotonic() < end, f"still answered: {heard}"
        for who, words in heard.items():
            told.setdefault(who, []).extend(words)
    for who, (socket_name, _) in sockets.items():
        assert socket_name == "peer" or ("DISCONNECTERROR", 403) in told[who], who
    assert say_all() == {}


def say_something(raw: Raw, socket_name: str, name: str) -> None:
    if socket_name == "peer":
        raw.say("HELLO", {"identity": name, "time": time.time()})
    else:
        raw.say("CHECKCONFIG", {"identity": name, "config_type": "json"})


@pytest.mark.parametrize("socket_name", PUBLISHERS)
def test_a_key_taken_away_hears_nothing_more_on_a_subscription_that_was_there(lock: Lock, socket_name: str) -> None:
    pair = new_pair()
    path = lock.store("backend", unique("listening"), pair)
    lock.admitted("backend", pair)
    stays = lock.new("backend", unique("staying"))
    sub, other = lock.subscriber(socket_name, pair), lock.subscriber(socket_name, stays)
    teller = announce(lock) if socket_name == "task_pub" else None
    assert sub.poll(round(PUBLISHED_SECONDS * 1000))
    path.unlink()
    end = time.monotonic() + GONE_SECONDS
    while drained(sub, 1.5):
        assert time.monotonic() < end, "it still hears"
    # A SUB socket subscribes again when its own thread looks at it; then it hears of the next task.
    drained(other, MOMENT_SECONDS)
    if teller is not None:
        teller.close()
        teller = announce(lock)
    assert other.poll(round(PUBLISHED_SECONDS * 1000)), "whoever may still hear lost its subscription"
    assert not sub.poll(0)


def drained(socket: zmq.Socket[bytes], seconds: float) -> bool:
    """Read all that came within this time; True if anything did."""
    heard, end = False, time.monotonic() + seconds
    while socket.poll(max(0, round((end - time.monotonic()) * 1000))):
        socket.recv_multipart()
        heard = True
    return heard


def test_a_key_replaced_under_the_same_name_ends_the_old_one(lock: Lock) -> None:
    name, old = unique("renewed"), new_pair()
    lock.store("frontend", name, old)
    lock.admitted("frontend", old)
    raw = lock.raw("frontend", old)
    assert raw.check(name).command == "CONFIG"
    newer = lock.new("frontend", name)
    end = time.monotonic() + GONE_SECONDS
    while raw.hear_or_none(MOMENT_SECONDS) is not None or not raw_silent(raw):
        assert time.monotonic() < end
    assert lock.raw("frontend", newer).check(name).command == "CONFIG"


def raw_silent(raw: Raw) -> bool:
    ping(raw)
    return raw.silent(MOMENT_SECONDS)
