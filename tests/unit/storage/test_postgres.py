"""PostgreSQL itself: lost connections, lost answers, a server that is killed, and databases that are refused.

Promise: STORE-8
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from scale0.storage.interface import StoreFailed, StoreFenced, StoreRefused, StoreUnavailable
from scale0.storage.postgres import brokers, schema
from scale0.storage.postgres import store as stores
from scale0.storage.postgres import tasks as postgres_writes
from scale0.storage.postgres.connection import ANSWER_SECONDS, PostgresConnection
from scale0.storage.postgres.store import PostgresStore
from scale0.storage.rows import PutSetting, PutToken, ReadDocument, TokenRow
from scale0.storage.task_queries import (
    CountTasks,
    FindTasks,
    LookUpSubmission,
    ReadQueue,
    StoreHeartbeat,
    TakeTaskCommands,
)
from scale0.storage.task_rows import AddTaskUsage, TaskUsage
from tests.fakes.cutting import Cutter
from tests.fakes.postgres import Server
from tests.fakes.waiting import LOOK_SECONDS, until
from tests.unit.storage.task_model import end, lease, put

pytestmark = pytest.mark.slow

STILL_SECONDS = 0.25
"""A longer pause between two looks is the machine's: nobody could notice anything in it."""
QUEUE = ReadQueue("noop", 4, 0, 9, 999)


def own(seq: int, **changes: Any) -> Any:
    return put(seq, id=f"s0:{seq}", **changes)


def seqs(tasks: Any) -> list[int]:
    return [task.seq for task in tasks]


@pytest.fixture
def proxy(postgres_url):
    """The network between the store and its database, which a test cuts."""
    parts = conninfo.conninfo_to_dict(postgres_url)
    cutter = Cutter(f"{parts['host']}/.s.PGSQL.5432")
    yield cutter
    cutter.close()


@pytest.fixture
def store(postgres_url, proxy, tmp_path):
    url = conninfo.make_conninfo(postgres_url, host="127.0.0.1", port=proxy.port)
    made = PostgresStore(url, "ann", tmp_path / "ann")
    made.open()
    yield made
    made.close()


@pytest.fixture
def direct(postgres_url, tmp_path):
    made = PostgresStore(postgres_url, "ann", tmp_path / "ann")
    yield made
    made.close()


def refusal(store: PostgresStore) -> str:
    try:
        store.free_bytes()
    except StoreRefused as error:
        return str(error)
    return ""


