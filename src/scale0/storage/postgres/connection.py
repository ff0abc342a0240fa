"""A connection to PostgreSQL that comes back: what is lost is connected again, for as long as it takes.

Lives here: `PostgresConnection`, and which errors mean what. Never here: a statement about what is stored. Invariants:
nothing that a user may read holds the URL; work that is done again after a loss was not committed, or knows how to find
out; a wait ends when the store is closed.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import conninfo

from scale0.kernel.log_context import about
from scale0.storage.interface import StoreRefused
from scale0.storage.postgres.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("scale0.storage")

T = TypeVar("T")

FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 2.0

_NETWORK: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "scale0",
}
"""A connection that is cut without a word is noticed within seconds; what the URL says goes first."""

_SESSION: Final = (
    f"SET search_path = {SCHEMA}, pg_catalog",
    # What is left by a broker whose machine died must not be locked for hours.
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

_OWN_PLANS: Final = ("SET enable_seqscan = off", "SET enable_hashjoin = off", "SET enable_mergejoin = off")
"""Every busy statement follows an index; statistics of a table that was empty a moment ago must not say otherwise."""

_AGAIN: Final = ("08", "53", "57", "58")
"""Classes of errors that pass: connection, resources, an operator at work, the system."""
_AGAIN_SOON: Final = ("40001", "40P01")
"""A deadlock, or a conflict: the database chose this one to give way."""
_AGAIN_LATER: Final = ("55P03", "25006", "25P03")
"""A lock that was not to be had; a standby that is not promoted yet; a transaction that was idle too long."""


class PostgresConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, url: str, closing: threading.Event, own_plans: bool) -> None:
        self._url = url
        self._closing = closing
        self._own_plans = own_plans
        self._connection: psycopg.Connection[Any] | None = None
        self.away = ""
        """Why it cannot be reached now; empty: it can, as far as is known."""

    def connect(self) -> psycopg.Connection[Any]:
        """The connection; one try, if it has to be made."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self._connection = connect(self._url, self._own_plans)
        return self._connection

    def run(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do this; if the connection is lost, or the database gives up on it, do it again until it is done."""
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            if self._closing.is_set():
                raise StoreRefused("the store is not open")
            try:
                result = work(self.connect())
            except psycopg.Error as error:
                self._clean_up()
                if not is_transient(error) and not self._is_lost():
                    raise
                if error.sqlstate not in _AGAIN_SOON:
                    self._note_away(error)
                self._closing.wait(backoff * (0.5 + random.random()))
                backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
            except BaseException:
                self._clean_up()
                raise
            else:
                self._note_back()
                return result

    def _clean_up(self) -> None:
        connection = self._connection
        if connection is not None:
            try:
                connection.rollback()
            except psycopg.Error:
                connection.close()

    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.closed

    def _note_away(self, error: psycopg.Error) -> None:
        if not self.away:
            log.error(
                "the database is away, and it is tried again: %s", describe_error(error, self._url), extra=about()
            )
        self.away = describe_error(error, self._url)

    def _note_back(self) -> None:
        if self.away:
            log.warning("the database is back", extra=about())
            self.away = ""

    def close(self) -> None:
        """Let go of it; the thread that uses it may be waiting in it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


def connect(url: str, own_plans: bool) -> psycopg.Connection[Any]:
    """A connection as this store wants it; every BEGIN is said."""
    whole = conninfo.make_conninfo(url, **{**_NETWORK, **conninfo.conninfo_to_dict(url)})
    connection = psycopg.connect(whole, autocommit=True)
    try:
        connection.execute("; ".join((*_SESSION, *(_OWN_PLANS if own_plans else ()))).encode())
        found = connection.execute("SHOW synchronous_commit").fetchone()
        if found is not None and found[0] in _ASYNCHRONOUS:
            connection.execute("SET synchronous_commit = on")
    except BaseException:
        connection.close()
        raise
    return connection


def is_transient(error: psycopg.Error) -> bool:
    """True for an error that is not about what was said."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith(_AGAIN) or state in _AGAIN_SOON or state in _AGAIN_LATER


def describe_error(error: BaseException, url: str) -> str:
    """An error in one line, without what only the file may hold."""
    text = " ".join(str(error).split()) or type(error).__name__
    return redact(text, url)


def redact(text: str, url: str) -> str:
    """A text without the URL, and without its password."""
    secrets = [url]
    with contextlib.suppress(psycopg.Error):
        secrets += [str(value) for key, value in conninfo.conninfo_to_dict(url).items() if "password" in key]
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


def check_url(url: str) -> None:
    """StoreRefused if it cannot be understood; what libpq says of it may hold a part of it, and is not told."""
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        raise StoreRefused(
            "store: the URL of the database is not valid; it is postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
