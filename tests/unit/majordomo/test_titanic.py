"""RFC 9: what is asked of the three services, and what becomes of a request that is kept."""

# Promise: MDP-6
from __future__ import annotations

import json

import pytest

from scale0.compat.titanic.services import pack_frames, read_frames
from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_queries import ListTasks, TaskPage
from tests.wire.majordomo.harbour import Harbour
from tests.wire.majordomo.town import (
    C01,
    C02,
    CLIENT_FINAL_02,
    CLIENT_REQUEST_02,
    DISCONNECT_02,
    EMPTY,
    PARTIAL_02,
    W02,
)
from tests.wire.majordomo.worker import INTERVAL

REQUEST, REPLY, CLOSE = b"titanic.request", b"titanic.reply", b"titanic.close"
NOBODYS = b"0123456789abcdef" * 2
SILENCE = 3.2 * INTERVAL


@pytest.fixture
def harbour() -> Harbour:
    return Harbour()


def test_a_request_is_kept_done_and_fetched_as_often_as_wanted(harbour):
    uuid = harbour.stores(b"echo", b"hello", b"\x00\xff", b"")
    assert len(uuid) == 32
    assert set(uuid) <= set(b"0123456789abcdef")
    assert harbour.asks(REPLY, uuid) == [b"300"]
    harbour.worker("w1")
    ((address, frames),) = harbour.work_of("w1")
    assert frames == [b"hello", b"\x00\xff", b""]
    assert harbour.asks(REPLY, uuid) == [b"300"]
    harbour.answers("w1", address, b"done", b"\xfe")
    for _ in range(2):
        assert harbour.asks(REPLY, uuid) == [b"200", b"done", b"\xfe"]
    assert harbour.asks(REPLY, uuid.upper(), who="other") == [b"200", b"done", b"\xfe"]