def ask(url: str, statement: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def test_a_commit_whose_answer_is_lost_is_done_once(store, proxy, postgres_url):
    store.commit([own(1)])
    proxy.word = b"COMMIT"
    store.commit([own(2), PutSetting("k", b"v"), AddTaskUsage("a", 1, 3, 0)])
    store.commit([own(3)])
    assert (proxy.cuts, store.read(CountTasks())) == (1, {1000: 3})
    assert ask(postgres_url, "SELECT commits FROM scale0.brokers") == [(3,)]
    assert ask(postgres_url, "SELECT account, tasks FROM scale0.task_usage") == [("a", 1)]


def test_a_commit_that_is_cut_before_it_was_sent_is_done_again(store, proxy):
    store.commit([own(1)])
    for word in (b"BEGIN", b"open_tasks"):
        proxy.word = word
        store.commit([own(2 + proxy.cuts)])
    assert (proxy.cuts, store.read(CountTasks())) == (2, {1000: 3})


def test_what_was_taken_is_held_when_the_answer_is_lost(store, proxy):
    store.commit([own(1), own(2), AddTaskUsage("a", 2, 6, 0)])
    proxy.word = b"COMMIT"
    assert seqs(store.read(QUEUE)) == [1, 2]
    assert (proxy.cuts, store.read(QUEUE)) == (1, ())
    store.commit([lease(1), lease(2)])
    proxy.word = b"BEGIN"
    assert store.read(TakeTaskCommands(9)) == ()
    proxy.word = b"COMMIT"
    assert store.read(StoreHeartbeat(5_000_000)).total == TaskUsage("", 2, 6, 0)
    proxy.word = b"COMMIT"
    found = store.read(LookUpSubmission("c", ("x",), None, None, "x"))
    assert (proxy.cuts, found.busy) == (4, False)
    store.commit([put(9, id="x")])


def test_connections_that_an_operator_ends_come_back(store, postgres_url):
    store.commit([own(1)])
    for seq in (2, 3):
        ask(postgres_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'scale0'")
        store.commit([own(seq)])
        assert store.read(CountTasks()) == store.scan(CountTasks()) == {1000: seq}


def test_while_it_is_away_writes_are_refused_and_a_commit_waits(store, proxy):
    store.commit([own(1)])
    proxy.shut = True
    proxy.cut()
    thread = threading.Thread(target=store.commit, args=([own(2)],))
    thread.start()
    while "unreachable" not in refusal(store):
        assert thread.is_alive()
    proxy.shut = False
    thread.join(20)
    assert not thread.is_alive()
    assert store.free_bytes() > 0
    assert store.read(CountTasks()) == {1000: 2}


def test_closing_ends_every_wait(store, proxy):
    proxy.shut = True
    proxy.cut()
    raised: list[Any] = []

    def wait(call: Any) -> None:
        try:
            call()
        except Exception as error:
            raised.append(type(error))

    threads = [
        threading.Thread(target=wait, args=(call,))
        for call in (lambda: store.commit([own(1)]), lambda: store.scan(CountTasks()))
    ]
    for thread in threads:
        thread.start()
    with contextlib.suppress(StoreRefused):
        while all(thread.is_alive() for thread in threads):
            store.free_bytes()
    store.close()
    for thread in threads:
        thread.join(20)
    assert sorted(raised, key=str) == [StoreFailed, StoreRefused]


# Promise: STORE-6
def test_one_that_was_taken_for_dead_while_it_was_cut_off_is_fenced(store, proxy, postgres_url):
    proxy.word = b"COMMIT"
    proxy.shut = True
    raised: list[BaseException] = []

    def commit() -> None:
        try:
            store.commit([own(1)])
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    while not ask(postgres_url, "SELECT 1 FROM scale0.brokers WHERE commits = 1"):
        pass
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE scale0.brokers SET epoch = epoch + 1, alive_until_us = NULL")
    proxy.shut = False
    thread.join(20)
    assert [type(error) for error in raised] == [StoreFenced]


# Promise: STORE-10
@pytest.mark.timeout(120)
def test_a_database_that_hangs_is_noticed_within_seconds_and_the_commit_is_applied_once(tmp_path):
    server = Server(durable=False)
    try:
        store = PostgresStore(server.database(), "ann", tmp_path / "ann")
        store.open()
        store.commit([own(1)])
        thread = threading.Thread(target=store.commit, args=([own(2)],), daemon=True)
        with server.frozen():
            thread.start()
            waited, last = 0.0, time.monotonic()
            while "no answer within" not in refusal(store):
                time.sleep(LOOK_SECONDS)
                now = time.monotonic()
                waited, last = waited + min(now - last, STILL_SECONDS), now
                assert waited < 2 * ANSWER_SECONDS
            until(lambda: "timeout" in refusal(store), "the connection is opened again")
        thread.join(30)
        assert not thread.is_alive()
        assert store.free_bytes() > 0
        assert store.read(CountTasks()) == {1000: 2}
        store.close()
    finally:
        server.close()


@pytest.fixture(scope="module")
def hanging_server():
    """For tests that suspend it."""
    server = Server(durable=False)
    yield server
    server.close()


def seconds_of(call: Any) -> float:
    """How long a call takes; a call that never returns fails."""
    began = time.monotonic()
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(6 * ANSWER_SECONDS)
    assert not thread.is_alive(), "the call waits without a deadline"
    return time.monotonic() - began


# Promise: STORE-13
@pytest.mark.timeout(120)
@pytest.mark.parametrize("step", ["connect", "migrate", "join", "read_own"])
def test_a_database_that_hangs_while_it_is_opened_is_given_up(hanging_server, tmp_path, monkeypatch, step):
    store = PostgresStore(hanging_server.database(), "ann", tmp_path / "ann")
    raised: list[Exception] = []

    def open_store() -> None:
        try:
            store.open()
        except Exception as error:
            raised.append(error)

    with contextlib.ExitStack() as frozen:
        if step == "connect":
            frozen.enter_context(hanging_server.frozen())
        else:
            place = brokers if step == "join" else stores
            real = getattr(place, step)

            def hang(*args: Any) -> Any:
                frozen.enter_context(hanging_server.frozen())
                return real(*args)

            monkeypatch.setattr(place, step, hang)
        assert seconds_of(open_store) < 3 * ANSWER_SECONDS
    assert [type(error) for error in raised] == [StoreUnavailable]
    assert "no answer within" in str(raised[0]) or "timeout" in str(raised[0])
    monkeypatch.undo()
    again = PostgresStore(store._url, "ann", tmp_path / "ann")
    again.open()
    again.close()


def commit_quietly(store: PostgresStore) -> None:
    with contextlib.suppress(StoreFailed):
        store.commit([own(2)])


# Promise: STORE-13
@pytest.mark.timeout(120)
@pytest.mark.parametrize("during", ["idle", "commit"])
def test_closing_a_store_whose_database_hangs_ends(hanging_server, tmp_path, during):
    store = PostgresStore(hanging_server.database(), "ann", tmp_path / "ann")
    store.open()
    store.commit([own(1)])
    with hanging_server.frozen():
        if during == "commit":
            thread = threading.Thread(target=commit_quietly, args=(store,))
            thread.start()
        assert seconds_of(store.close) < 3 * ANSWER_SECONDS
        if during == "commit":
            thread.join(3 * ANSWER_SECONDS)
            assert not thread.is_alive()


# Promise: STORE-13
@pytest.mark.timeout(120)
def test_slow_work_of_an_open_is_waited_for_while_the_database_answers(postgres_url):
    connection = PostgresConnection(postgres_url, threading.Event(), index_only=False, answer_seconds=0.2)
    row: Any = connection.once(lambda used: used.execute("SELECT pg_sleep(1), 7").fetchone(), may_be_slow=True)
    assert row[1] == 7
    with pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.2 s"):
        connection.once(lambda used: used.execute("SELECT pg_sleep(5)"))
    connection.close()


# Promise: STORE-10
def test_an_answer_that_is_overdue_stays_the_reason_when_its_connection_is_cut(postgres_url):
    connection = PostgresConnection(postgres_url, threading.Event(), index_only=False, answer_seconds=0.0)
    reasons = []

    def work(_: Any) -> None:
        reasons.append(connection.unreachable)
        if len(reasons) == 1:
            connection.check()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    connection.run(work)
    connection.close()
    assert reasons == ["", "no answer within 0 s"]


# Promise: STORE-1
@pytest.mark.timeout(120)
def test_what_was_committed_survives_kill_9_of_the_server(tmp_path):
    server = Server()
    try:
        store = PostgresStore(server.database(), "ann", tmp_path / "ann")
        store.open()
        acknowledged: list[int] = []
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                seq = len(acknowledged) + 1
                store.commit([own(seq)])
                acknowledged.append(seq)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(2):
            before = len(acknowledged)
            while len(acknowledged) < before + 20:
                pass
            server.kill()
            server.start()
        before = len(acknowledged)
        while len(acknowledged) < before + 5:
            pass
        stop.set()
        thread.join(20)
        assert store.read(CountTasks()) == {1000: len(acknowledged)}
        store.close()
    finally:
        server.close()


# ---- opening


def test_a_second_process_with_the_same_identity_is_refused_and_a_dead_one_is_waited_for(postgres_url, tmp_path):
    first = PostgresStore(postgres_url, "ann", tmp_path / "1")
    first.open()
    first.read(StoreHeartbeat(600_000))
    stop = threading.Event()

    def live() -> None:
        while not stop.wait(0.1):
            first.read(StoreHeartbeat(600_000))

    thread = threading.Thread(target=live)
    thread.start()
    with pytest.raises(StoreRefused, match="another process uses the database as ann"):
        PostgresStore(postgres_url, "ann", tmp_path / "2").open()
    stop.set()
    thread.join()
    # It says nothing any more, and has not given up.
    second = PostgresStore(postgres_url, "ann", tmp_path / "2")
    assert second.open().boots == 2
    with pytest.raises(StoreFenced):
        first.commit([])
    first.close()
    second.commit([own(1)])
    second.close()


# Promise: STORE-4
def test_a_foreign_or_newer_database_is_refused(postgres_url, tmp_path):
    def refused() -> str:
        with pytest.raises(StoreRefused) as caught:
            PostgresStore(postgres_url, "ann", tmp_path / "ann").open()
        return str(caught.value)

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA scale0")
        connection.execute("CREATE TABLE scale0.theirs (a int)")
        assert "belongs to another program" in refused()
        connection.execute("DROP TABLE scale0.theirs")
        store = PostgresStore(postgres_url, "ann", tmp_path / "ann")
        store.open()
        store.close()
        connection.execute("INSERT INTO scale0.migrations VALUES (99)")
        assert "install the newer" in refused()


# Promise: OWN-1, STORE-4
def test_a_database_without_owners_keeps_its_tasks_and_their_keys(postgres_url, tmp_path, monkeypatch):
    with monkeypatch.context() as older, psycopg.connect(postgres_url, autocommit=True) as connection:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        connection.execute("SET search_path = scale0")
        schema.migrate(connection)
        connection.execute(
            """INSERT INTO ended_tasks VALUES
            (2, 9000, 4, 1, 1, 10, 11, 12, 99, 'b', 'ann', 'noop', 'n1', 'k', '', '', '', '5', '6')"""
        )
        connection.execute("INSERT INTO task_ids VALUES ('b', 2)")
        connection.execute("INSERT INTO task_keys VALUES ('ann', 'k', 2)")
    store = PostgresStore(postgres_url, "ann", tmp_path / "ann")
    store.open()
    rows: Any = store.read(FindTasks(("b",)))
    found = rows[0]
    assert (found.owner, found.node_owner, found.params, found.result) == ("", "", b"5", b"6")
    for owner in ("", "key-1"):
        lookup: Any = store.read(LookUpSubmission("ann", (), "k", None, "", owner))
        assert (lookup.keyed.id, lookup.busy) == ("b", False)
    other: Any = store.read(LookUpSubmission("bob", (), "k", None, "", "key-1"))
    assert other.keyed is None
    store.close()


# Promise: STORE-4, MGMT-3
def test_a_database_without_parents_of_sessions_keeps_its_tokens(postgres_url, tmp_path, monkeypatch):
    with monkeypatch.context() as older, psycopg.connect(postgres_url, autocommit=True) as connection:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:-1])
        connection.execute("SET search_path = scale0")
        schema.migrate(connection)
        connection.execute("INSERT INTO tokens VALUES (0, 'd', 'ada', 'admin', 8)")
    store = PostgresStore(postgres_url, "ann", tmp_path / "ann")
    assert store.open().tokens == (TokenRow("d", "ada", "admin", 8, parent=""),)
    store.commit([PutToken("d", "ada", "admin", 8, parent="e")])
    store.close()
    again = PostgresStore(postgres_url, "ann", tmp_path / "ann")
    assert again.open().tokens == (TokenRow("d", "ada", "admin", 8, parent="e"),)
    again.close()


