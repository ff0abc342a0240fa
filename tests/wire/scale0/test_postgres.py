"""A broker whose store is a database: it starts, begins anew when it was taken for dead, and stops.

Promise: STORE-6
Promise: STORE-9
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

import scale0
from scale0.errors import NotStored
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.cutting import Cutter
from tests.fakes.postgres import Server, as_url, postgres_database, postgres_server, postgres_url
from tests.fakes.shell import manager_of, shell_of
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes

__all__ = ["postgres_database", "postgres_server", "postgres_url"]

SECONDS = 30.0
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'scale0' AND datname = current_database()"


def call(broker: BrokerProcess) -> None:
    """Somebody comes, so that there is something to store."""
    with contextlib.suppress(Exception), scale0.Client(broker.endpoints["frontend"]) as client:
        client.call("nobody.offers", timeout=1)


def test_a_broker_that_was_taken_for_dead_begins_anew_at_the_same_ports(tmp_path, postgres_url):
    url = as_url(postgres_url)
    with (
        broker_process(tmp_path, store=url, group="east", segments=str(tmp_path / "segments")) as broker,
        psycopg.connect(postgres_url, autocommit=True) as connection,
    ):

        def boots() -> int:
            row = connection.execute("SELECT boots FROM scale0.brokers").fetchone()
            return 0 if row is None else int(row[0])

        assert boots() == 1
        connection.execute("UPDATE scale0.brokers SET epoch = epoch + 1, alive_until_us = NULL, gone_us = 0")
        call(broker)
        until(lambda: boots() == 2)
        until(lambda: ": restarting" in broker.log.read_text())
        call(broker)
        assert broker.terminate() == 0
        # It gave up its place, and its events are in segments.
        rows = connection.execute("SELECT alive_until_us, (SELECT count(*) FROM scale0.journal) FROM scale0.brokers")
        assert rows.fetchone() == (None, 0)
        assert list((tmp_path / "segments").rglob("*.parquet"))
        assert "pa55word" not in broker.log.read_text()
        assert not [file for file in Path(broker.config["data_dir"]).rglob("*") if _holds(file, b"pa55word")]


# Promise: STORE-10
def test_a_broker_that_was_taken_for_dead_waits_for_a_database_that_is_away(tmp_path, postgres_url):
    parts = conninfo.conninfo_to_dict(postgres_url)
    proxy = Cutter(f"{parts['host']}/.s.PGSQL.5432")
    url = f"postgresql://{parts['user']}@127.0.0.1:{proxy.port}/{parts['dbname']}"
    with (
        contextlib.closing(proxy),
        broker_process(tmp_path, store=url, group="east") as broker,
        psycopg.connect(postgres_url, autocommit=True) as connection,
    ):
        # Writer and reader are connected, and stay so: they learn that the epoch is over.
        until(lambda: (connection.execute(CONNECTIONS).fetchone() or (0,)) >= (2,))
        proxy.shut = True
        connection.execute("UPDATE scale0.brokers SET epoch = epoch + 1, alive_until_us = NULL, gone_us = 0")
        until(lambda: "trying again every" in broker.log.read_text())
        proxy.shut = False
        until(lambda: connection.execute("SELECT boots FROM scale0.brokers").fetchone() == (2,))
        with scale0.Client(broker.endpoints["frontend"]) as client:
            assert client.ping()["broker"] == "broker-1"
        until(lambda: (connection.execute(CONNECTIONS).fetchone() or (0,)) >= (2,))
        proxy.shut = True
        connection.execute("UPDATE scale0.brokers SET epoch = epoch + 1, alive_until_us = NULL, gone_us = 0")
        until(lambda: broker.log.read_text().count(": restarting") == 2)
        assert broker.terminate() == 0, "a broker that waits can be stopped"


def _holds(file: Path, text: bytes) -> bool:
    return file.is_file() and text in file.read_bytes()


def test_a_broker_without_a_group_may_not_share(tmp_path, postgres_url):
    with pytest.raises(AssertionError, match="a group") as caught:
        BrokerProcess(tmp_path, {"store": as_url(postgres_url)}).start()
    assert "pa55word" not in str(caught.value)


# Promise: STORE-10, TERM-1
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_while_the_database_hangs_calls_and_status_are_answered_with_the_reason(tmp_path):
    server = Server(durable=False)
    with (
        contextlib.closing(server),
        broker_process(tmp_path, store=as_url(server.database()), group="east") as broker,
        scale0.Client(broker.endpoints["frontend"], timeout=20) as client,
    ):
        first = client.submit("nobody.offers", 1)
        with server.frozen():
            for key in ("a", "b", ""):  # the first one waits until the broker notices
                with pytest.raises(NotStored, match="database") as raised:
                    (client.task(key=key) if key else client).submit("nobody.offers", 2)
                assert raised.value.cause == "database"
                assert "disk" not in str(raised.value)
            with pytest.raises(NotStored):
                client.task_of(first.id).status()
            said = manager_of(broker, tmp_path).run("status", seconds=30)
            assert said.returncode == 1, said
            assert "critical  database: it is unavailable since" in said.stdout, said
            assert "next: start or resume the database" in said.stdout
            said = shell_of(broker, tmp_path).run("status", seconds=30)
            assert said.returncode == 1, said
            assert "critical  database: it is unavailable since" in said.stdout, said
        until(lambda: not client.ping()["full"])
        assert client.task_of(first.id).status().status == "queued"
        one = client.task(key="a").submit("nobody.offers", 2)
        assert client.task(key="a").submit("nobody.offers", 2).id == one.id
