"""Limits of passwords: by key and name, never by a field that the sender writes; a right password passes in a flood.

Promise: MGMT-2
"""

from __future__ import annotations

import tracemalloc
from typing import Any

from scale0.broker.admin.access import MAX_OF_KEY, MAX_VERIFYING, MAX_WAITING, VerifyPassword
from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.config.broker_file import AdminConfig
from scale0.kernel.effects import Effects
from tests.fakes.broker import TOKEN, FakeBroker

ANNA = AdminConfig(auth_id="anna", password_hash="$argon2id$x", role="admin")
NAMES = ("anna", *(f"m{number}" for number in range(100)))


class PasswordBroker(FakeBroker):
    """A test verifies its passwords, in the order in which they are asked."""

    def __init__(self, **config: Any) -> None:
        super().__init__(admins=(ANNA,), max_control_per_second=1_000_000, error_client_limit=1_000_000, **config)
        self.asked: list[VerifyPassword] = []
        others = self.host.ask
        self.host.ask = lambda ask: self.asked.append(ask) if isinstance(ask, VerifyPassword) else others(ask)  # type: ignore[method-assign]

    def log_in(self, who: str, name: str = "anna", origin: str = "") -> None:
        said = {"command": "login", "id": f"{name}/{origin}", "auth_id": name, "auth_password": "x", "origin": origin}
        self.send(who, "MANAGEMENTREQ", said)

    def verify(self, right: bool = False) -> None:
        effects = Effects()
        self.machine.answer(self.asked.pop(0), right, self.now, effects)
        self.host.finish(effects)

    def codes(self, who: str) -> list[int]:
        return [said["code"] for _, said, _ in self.received(who)]


def keyed() -> PasswordBroker:
    """The user of a connection is the first part of its name."""
    keys = KeyTable([Key(name.ljust(40, "."), "frontend", name) for name in NAMES])
    return PasswordBroker(keys=Keys(lambda _, id_: f"frontend/{id_.decode().split('-')[1]}", keys), curve=True)


def test_another_origin_is_not_another_client():
    broker = PasswordBroker()
    for number in range(5):
        broker.log_in("frontend-1", origin=f"10.0.0.{number}")
    assert len(broker.asked) == 1
    assert broker.codes("frontend-1") == [429] * 4


def test_connections_of_one_key_share_its_limit():
    broker = keyed()
    for number in range(50):
        broker.log_in(f"frontend-m1-{number}", name=f"n{number}")
    refused = sum(broker.codes(f"frontend-m1-{number}") == [429] for number in range(50))
    assert refused == 50 - MAX_OF_KEY
    broker.log_in("frontend-anna-1")
    assert broker.codes("frontend-anna-1") == []
    broker.verify()
    assert [ask.request.auth_id for ask in broker.asked][-1] == "anna", "its turn is the next"


def test_a_login_waits_for_its_turn_and_is_not_refused():
    broker = PasswordBroker()
    for number in range(40):
        broker.log_in(f"frontend-m{number}", name="anna")
    broker.log_in("frontend-anna")
    assert len(broker.asked) == MAX_VERIFYING
    for _ in range(40):
        broker.verify()
    broker.verify(right=True)
    assert broker.codes("frontend-anna") == [200]


def test_a_key_whose_password_was_right_passes_while_a_flood_fills_the_queue():
    broker = keyed()
    broker.log_in("frontend-anna-1")
    broker.verify(right=True)
    assert broker.codes("frontend-anna-1") == [200]
    for number in range(100):
        broker.log_in(f"frontend-m{number}-1", name="anna")
    assert len(broker.asked) == MAX_VERIFYING
    assert broker.codes(f"frontend-m{MAX_VERIFYING + MAX_WAITING}-1") == [429], "the queue is full"
    broker.log_in("frontend-anna-1")
    broker.verify()
    assert broker.asked[-1].connection.user_id == "frontend/anna", "it is the next"


def test_delayed_answers_hold_no_place():
    broker = PasswordBroker()
    for number in range(200):
        broker.log_in(f"frontend-{number}", name="anna")
        broker.verify()
    broker.log_in("frontend-anna")
    broker.verify(right=True)
    assert broker.codes("frontend-anna") == [200]
    broker.pass_time(40)
    assert broker.codes("frontend-0") == [401]
    broker.log_in("frontend-0")
    assert len(broker.asked) == 1


# Promise: WIRE-5
def test_a_delayed_answer_keeps_nothing_of_its_request_but_what_it_needs():
    broker = PasswordBroker()
    lists: list[Any] = [[]] * 7_000
    said = {"command": "login", "auth_id": "anna", "auth_password": "x" * 1_000, "config": lists, "args": {"x": lists}}
    before = 0
    tracemalloc.start()
    for number in range(20):
        broker.send(f"frontend-{number}", "MANAGEMENTREQ", {**said, "id": number}, b"x" * 100_000)
        broker.verify()
        before = before or tracemalloc.get_traced_memory()[0]
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 1_000_000
    broker.pass_time(40)
    assert [broker.received(f"frontend-{number}")[0].options["id"] for number in range(20)] == list(range(20))
    events = [event for event in broker.events if event.kind == "management.commanded"]
    assert {(event.identity, event.command, event.code) for event in events} == {("anna", "login", 401)}


def test_keys_that_fill_the_queue_do_not_keep_out_a_first_login_of_another():
    broker = keyed()
    for number in range(2 + (MAX_WAITING + MAX_VERIFYING) // MAX_OF_KEY):
        for attempt in range(MAX_OF_KEY):
            broker.log_in(f"frontend-m{number}-{attempt}", name=f"n{number}-{attempt}")
    broker.log_in("frontend-anna-1")
    assert broker.codes("frontend-anna-1") == []
    for _ in range(MAX_VERIFYING + 2 * (MAX_WAITING // MAX_OF_KEY)):
        broker.verify(right=broker.asked[0].connection.user_id == "frontend/anna")
    assert broker.codes("frontend-anna-1") == [200], "its turn comes before the second ones of others"


def test_connections_that_fill_the_queue_for_one_name_do_not_keep_out_another_name():
    broker = PasswordBroker()
    for number in range(MAX_WAITING + MAX_VERIFYING):
        broker.log_in(f"frontend-{number}", name="root")
    broker.log_in("frontend-anna")
    assert broker.codes("frontend-anna") == []
    last = f"frontend-{MAX_WAITING + MAX_VERIFYING - 1}"
    assert broker.codes(last) == [429], "the last one lost its place"
    for _ in range(MAX_WAITING + MAX_VERIFYING - 1):
        broker.verify()
    broker.verify(right=True)
    assert broker.codes("frontend-anna") == [200]
    broker.log_in(last, name="root")
    assert broker.codes(last) == [], "it may try again"
    assert len(broker.asked) == 1


def test_a_program_of_this_machine_is_answered_at_once():
    broker = PasswordBroker()
    said = {"command": "login", "auth_id": "anna", "auth_password": "x"}
    for id_, token in enumerate((TOKEN, "s0_" + "0" * 64)):
        broker.send(f"frontend-{id_}", "MANAGEMENTREQ", {**said, "id": id_, "local_token": token})
        broker.verify()
    assert broker.codes("frontend-0") == [401]
    assert broker.codes("frontend-1") == [], "another token delays as none does"
    broker.pass_time(1)
    assert broker.codes("frontend-1") == [401]