# Promise: STORE-9
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:pa55word@127.0.0.1:1/nowhere",
        "postgresql://ann:pa55word@127.0.0.1:1/nowhere?pa55word=1",
        "postgresql://ann:pa55word@[::1/nowhere",
        "postgresql://ann:pa55word@127.0.0.1:port/nowhere",
    ],
)
def test_a_database_that_cannot_be_reached_is_reported_without_its_password(tmp_path, url):
    with pytest.raises(StoreRefused) as caught:
        PostgresStore(url, "ann", tmp_path / "ann").open()
    assert "pa55word" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_brokers_may_start_together(postgres_url, tmp_path):
    names = [f"b{number}" for number in range(6)]
    slots: list[int] = []

    def start(name: str) -> None:
        store = PostgresStore(postgres_url, name, tmp_path / name)
        opened = store.open()
        assert opened.shared is not None
        slots.append(opened.shared.slot)
        store.close()

    threads = [threading.Thread(target=start, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(slots) == list(range(6))


def test_a_commit_is_never_asynchronous(direct, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = conninfo.conninfo_to_dict(postgres_url)["dbname"]
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
    direct.open()
    assert direct._writer.connect().execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_keys_may_hold_any_letter(direct):
    direct.open()
    keys = ["a\0b", "a\x01" + "0b", "\x01", "\0", "ü💩"]
    direct.read_all([LookUpSubmission("c", (), key, None, "") for key in keys])
    direct.commit([own(seq, client="c", key=key) for seq, key in enumerate(keys, 1)])
    found: Any = direct.read_all([LookUpSubmission("c", (), key, None) for key in keys])
    assert [(each.keyed.seq, each.keyed.key) for each in found] == list(enumerate(keys, 1))
    assert direct.read(ReadDocument(1)) is None


def test_a_commit_with_more_bytes_than_a_statement_carries_goes_in_chunks(direct, postgres_url, monkeypatch):
    """An array of PostgreSQL holds less than a gigabyte; the pieces are still one commit."""
    monkeypatch.setattr(postgres_writes, "MAX_STATEMENT_BYTES", 100)
    direct.open()
    params = [b'"%b"' % (b"x" * size) for size in (1, 90, 90, 300, 2, 2)]
    assert len(list(postgres_writes._chunks([own(seq, params=one) for seq, one in enumerate(params, 1)]))) == 4
    direct.commit([own(seq, params=one, shelved=False) for seq, one in enumerate(params, 1)])
    direct.commit([lease(seq) for seq in range(1, 7)])
    ends = [end(seq, result=b'"%b"' % (b"y" * 90)) for seq in range(1, 7)]
    direct.commit(ends)
    assert ask(postgres_url, "SELECT seq, length(result) FROM scale0.ended_tasks ORDER BY seq") == [
        (n, 92) for n in range(1, 7)
    ]
    assert ask(postgres_url, "SELECT count(*) FROM scale0.open_tasks") == [(0,)]
