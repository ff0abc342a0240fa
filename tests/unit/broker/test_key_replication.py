"""Keys published from broker to broker: whatever is lost, late, said twice or stale, nobody brings a revoked key back.

Promise: CURVE-15, CURVE-16, CURVE-17
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.broker.cluster import key_replication, replicated_keys
from scale0.broker.cluster.key_replication import KeyReplication, places_of
from scale0.broker.cluster.replicated_keys import KeyRow, KeySource, KeyUpdate, admitted_keys, clash, other_use
from scale0.broker.core.keys import Key, KeyTable, table_at
from scale0.broker.core.permissions import KeyRules
from scale0.broker.core.state import BrokerState
from scale0.config import BrokerConfig
from scale0.kernel.clock import Now
from tests.fakes.examples import examples

WALL = 1_900_000_000.0
NOW = Now(100.0, WALL)
BOOT = int(WALL) * 1_000_000 - 10_000_000_000


def public(name: str) -> str:
    """What stands for the key of this name."""
    return (name.replace("-", "") + "x" * 40)[:40]


def key(role: str, name: str, of: str = "") -> Key:
    return Key(public(of or name), role, name)


class KeyStore:
    """One broker: its files, what it was published, and its lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.boot = BOOT
        self.files: set[Key] = set()
        self.disk: bytes = b"{}"
        self.share = self._new()

    def _new(self) -> KeyReplication:
        self.boot += 1_000_000
        share = KeyReplication(
            BrokerState(self.name, BrokerConfig(identity=self.name), self.boot, random.Random(1), "active")
        )
        share.load(msgspec.json.decode(self.disk, type=dict[str, KeySource]))
        return share

    def let(self, *keys: Key) -> None:
        self.files |= set(keys)

    def look(self) -> None:
        """As the watch of files does: what is published counts, and whoever is not believed is forgotten."""
        self.share.set_own_keys(places_of(self.files))
        self.share.keep(self.table().brokers.values())

    def table(self) -> KeyTable:
        return KeyTable(one.key for one in self.stored())

    def stored(self) -> list[replicated_keys.AdmittedKey]:
        return admitted_keys(sorted(self.files), self.share.sources, self.name, public(self.name))

    def lets_in(self, role: str, name: str) -> bool:
        return self.table().find(role, public(name)) is not None

    def save(self) -> None:
        self.disk = msgspec.json.encode(self.share.sources)

    def restart(self) -> None:
        """What was stored is known again."""
        self.share = self._new()
        self.look()

    def hear(self, other: KeyStore, news: list[KeyUpdate]) -> None:
        """As from the wire; nobody is heard whose key is not let in."""
        for one in news:
            if self.table().find("peer", public(other.name)) is not None:
                said = msgspec.json.decode(msgspec.json.encode(one), type=KeyUpdate)
                self.share.take(other.name, public(other.name), said, NOW)
        self.look()


def stores(*names: str) -> list[KeyStore]:
    """Brokers of which each one joined at the first: it has theirs, and they have its key."""
    brokers = [KeyStore(name) for name in names]
    for broker in brokers[1:]:
        brokers[0].let(key("peer", broker.name))
        broker.let(key("peer", brokers[0].name))
    for broker in brokers:
        broker.look()
    return brokers


def greet(one: KeyStore, other: KeyStore) -> None:
    """They said HELLO: each tells the other everything."""
    for source, target in ((one, other), (other, one)):
        target.hear(source, source.share.all())


def meet(*brokers: KeyStore) -> None:
    for _ in range(3):
        for at, one in enumerate(brokers):
            for other in brokers[at + 1 :]:
                greet(one, other)


def gossip(*brokers: KeyStore) -> None:
    """A few rounds of what changed, to all who are there."""
    for _ in range(4):
        for broker in brokers:
            broker.look()
        published = [(broker, broker.share.changes()) for broker in brokers]
        for source, news in published:
            for target in brokers:
                if target is not source:
                    target.hear(source, news)