def test_a_worker_that_is_there_gets_it_at_once(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    ((address, _),) = harbour.work_of("w1")
    harbour.answers("w1", address, b"done")
    assert harbour.asks(REPLY, uuid) == [b"200", b"done"]


def test_a_client_of_01_is_answered_in_its_own_form(harbour):
    harbour.worker("w1")
    harbour.says("client", EMPTY, C01, REQUEST, b"echo", b"hello")
    ((empty, header, service, status, uuid),) = harbour.hears("client")
    assert (empty, header, service, status) == (EMPTY, C01, REQUEST, b"200")
    ((address, _),) = harbour.work_of("w1")
    harbour.answers("w1", address, b"done")
    harbour.says("client", EMPTY, C01, REPLY, uuid)
    assert harbour.hears("client") == [[EMPTY, C01, REPLY, b"200", b"done"]]
    harbour.says("client", EMPTY, C01, CLOSE, uuid)
    assert harbour.hears("client") == [[EMPTY, C01, CLOSE, b"200"]]


def test_the_parts_of_an_answer_are_kept_with_the_last(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    ((address, _),) = harbour.work_of("w1")
    harbour.says("w1", W02, PARTIAL_02, address, EMPTY, b"a")
    assert harbour.asks(REPLY, uuid) == [b"300"]
    harbour.answers("w1", address, b"b", b"c")
    assert harbour.asks(REPLY, uuid) == [b"200", b"a", b"b", b"c"]


def test_a_backend_of_our_own_does_it_too(harbour):
    uuid = harbour.stores(b"own", b"hello")
    harbour.scale0_backend("wown", "other")
    harbour.scale0("wown", "READY", {"services": ["own"], "config_version": 1})
    ((_, _, options, body),) = [frames for frames in harbour.hears("wown") if frames[1] == b"REQUEST"]
    assert body == b"hello"
    harbour.says("wown", b"SCALE0/1", b"REPLY", options, b"done")
    assert harbour.asks(REPLY, uuid) == [b"200", b"done"]


def test_an_error_of_its_own_backend_is_final(harbour):
    harbour.scale0_backend("wown", "own")
    uuid = harbour.stores(b"own", b"hello")
    ((_, _, options, _),) = harbour.hears("wown")
    harbour.scale0("wown", "ERROR", {"id": json.loads(options)["id"], "code": 500, "message": "it raised"})
    assert harbour.asks(REPLY, uuid) == [b"500"]
    assert harbour.asks(CLOSE, uuid) == [b"200"]
    assert harbour.asks(REPLY, uuid) == [b"400"]


def test_an_unknown_uuid_is_400_and_closing_it_is_fine(harbour):
    assert harbour.asks(REPLY, NOBODYS) == [b"400"]
    assert harbour.asks(CLOSE, NOBODYS) == [b"200"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_closing_forgets_the_answer_and_may_be_said_again(store, tmp_path):
    harbour = Harbour(SqliteStore(tmp_path) if store == "sqlite" else None)
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    ((address, _),) = harbour.work_of("w1")
    harbour.answers("w1", address, b"a secret")
    before = harbour.broker.tasks.queue.open
    harbour.together("client", *[[C02, CLIENT_REQUEST_02, CLOSE, uuid]] * 2)
    assert harbour.hears("client") == [[C02, CLIENT_FINAL_02, CLOSE, b"200"]] * 2
    for _ in range(2):
        assert harbour.asks(REPLY, uuid) == [b"400"]
        assert harbour.asks(CLOSE, uuid) == [b"200"]
    assert harbour.broker.tasks.queue.open == before == 0
    harbour.passes(120.0)
    assert harbour.asks(REPLY, uuid) == [b"400"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_what_is_closed_before_it_was_begun_is_never_done(store, tmp_path):
    harbour = Harbour(SqliteStore(tmp_path) if store == "sqlite" else None)
    uuid, other = harbour.stores(b"echo", b"never"), harbour.stores(b"echo", b"hello")
    assert harbour.asks(CLOSE, uuid) == [b"200"]
    harbour.worker("w1")
    assert [frames for _, frames in harbour.work_of("w1")] == [[b"hello"]]
    assert [harbour.asks(REPLY, each) for each in (uuid, other)] == [[b"400"], [b"300"]]
    harbour.passes(120.0)  # until the next sweep
    page = harbour.store.read(ListTasks(limit=10))
    assert isinstance(page, TaskPage)
    assert len(page.tasks) == 1


def test_what_is_closed_while_it_is_done_is_forgotten(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    ((address, _),) = harbour.work_of("w1")
    assert harbour.asks(CLOSE, uuid) == [b"200"]
    assert harbour.under_way() == 0
    harbour.answers("w1", address, b"too late")
    assert harbour.asks(REPLY, uuid) == [b"400"]
    next_one = harbour.stores(b"echo", b"more")
    ((address, _),) = harbour.work_of("w1")
    harbour.answers("w1", address, b"done")
    assert harbour.asks(REPLY, next_one) == [b"200", b"done"]


@pytest.mark.parametrize(
    ("service", "frames"),
    [
        (REQUEST, [b"echo"]),
        (REQUEST, [b"", b"hello"]),
        (REQUEST, [b"\xff", b"hello"]),
        (REQUEST, [b"x" * 256, b"hello"]),
        (REQUEST, [b"mmi.service", b"echo"]),
        (REQUEST, [b"titanic.request", b"echo"]),
        (REQUEST, [b"scale0.ping", b"echo"]),
        (REPLY, [b""]),
        (REPLY, [NOBODYS, b"more"]),
        (REPLY, [NOBODYS + b"\n"]),
        (REPLY, ["٣".encode() * 16]),
        (CLOSE, [b"nonsense"]),
    ],
)
def test_what_makes_no_sense_is_400_and_counts_as_bad_input(harbour, service, frames):
    assert harbour.asks(service, *frames) == [b"400"]
    assert harbour.connection("client").account.bad.used == 1
    assert harbour.broker.tasks.queue.open == 0


def test_nothing_is_taken_that_cannot_be_kept(harbour):
    harbour.broker.state.full = True
    assert harbour.asks(REQUEST, b"echo", b"hello") == [b"500"]
    assert harbour.asks(CLOSE, NOBODYS) == [b"500"]
    harbour.broker.state.full = False
    harbour.broker.state.draining = True
    assert harbour.asks(REQUEST, b"echo", b"hello") == [b"500"]
    full = Harbour(task_queue_limit=1)
    full.stores(b"echo", b"hello")
    assert full.asks(REQUEST, b"echo", b"hello") == [b"500"]


def test_the_three_services_are_there_and_nobody_can_offer_them(harbour):
    for service in (REQUEST, REPLY, CLOSE):
        assert harbour.asks(b"mmi.service", service) == [b"200"]
    assert harbour.asks(b"mmi.service", b"titanic.other") == [b"404"]
    harbour.worker("w1", REPLY)
    assert harbour.hears("w1") == [[W02, DISCONNECT_02]]
    harbour.worker("w2", b"titanic.run:echo")
    assert harbour.hears("w2") == [[W02, DISCONNECT_02]]
    harbour.says("client", C02, CLIENT_REQUEST_02, b"titanic.other", b"hello")
    assert harbour.hears("client") == []


def test_the_uuid_is_not_in_the_store_or_in_an_event(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello").decode()
    ((address, _),) = harbour.work_of("w1")
    harbour.answers("w1", address, b"done")
    assert {"task.submitted", "task.completed"} <= {event.kind for event in harbour.events}
    assert not [event for event in harbour.events if uuid in str(event)]
    assert uuid not in str(harbour.store.snapshot())


def test_frames_survive_as_json_and_nothing_else_is_taken_for_them():
    for frames in ([], [b""], [bytes(range(256)), b"x"]):
        packed = pack_frames(frames)
        assert json.loads(packed).keys() == {"titanic"}
        assert read_frames(packed) == frames
    for data in (b"", b"null", b"[]", b'{"titanic": null}', b'{"titanic": [1]}', b'{"titanic": ["*"]}', b"[" * 10_000):
        assert read_frames(data) is None


def test_a_worker_that_dies_with_it_is_followed_by_another(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    assert len(harbour.work_of("w1")) == 1
    harbour.passes(SILENCE)
    assert harbour.asks(REPLY, uuid) == [b"300"]
    harbour.worker("w2")
    harbour.passes(2.0)
    ((address, frames),) = harbour.work_of("w2")
    assert frames == [b"hello"]
    harbour.answers("w2", address, b"done")
    assert harbour.asks(REPLY, uuid) == [b"200", b"done"]
