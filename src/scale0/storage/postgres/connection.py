"""A connection to PostgreSQL that reconnects after a loss, for as long as necessary. A database that does not answer
(its host or its processes are suspended) is noticed from another thread, because keepalives do not show it: in `run` by
`check`, which the store's owner calls, and in `once` by a thread of its own.

No text that a user may read contains the URL. Work that is repeated after a loss was not committed, or can find out
whether it was. Closing the store ends every wait.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import conninfo

from scale0.kernel.backoff import Backoff
from scale0.kernel.log_context import about
from scale0.storage.interface import StoreRefused
from scale0.storage.postgres.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("scale0.storage")

T = TypeVar("T")

FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 5.0
"""How long an answer may take before the connection is given up; doubled each time, because work may be slow."""
SCAN_SECONDS: Final = 60.0
"""The same for a scan, which may read a whole table."""
MIN_SECRET_CHARS: Final = 4
"""A shorter password occurs inside of ordinary words, and to mask it there would only show what it is."""
MAX_ANSWER_FACTOR: Final = 16
PROBE_SECONDS: Final = 2
"""How long the connection may take that shows whether the database answers at all."""

_NETWORK: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "scale0",
}
"""A silently broken connection is noticed within seconds; options of the URL take precedence."""

_SESSION: Final = (
    f"SET search_path = {SCHEMA}, pg_catalog",
    # A transaction of a broker whose machine died must not hold locks for hours.
    "SET idle_in_transaction_session_timeout = '10s'",
    "SET tcp_keepalives_idle = 3",
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 3",
    "SET tcp_user_timeout = '10s'",
    "SET lock_timeout = '10s'",
    "SET jit = off",
    "SET bytea_output = 'hex'",
)
_ASYNCHRONOUS: Final = ("off", "local")

_INDEX_ONLY: Final = ("SET enable_seqscan = off", "SET enable_hashjoin = off", "SET enable_mergejoin = off")
"""Every frequent statement uses an index, even if the statistics are of a table that was empty a moment ago."""

_TRANSIENT_CLASSES: Final = ("08", "53", "57", "58")
"""Classes of transient errors: connection, resources, operator intervention, system."""
_CONFLICTS: Final = ("40001", "40P01")
"""A serialization conflict or a deadlock, of which this transaction is the victim."""
_UNAVAILABLE: Final = ("55P03", "25006", "25P03")
"""A lock timeout; a standby that is not promoted yet; a transaction that was idle too long."""


class PostgresConnection:
    """One connection, used by one thread at a time."""

    def __init__(
        self, url: str, closing: threading.Event, index_only: bool, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._url = url
        self._closing = closing
        self._index_only = index_only
        self._connection: psycopg.Connection[Any] | None = None
        self.unreachable = ""
        """Why the database cannot be reached now; empty: it can, as far as is known."""
        self._use = threading.Lock()
        """Held while one thread works with the connection: psycopg permits no two."""
        self._since: float | None = None
        """When the work in progress began (monotonic); None: there is none, or it was given up."""
        self._answer_seconds = self._patience = answer_seconds

    def connect(self) -> psycopg.Connection[Any]:
        """The connection; if there is none, one attempt to connect."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self._connection = open_connection(self._url)
        if self._since is not None:
            self._since = time.monotonic()
        prepare(self._connection, self._index_only)
        return self._connection

    def once(self, work: Callable[[psycopg.Connection[Any]], T], may_be_slow: bool = False) -> T:
        """Do this in one attempt, when nobody calls `check`: before the store is open, and when it closes.

        It is given up when the answer is overdue. Work that `may_be_slow` is given up only if the database does not
        answer on another connection either. Raises psycopg.Error.
        """
        ended = threading.Event()
        reasons: list[str] = []

        def watch() -> None:
            while not ended.wait(self._answer_seconds):
                if not (may_be_slow and self._answers()) and not ended.is_set():
                    reasons.append(f"no answer within {self._answer_seconds:g} s")
                    self._shut_down()

        if not self._use.acquire(timeout=self._answer_seconds):
            raise psycopg.OperationalError("another thread waits for an answer on this connection")
        threading.Thread(target=watch, name="scale0-deadline", daemon=True).start()
        try:
            return work(self.connect())
        except psycopg.Error as error:
            raise psycopg.OperationalError(reasons[0]) if reasons else error from None
        finally:
            ended.set()
            self._use.release()

    def _answers(self) -> bool:
        """True if the database answers on a new connection."""
        try:
            open_connection(self._url, connect_timeout=PROBE_SECONDS).close()
        except psycopg.Error:
            return False
        return True

    def run(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do this; after a transient error, repeat it until it succeeds."""
        backoff = Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while True:
            if self._closing.is_set():
                raise StoreRefused("the store is not open")
            self._since = time.monotonic()
            try:
                with self._use:
                    result = work(self.connect())
            except psycopg.Error as error:
                self._roll_back()
                if not is_transient(error) and not self._is_lost():
                    raise
                if error.sqlstate not in _CONFLICTS and self._since is not None:  # else `check` has set the reason
                    self._set_unreachable(describe_error(error, self._url))
                self._closing.wait(backoff.next() * (0.5 + random.random()))
            except BaseException:
                self._roll_back()
                raise
            else:
                self._set_reachable()
                return result
            finally:
                self._since = None

    def check(self) -> None:
        """Called by another thread: give up a connection whose answer is overdue; its work is repeated on another."""
        since = self._since
        if since is None or time.monotonic() - since < self._patience:
            return
        if self._is_lost():  # `connect_timeout` ends the attempt to connect, and what follows it has a time of its own
            self._set_unreachable(f"no connection within {self._patience:g} s")
            return
        self._since = None
        self._set_unreachable(f"no answer within {self._patience:g} s")
        self._patience = min(2 * self._patience, MAX_ANSWER_FACTOR * self._answer_seconds)
        self._shut_down()

    def _shut_down(self) -> None:
        """Wake the thread that waits; to close the connection here would free memory that it uses."""
        connection = self._connection
        if connection is not None:
            with (
                contextlib.suppress(psycopg.Error, OSError),
                socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as shared,
            ):
                shared.shutdown(socket.SHUT_RDWR)

    def _roll_back(self) -> None:
        connection = self._connection
        if connection is not None:
            try:
                connection.rollback()
            except psycopg.Error:
                connection.close()

    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.closed

    def _set_unreachable(self, reason: str) -> None:
        if not self.unreachable:
            log.error("the database is unreachable; retrying until it answers: %s", reason, extra=about())
        self.unreachable = reason

    def _set_reachable(self) -> None:
        self._patience = self._answer_seconds
        if self.unreachable:
            log.warning("the database is reachable again", extra=about())
            self.unreachable = ""

    def close(self) -> None:
        """Close it, even while another thread waits in it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


def connect(url: str, index_only: bool) -> psycopg.Connection[Any]:
    """A connection with the settings of this store."""
    connection = open_connection(url)
    prepare(connection, index_only)
    return connection


def open_connection(url: str, **options: Any) -> psycopg.Connection[Any]:
    """A connection in which every BEGIN is explicit."""
    whole = conninfo.make_conninfo(url, **{**_NETWORK, **conninfo.conninfo_to_dict(url), **options})
    return psycopg.connect(whole, autocommit=True)


def prepare(connection: psycopg.Connection[Any], index_only: bool) -> None:
    """Apply the settings of this store."""
    try:
        connection.execute("; ".join((*_SESSION, *(_INDEX_ONLY if index_only else ()))).encode())
        found = connection.execute("SHOW synchronous_commit").fetchone()
        if found is not None and found[0] in _ASYNCHRONOUS:
            connection.execute("SET synchronous_commit = on")
    except BaseException:
        connection.close()
        raise


def is_transient(error: psycopg.Error) -> bool:
    """True for an error whose cause is not the statement."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith(_TRANSIENT_CLASSES) or state in _CONFLICTS or state in _UNAVAILABLE


def describe_error(error: BaseException, url: str) -> str:
    """An error in one line, without secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    return redact(text, url)


def redact(text: str, url: str) -> str:
    """A text without the URL and its password; a short password is masked where it is a whole word."""
    secrets = [url]
    with contextlib.suppress(psycopg.Error):
        secrets += [str(value) for key, value in conninfo.conninfo_to_dict(url).items() if "password" in key]
    for secret in secrets:
        if len(secret) >= MIN_SECRET_CHARS:
            text = text.replace(secret, "***")
        elif secret:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text


def check_url(url: str) -> None:
    """StoreRefused if it is invalid; the message of libpq may contain a part of it, and is not repeated."""
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        raise StoreRefused(
            "store: the URL of the database is not valid; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
