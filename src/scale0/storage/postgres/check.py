"""Check the rows of all brokers that share a database."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import psycopg

from scale0.kernel.errors import StoreError
from scale0.storage.check import Show, StoreReport, check_store
from scale0.storage.postgres.connection import check_url, connect, describe_error
from scale0.storage.postgres.schema import check_version

ROWS_AT_ONCE: Final = 500
_JOURNAL: Final = "SELECT broker, first_seq, last_seq, body FROM journal ORDER BY broker, first_seq"


def check_schema(url: str, show: Show) -> StoreReport:
    """Check everything in one snapshot; brokers may be running. PostgreSQL's own checksums cover the pages."""
    check_url(url)
    report = StoreReport()
    names = map("check_{}".format, itertools.count())
    try:
        with connect(url, index_only=False) as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            check_version(connection)

            def run(statement: str) -> Iterator[tuple[Any, ...]]:
                with connection.cursor(next(names), binary=True) as cursor:
                    cursor.itersize = ROWS_AT_ONCE
                    cursor.execute(statement.encode())
                    yield from cursor

            check_store(run, _JOURNAL, report, show)
    except psycopg.Error as error:
        raise StoreError(f"cannot read the database: {describe_error(error, url)}") from None
    return report