def test_who_enrolled_at_one_is_let_in_at_all_and_brokers_learn_of_each_other() -> None:
    a, b, c = stores("a", "b", "c")
    b.let(key("backend", "worker"))
    c.let(key("frontend", "client"))
    meet(a, b, c)
    for broker in (a, b, c):
        assert broker.lets_in("backend", "worker")
        assert broker.lets_in("frontend", "client")
        assert {"a", "b", "c"} - {broker.name} == broker.table().names["peer"]


def test_a_key_that_is_taken_away_is_gone_everywhere_and_stays_gone() -> None:
    a, b, c = stores("a", "b", "c")
    b.let(key("backend", "worker"))
    meet(a, b, c)
    b.files.discard(key("backend", "worker"))
    gossip(a, b, c)
    assert not any(broker.lets_in("backend", "worker") for broker in (a, b, c))
    meet(a, b, c)
    assert not any(broker.lets_in("backend", "worker") for broker in (a, b, c))


def test_what_a_dead_broker_told_is_known_after_a_restart() -> None:
    a, b = stores("a", "b")
    b.let(key("backend", "worker"))
    meet(a, b)
    a.save()
    a.restart()
    assert a.lets_in("backend", "worker")


def test_a_broker_that_was_away_brings_nothing_back_even_if_the_one_that_stored_it_is_dead() -> None:
    a, b, c = stores("a", "b", "c")
    b.let(key("backend", "worker"))
    meet(a, b, c)
    c.save()  # and is away from here on
    b.files.discard(key("backend", "worker"))
    gossip(a, b)
    assert not a.lets_in("backend", "worker")
    c.restart()  # b is dead by now
    assert c.lets_in("backend", "worker")  # it cannot know yet
    greet(a, c)
    assert not a.lets_in("backend", "worker")
    assert not c.lets_in("backend", "worker")
    c.save()
    c.restart()
    assert not c.lets_in("backend", "worker")


def test_a_key_removed_while_its_broker_was_down_is_gone_by_the_first_that_it_tells() -> None:
    a, b, c = stores("a", "b", "c")
    b.let(key("frontend", "one"), key("frontend", "two"))
    meet(a, b, c)
    b.files.discard(key("frontend", "one"))
    b.restart()
    greet(a, b)
    assert (a.lets_in("frontend", "one"), a.lets_in("frontend", "two")) == (False, True)
    gossip(a, c)  # c does not hear b itself
    assert (c.lets_in("frontend", "one"), c.lets_in("frontend", "two")) == (False, True)


def test_a_key_that_comes_back_to_its_files_is_let_in_again() -> None:
    a, b, c = stores("a", "b", "c")
    worker = key("backend", "worker")
    for _ in range(3):
        b.let(worker)
        gossip(a, b, c)
        meet(a, b, c)
        assert all(broker.lets_in("backend", "worker") for broker in (a, b, c))
        b.files.discard(worker)
        gossip(a, b, c)
        assert not any(broker.lets_in("backend", "worker") for broker in (a, b, c))


def test_what_a_revoked_broker_told_is_gone_with_it_and_so_is_whom_it_brought() -> None:
    a, b, c = stores("a", "b", "c")
    d = KeyStore("d")  # it joined at c
    d.let(key("peer", "c"), key("backend", "of-d"))
    c.let(key("peer", "d"), key("backend", "of-c"))
    d.look()
    meet(a, b, c, d)
    assert b.lets_in("backend", "of-d")
    a.files.discard(key("peer", "c"))
    gossip(a, b)
    for broker in (a, b):
        for role, name in (("peer", "c"), ("peer", "d"), ("backend", "of-c"), ("backend", "of-d")):
            assert not broker.lets_in(role, name)
        assert set(broker.share.sources) <= {"a", "b"}
    b.hear(c, c.share.all())
    assert not b.lets_in("backend", "of-c")


