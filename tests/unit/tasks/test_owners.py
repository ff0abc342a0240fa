"""With CURVE a task belongs to the public key that submitted it, and a lease to the public key that got it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import LookUpSubmission
from scale0.storage.task_rows import PutTask, PutTaskClient
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore
from tests.unit.tasks import harness
from tests.unit.tasks.harness import CLIENT, Refused

BAD_TASK = -32020
OTHER = "frontend-other"
LATER = "frontend-c-later"
"""A connection of the next key that is stored as `c`."""
ROLES = {"c": "frontend", "other": "frontend", "admin": "frontend", "w": "backend", "v": "backend"}


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


def keys_of(**replaced: str) -> KeyTable:
    """All keys; `replaced`: by name, the beginning of another public key."""
    return KeyTable(
        Key(f"{replaced.get(name, 'first')}{name}".ljust(40, "."), role, name) for name, role in ROLES.items()
    )


def keyed_broker(**config: Any) -> harness.TaskBroker:
    return harness.TaskBroker(keys=Keys(user_of, keys_of()), curve=True, **config)


def shared_store(identity: str = "broker-1", database: FakeDatabase | None = None) -> FakePostgresStore:
    return FakePostgresStore(database or FakeDatabase(lambda: 100_000_000), identity)


@pytest.fixture(params=["own", "shared"])
def keyed(request: pytest.FixtureRequest) -> harness.TaskBroker:
    """A broker with CURVE, on a store of its own, or on one that a group shares."""
    return keyed_broker(store=shared_store() if request.param == "shared" else None)


def replace_key(broker: harness.TaskBroker, name: str) -> None:
    """The key of this name is revoked, and another one stored under it, as `broker.edge.curve` reports it."""
    assert broker.keys is not None
    broker.keys.know(keys_of(**{name: "second"}))
    effects = Effects()
    broker.machine.lose_users((f"{ROLES[name]}/{name}",), broker.now, effects)
    broker.host.finish(effects)


def finished(broker: harness.TaskBroker, id_: str, **options: Any) -> str:
    """A task of the client's, and its worker's result."""
    broker.submit(id_, **options)
    worker = broker.worker("w", "m")
    broker.done(worker, id_, result="secret")
    assert broker.result(id_) == "secret"
    return id_


def assert_unknown(broker: harness.TaskBroker, connection: str, id_: str, client: str = CLIENT) -> None:
    """Whatever a client asks about a task that is not its own is answered as if there were none."""
    for method in ("client_task_status", "client_task_result", "client_task_cancel"):
        told = broker.call(method, client, id_, connection=connection)
        assert isinstance(told, Refused), (method, told)
        assert told.code == BAD_TASK, method
    calls: tuple[tuple[Any, ...], ...] = (
        ("client_task_wait", client, [id_], 1.0),
        ("client_new_task", client, "m", [], None, {"after": [id_]}),
    )
    for call in calls:
        told = broker.call(*call, connection=connection)
        assert isinstance(told, Refused), (call, told)
        assert told.code == BAD_TASK, call


# Promise: OWN-1
@pytest.mark.parametrize("restart", [False, True])
def test_the_next_key_of_a_name_cannot_read_or_cancel_tasks_of_the_previous_one(keyed, restart):
    finished(keyed, "done")
    keyed.submit("open", "other-method")
    replace_key(keyed, "c")
    if restart:
        keyed.restart()
    assert keyed.call("client_connect", CLIENT, connection=LATER) == CLIENT
    for id_ in ("done", "open"):
        assert_unknown(keyed, LATER, id_)
    assert "open" in keyed.open


# Promise: OWN-1
def test_a_client_id_that_was_given_up_gives_access_to_nothing(keyed):
    assert keyed.call("client_connect", "anybody") == "anybody"
    done = keyed.call("client_new_task", "anybody", "m", [])
    assert keyed.call("client_disconnect", "anybody")
    assert keyed.call("client_connect", "anybody", connection=OTHER) == "anybody"
    assert keyed.call("client_task_status", "anybody", done, connection=OTHER).code == BAD_TASK


# Promise: OWN-5
@pytest.mark.parametrize("restart", [False, True])
def test_a_client_id_beneath_the_name_of_a_key_belongs_to_that_key(keyed, restart):
    if restart:
        keyed.restart()
    for id_ in ("c", "c.jobs"):
        refused = keyed.call("client_connect", id_, connection=OTHER)
        assert (refused.code, "belong to the key c" in refused.message) == (-32010, True)
        assert keyed.call("client_connect", id_) == id_
    for id_ in ("cc", "other.c", "nobody.c"):
        assert keyed.call("client_connect", id_, connection=OTHER) == id_


# Promise: OWN-5
def test_a_client_id_that_another_key_used_before_passes_to_the_key_of_its_name(keyed):
    effects = Effects()
    effects.write(PutTaskClient("c.before", "frontend/other", 1))
    keyed.host.finish(effects)
    assert keyed.call("client_new_task", "c.before", "m", [], connection=OTHER).code == -32010
    assert keyed.call("client_connect", "c.before") == "c.before"
    assert keyed.store.snapshot().tasks.clients["c.before"].owner == "frontend/c"


# Promise: OWN-1
@pytest.mark.parametrize("restart", [False, True])
def test_the_key_that_submitted_a_task_reads_it_over_restarts(keyed, restart):
    finished(keyed, "done", key="k")
    if restart:
        keyed.restart()
    assert keyed.call("client_connect", CLIENT) == CLIENT
    assert keyed.result("done") == "secret"
    assert keyed.submit(None, key="k") == "done"
    assert keyed.submit("next", after=["done"]) == "next"


# Promise: OWN-2
@pytest.mark.parametrize("restart", [False, True])
def test_idempotency_keys_of_one_key_are_not_those_of_the_next(keyed, restart):
    assert keyed.submit("first", key="k") == "first"
    replace_key(keyed, "c")
    if restart:
        keyed.restart()
    assert keyed.call("client_connect", CLIENT, connection=LATER) == CLIENT
    second = keyed.call("client_new_task", CLIENT, "m", [2], None, {"key": "k"}, connection=LATER)
    assert isinstance(second, str), second
    assert second != "first"
    again = keyed.call("client_new_task", CLIENT, "m", [2], None, {"key": "k"}, connection=LATER)
    assert again == second
    assert keyed.open == {"first", second}


# Promise: OWN-1
def test_an_operator_sees_and_cancels_the_tasks_of_all_keys(keyed):
    finished(keyed, "done")
    keyed.submit("open", "other-method")
    replace_key(keyed, "c")
    listed = keyed.manage("list_tasks").body["items"]
    assert {row["task_id"] for row in listed} == {"done", "open"}
    assert keyed.manage("show_task", task_id="done").body["owner"] == "firstc".ljust(40, ".")
    assert keyed.manage("cancel_task", task_id="open").body["cancelled"]


# Promise: OWN-1
def test_a_task_of_an_older_database_belongs_to_its_client_id(keyed):
    old = PutTask(900, "old", CLIENT, "m", b"[1]", 4, 500, 0, 0, "", 1, 2**60, 0, 0, False, False, "k", b"", b"", b"")
    keyed.store.read(LookUpSubmission(CLIENT, ("old",), "k", None, "old"))
    keyed.store.commit([old])
    assert keyed.status("old") == "scheduled"
    assert keyed.submit(None, key="k") == "old"
    replace_key(keyed, "c")
    assert keyed.call("client_task_status", CLIENT, "old", connection=LATER)["status"] == "scheduled"


# Promise: OWN-3
@pytest.mark.parametrize("protocol", ["native", "jsonrpc"])
def test_a_lease_of_one_key_is_not_resumed_by_the_next(keyed, protocol):
    keyed.submit("t")
    if protocol == "native":
        assert keyed.handed(keyed.worker("w", "m", slots=1)) == ["t"]
    else:
        assert keyed.pull(keyed.node("w", "m")) == ["t"]
    assert keyed.keys is not None
    keyed.keys.know(keys_of(w="second"))  # while the keyed is stopped
    keyed.restart()
    assert keyed.call("client_connect", CLIENT) == CLIENT
    if protocol == "native":
        later = keyed.worker("w", "other", slots=1, holds=[["t", 1]], connection="backend-w-later")
        keyed.done(later, "t", result="forged")
        assert [code for _, _, code in keyed.acknowledged(later)] == [409]
    else:
        later = keyed.node("w", "other", connection="backend-w-later")
        told = keyed.call("node_task_finished", "w", "t", "forged", connection=later)
        assert isinstance(told, Refused), told
    keyed.run(30.0)
    assert keyed.status("t") == "queued"


# Promise: OWN-3
@pytest.mark.parametrize("protocol", ["native", "jsonrpc"])
def test_a_lease_is_resumed_by_its_own_key(keyed, protocol):
    keyed.submit("t")
    if protocol == "native":
        assert keyed.handed(keyed.worker("w", "m", slots=1)) == ["t"]
        keyed.restart()
        again = keyed.worker("w", "m", slots=1, holds=[["t", 1]], connection="backend-w-2")
        keyed.run(1.0)
        keyed.done(again, "t", result=1)
        assert keyed.acknowledged(again) == [["t", 1, 200]]
    else:
        assert keyed.pull(keyed.node("w", "m")) == ["t"]
        keyed.restart()
        again = keyed.node("w", "m", connection="backend-w-2")
        keyed.run(1.0)
        assert keyed.call("node_task_finished", "w", "t", 1, connection=again) is True
    assert keyed.call("client_connect", CLIENT) == CLIENT
    assert keyed.result("t") == 1


# Promise: OWN-3
def test_a_result_is_not_confirmed_to_another_key(keyed):
    """A result that is sent again is acknowledged if it is the stored one: that would tell another key of it."""
    finished(keyed, "t")
    replace_key(keyed, "w")
    later = keyed.worker("w", "other", connection="backend-w-later")
    keyed.done(later, "t", result="secret")
    assert [code for _, _, code in keyed.acknowledged(later)] == [409]


# Promise: OWN-1, OWN-2, OWN-3
def test_owners_hold_in_a_group():
    """Another broker of the group reads who owns a task from the store."""
    database = FakeDatabase(lambda: 100_000_000)
    one, two = (
        keyed_broker(rng=random.Random(n), store=shared_store(f"b{n}", database), identity=f"b{n}", group="g")
        for n in (1, 2)
    )
    one.submit("t", key="k")
    worker = one.worker("w", "m")
    one.done(worker, "t", result="secret")
    one.submit("open", "other-method")
    assert two.call("client_connect", CLIENT) == CLIENT
    assert two.result("t") == "secret"
    assert two.submit(None, key="k") == "t"
    replace_key(two, "c")
    assert two.call("client_connect", CLIENT, connection=LATER) == CLIENT
    assert_unknown(two, LATER, "t")
    assert_unknown(two, LATER, "open")
    assert two.call("client_new_task", CLIENT, "m", [2], None, {"key": "k"}, connection=LATER) != "t"


# Promise: OWN-1
def test_without_curve_tasks_belong_to_client_ids():
    broker = harness.TaskBroker()
    finished(broker, "done", key="k")
    assert broker.call("client_task_result", CLIENT, "done", connection=OTHER) == "secret"
    told = broker.call("client_new_task", CLIENT, "m", [], None, {"key": "k"}, connection=OTHER)
    assert told == "done"


# Promise: OWN-3
def test_a_key_that_takes_an_identity_over_gets_none_of_its_work(keyed):
    """An identity goes to the longest stored name: a key that is stored as `w.x` takes `w.x` over from the key `w`."""
    keyed.submit("t")
    worker = keyed.worker("w.x", "m", slots=1, connection="backend-w")
    assert keyed.handed(worker) == ["t"]
    keyed.keys.know(KeyTable([*keys_of().keys, Key("longer".ljust(40, "."), "backend", "w.x")]))
    keyed.send("backend-w.x", "CHECKCONFIG", {"identity": "w.x"})
    keyed.done("backend-w.x", "t", result="forged")
    assert [code for _, _, code in keyed.acknowledged("backend-w.x")] == [409]
    assert keyed.status("t") == "queued"


# ---- what is published


class Ears:
    """Who may hear what is published, in place of sockets."""

    def __init__(self, broker: harness.TaskBroker, *names: str) -> None:
        table = keys_of()
        self._public = {name: key.public for key in table.keys for name in names if key.name == name}
        self.heard: dict[str, list[bytes]] = {name: [] for name in names}
        broker.host.publish = self.publish  # type: ignore[method-assign]
        effects = Effects()
        broker.machine.receive_subscription([b"\x01"], broker.now, effects)
        broker.host.finish(effects)

    def publish(self, socket: str, frames: list[bytes], readers: Any) -> None:
        for name, public in self._public.items():
            if frames[0] != b"version" and (readers is None or readers(public)):
                self.heard[name].append(frames[0])


# Promise: OWN-4
def test_a_key_is_told_of_its_own_tasks_only(keyed):
    ears = Ears(keyed, "c", "other", "w")
    finished(keyed, "done")
    keyed.submit("open", "other-method")
    keyed.run(2.0)
    assert set(ears.heard["c"]) == {b"task.m", b"task.other-method", b"result.c"}
    assert ears.heard["other"] == []
    assert set(ears.heard["w"]) == {b"task.m", b"task.other-method"}, "a worker is told what it may take"