def test_own_files_win_over_what_is_told_by_name_by_key_and_above() -> None:
    a, b = stores("a", "b")
    a.let(key("frontend", "alice"), key("frontend", "site"))
    b.let(
        key("frontend", "alice", of="mallory"),
        key("frontend", "bob", of="alice"),
        key("frontend", "site.web"),
        key("peer", "a", of="evil"),
        key("peer", "other", of="a"),
    )
    meet(a, b)
    assert {(one.key.role, one.key.name, one.broker) for one in a.stored()} == {
        ("peer", "b", ""),
        ("frontend", "alice", ""),
        ("frontend", "site", ""),
    }
    assert clash("frontend", "carol", public("carol"), a.stored()) is None


def test_a_name_or_key_of_another_brokers_files_cannot_be_enrolled_as_something_else() -> None:
    a, b = stores("a", "b")
    b.let(key("backend", "worker"))
    meet(a, b)
    assert clash("backend", "worker", public("another"), a.stored())
    assert clash("backend", "other", public("worker"), a.stored())
    assert clash("backend", "worker", public("worker"), a.stored()) is None  # the same once more
    assert clash("frontend", "worker", public("another"), a.stored()) is None
    assert other_use([("backend", "worker")], public("worker"), a.stored()) is None  # the same once more
    assert other_use([("backend", "new")], public("new"), a.stored()) is None
    assert other_use([("frontend", "worker")], public("worker"), a.stored())
    assert other_use([("frontend", "b"), ("backend", "b")], public("b"), a.stored()) is None  # from our own files
    assert other_use([("backend", "worker"), ("frontend", "worker")], public("worker"), a.stored()) is None


def test_another_key_under_a_brokers_name_inherits_nothing() -> None:
    a, b = stores("a", "b")
    b.let(key("backend", "worker"))
    meet(a, b)
    a.share.take("b", public("newb"), KeyUpdate(), NOW)
    a.files = {key("peer", "b", of="newb")}
    a.look()
    assert not a.lets_in("backend", "worker")


def test_nobody_lets_in_for_another_and_nobody_takes_from_our_own_files() -> None:
    a, b, c = stores("a", "b", "c")
    b.let(key("backend", "worker"))
    meet(a, b, c)
    ahead = BOOT + 1_000_000_000
    row = KeyRow(role="backend", name="evil", version=ahead, public_key=public("evil"), broker="b")
    a.hear(c, [KeyUpdate(rows=(row,))])
    assert not a.lets_in("backend", "evil")
    b.hear(c, [KeyUpdate(rows=(KeyRow(role="backend", name="worker", version=ahead, gone=True, broker="b"),))])
    a.hear(c, [KeyUpdate(rows=(KeyRow(role="backend", name="worker", version=ahead, gone=True, broker="b"),))])
    assert b.lets_in("backend", "worker")
    assert not a.lets_in("backend", "worker")
    gossip(a, b, c)  # b knows better, and says so
    assert a.lets_in("backend", "worker")
    far = KeyRow(role="backend", name="worker", version=2**62, gone=True, broker="b")
    a.hear(c, [KeyUpdate(rows=(far,))])
    assert a.lets_in("backend", "worker")


def test_a_part_that_got_lost_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_replication, "CHUNK_ROWS", 2)
    a, b = stores("a", "b")
    names = [f"w{number}" for number in range(7)]
    b.let(*(key("backend", name) for name in names))
    meet(a, b)
    _, *rest = b.share.all()
    assert rest
    for one in rest:
        assert all(a.lets_in("backend", name) for name in names)
        a.hear(b, [one])
    assert all(a.lets_in("backend", name) for name in names)
    a.hear(b, b.share.all())
    assert a.share.sources["b"].base > 0


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_keys, "MAX_SHARED", 10)
    monkeypatch.setattr(replicated_keys, "MAX_GONE", 5)
    monkeypatch.setattr(key_replication, "MAX_SOURCES", 1)
    a, b, c = stores("a", "b", "c")
    rows = tuple(KeyRow(role="backend", name=f"w{n}", version=BOOT + n, public_key=public(f"w{n}")) for n in range(50))
    a.hear(b, [KeyUpdate(rows=rows)])
    a.hear(c, [KeyUpdate(rows=rows)])
    assert (len(a.share.sources["b"].rows), list(a.share.sources)) == (10, ["b"])
    gone = tuple(KeyRow(role="backend", name=f"w{n}", version=BOOT + 100 + n, gone=True) for n in range(50))
    a.hear(b, [KeyUpdate(rows=gone)])
    assert (len(a.share.sources["b"].rows), len(a.share.sources["b"].gone)) == (0, 5)


def test_a_row_that_can_be_no_key_is_none() -> None:
    a, b = stores("a", "b")
    for bad in (
        {"role": "admin", "name": "x", "public_key": public("x")},
        {"role": "backend", "name": "../x", "public_key": public("x")},
        {"role": "backend", "name": "x", "public_key": "short"},
        {"role": "backend", "name": "x"},
    ):
        a.hear(b, [KeyUpdate(rows=(msgspec.convert({"version": BOOT + 1, **bad}, KeyRow),))])
    assert not a.share.sources["b"].rows


def test_nothing_is_said_while_nothing_changes() -> None:
    a, b = stores("a", "b")
    b.let(key("backend", "worker"))
    meet(a, b)
    gossip(a, b)
    for broker in (a, b):
        broker.look()
        assert broker.share.changes() == []
        published, _ = broker.share.snapshot()
        assert broker.share.snapshot() == (published, frozenset())
        assert broker.share.snapshot()[0] is published


NAMES = ("w", "x")
acts = st.lists(
    st.tuples(
        st.sampled_from(("let", "revoke", "restart", "save", "greet", "tell", "again")),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=40,
)


@examples(150, deadline=None)
@given(acts)
def test_whatever_happens_in_whatever_order_all_agree_with_the_files_in_the_end(steps: list[Any]) -> None:
    """And on the way: who heard of a revocation by its owner is not talked out of it by anything late or stale."""
    brokers = stores("a", "b", "c")
    meet(*brokers)
    heard: list[tuple[KeyStore, KeyStore, list[KeyUpdate]]] = []
    knows: set[tuple[KeyStore, str]] = set()
    """Who was published that a key is gone, in this life."""
    for act, at, to in steps:
        one, other, name = brokers[at], brokers[to], NAMES[to % 2]
        mine = key("backend", f"{name}-{one.name}")
        match act:
            case "let":
                one.let(mine)
                one.look()
                knows = {(broker, gone) for broker, gone in knows if gone != mine.name}
            case "revoke":
                one.files.discard(mine)
                one.look()
            case "restart":
                one.restart()
                knows = {(broker, gone) for broker, gone in knows if broker is not one}
            case "save":
                one.save()
            case "greet" if one is not other:
                heard += [(one, other, one.share.all()), (other, one, other.share.all())]
                for source, target, news in heard[-2:]:
                    target.hear(source, news)
                    files = {one.name for one in source.files}
                    knows |= {(target, gone) for n in NAMES if (gone := f"{n}-{source.name}") not in files}
            case "tell" if one is not other:
                news = one.share.changes()
                heard.append((one, other, news))
                other.hear(one, news)
            case "again" if heard:  # something late, or twice
                source, target, news = heard[(at * 3 + to) % len(heard)]
                target.hear(source, news)
        assert not any(broker.lets_in("backend", gone) for broker, gone in knows), (act, at, to)
    meet(*brokers)
    gossip(*brokers)
    meet(*brokers)
    stored = {one.name for broker in brokers for one in broker.files if one.role == "backend"}
    assert [broker.table().names["backend"] for broker in brokers] == [stored] * 3


def test_what_comes_late_or_twice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = stores("a", "b")
    meet(a, b)
    published = []
    for files in ({key("backend", "w")}, {key("backend", "w", of="newer")}, set()):
        b.files = {key("peer", "a"), *files}
        b.look()
        published.append((b.share.changes(), b.share.all()))
    (old, old_all), (newer, newer_all), (gone, gone_all) = published
    a.hear(b, newer)
    a.hear(b, old)
    assert a.table().find("backend", public("w")) is None
    assert a.lets_in("backend", "newer")
    a.hear(b, gone)
    for late in (old, newer, old_all, newer_all):
        a.hear(b, late)
        assert not a.table().names["backend"]
    monkeypatch.setattr(replicated_keys, "MAX_GONE", 0)  # even if nobody remembers it by name
    a.hear(b, gone_all)
    a.share.sources["b"].gone.clear()
    for late in (old_all, old, newer, gone_all):
        a.hear(b, late)
        assert not a.table().names["backend"]


# Promise: PERM-3
def test_the_permissions_of_a_key_go_with_it_to_other_brokers():
    east, west = stores("east", "west")
    rules = KeyRules(("call:orders.*",), ("call:orders.delete",))
    east.let(key("frontend", "web")._replace(rules=rules))
    east.look()
    greet(east, west)
    assert [one.rules for one in west.table().keys if one.name == "web"] == [rules]
    east.files = {one for one in east.files if one.name != "web"} | {key("frontend", "web")}
    east.look()
    west.hear(east, east.share.changes())
    assert [one.rules for one in west.table().keys if one.name == "web"] == [KeyRules()]
    forged = KeyUpdate(
        rows=(KeyRow(role="frontend", name="x", version=2**61, public_key=public("x"), allow=("jump:x",)),)
    )
    west.hear(east, [forged])
    assert not west.lets_in("frontend", "x")


# Promise: KEY-3
def test_an_expiry_is_replicated_with_its_key_and_ends_what_follows_from_a_broker():
    one, two = KeyStore("one"), KeyStore("two")
    one.let(key("peer", "two"), key("frontend", "web")._replace(expires=500.0))
    two.let(key("peer", "one")._replace(expires=900.0))
    one.look()
    for changes in one.share.all():
        two.share.take("one", public("one"), changes, NOW)

    def admitted(time: float) -> KeyTable:
        stored = admitted_keys(sorted(two.files), two.share.sources, "two", public("two"), time)
        return table_at((each.key for each in stored), time)

    assert admitted(499.0).find("frontend", public("web")) is not None
    assert admitted(500.0).find("frontend", public("web")) is None
    assert [each.user for each in admitted(500.0).expired] == ["frontend/web"]
    assert admitted(500.0).changes_at(499.0)
    assert not admitted(500.0).changes_at(899.0)
    assert admitted(500.0).changes_at(900.0)
    assert not admitted(900.0).keys, "nothing follows from a broker whose key has expired"


# Promise: KEY-2
def test_the_rows_of_a_broker_follow_its_key_through_a_rotation():
    one, two, three = KeyStore("one"), KeyStore("two"), KeyStore("three")
    one.let(key("frontend", "web"))
    two.let(key("peer", "one"))
    three.let(key("peer", "two"))
    for store in (one, two):
        store.look()
    for other, store in ((two, one), (three, two)):
        for changes in store.share.all():
            other.share.take(store.name, public(store.name), changes, NOW)
    for changes in one.share.all():
        three.share.take("one", public("one"), changes, NOW)
    assert all(store.lets_in("frontend", "web") for store in (two, three))
    two.files = {key("peer", "one", "new")._replace(previous=public("one"))}
    assert two.lets_in("frontend", "web"), "before the rows are renamed"
    two.share.rename(two.table().keys)
    two.look()
    for changes in two.share.changes():
        three.share.take("two", public("two"), changes, NOW)
    three.share.rename(three.table().keys)
    for store in (two, three):
        store.share.keep(store.table().brokers.values())
        assert store.share.sources["one"].public_key == public("new")
        assert store.lets_in("frontend", "web")
        assert store.lets_in("peer", "one"), "by the previous key"
        assert store.lets_in("peer", "new")
    before = two.table()
    two.files = {key("peer", "one", "new")}
    assert before.lost_users(two.table()) == frozenset()
    assert two.lets_in("frontend", "web")
    assert not two.lets_in("peer", "one")
