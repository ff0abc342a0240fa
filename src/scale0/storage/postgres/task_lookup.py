"""Submissions in PostgreSQL: everything that a broker must know before it accepts tasks, and their reservations.

All submissions of a turn are looked up by a constant number of statements. An id and key are reserved together or not
at all, and names are locked in their order, so that two brokers do not deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.storage.interface import StoreFenced
from scale0.storage.postgres.brokers import FENCED, BrokerEpoch
from scale0.storage.postgres.task_rows import JOINED, NAMED_BRIEF, NamedTask, clean, named_task
from scale0.storage.task_queries import LookUpSubmission, SubmissionLookup
from scale0.storage.task_rows import TaskClient

if TYPE_CHECKING:
    import psycopg

_FENCE: Final = "SELECT 1 FROM brokers WHERE slot = %s AND epoch = %s FOR SHARE"
_CLIENTS: Final = "SELECT id, owner, heard_us FROM task_clients WHERE id = ANY(%s::text[])"
_IDS: Final = f"SELECT n.id, {NAMED_BRIEF} FROM task_ids n {JOINED} WHERE n.id = ANY(%s::text[])"
_KEYS: Final = f"""
    SELECT n.client, n.key, n.owner, {NAMED_BRIEF}
    FROM unnest(%s::text[], %s::text[], %s::text[]) AS v (client, key, owner)
    JOIN task_keys n ON n.client = v.client AND n.key = v.key AND n.owner IN (v.owner, '') {JOINED}"""
# "/" is the character after ".".
_LASTS: Final = """
    SELECT s.name, (SELECT n.id FROM task_ids n WHERE n.id >= s.name || '.' AND n.id < s.name || '/'
        AND n.seq IS NOT NULL ORDER BY n.id DESC LIMIT 1) FROM unnest(%s::text[]) AS s (name)"""

# A reservation of this broker, or of an epoch that has ended, is replaced.
_REPLACE: Final = """
    SET broker = excluded.broker, epoch = excluded.epoch WHERE n.seq IS NULL AND (n.broker = excluded.broker
        OR NOT EXISTS (SELECT 1 FROM brokers b WHERE b.slot = n.broker AND b.epoch = n.epoch))"""
_RESERVE_IDS: Final = f"""
    INSERT INTO task_ids AS n (id, broker, epoch) SELECT v.id, %s, %s FROM unnest(%s::text[]) AS v (id)
    ON CONFLICT (id) DO UPDATE {_REPLACE} RETURNING n.id"""
_RESERVE_KEYS: Final = f"""
    INSERT INTO task_keys AS n (client, key, owner, broker, epoch)
    SELECT v.client, v.key, v.owner, %s, %s FROM unnest(%s::text[], %s::text[], %s::text[]) AS v (client, key, owner)
    ON CONFLICT (client, key, owner) DO UPDATE {_REPLACE} RETURNING n.client, n.key, n.owner"""
_FREE_IDS: Final = "DELETE FROM task_ids WHERE id = ANY(%s::text[]) AND seq IS NULL AND broker = %s"
_FREE_KEY: Final = """
    DELETE FROM task_keys WHERE client = %s AND key = %s AND owner = %s AND seq IS NULL AND broker = %s"""

Key = tuple[str, str, str]
"""A cleaned client and key, and their owner."""
Name = tuple[str] | Key
"""A cleaned id, or a key."""


def look_up_submissions(
    connection: psycopg.Connection[Any], epoch: BrokerEpoch, queries: Sequence[LookUpSubmission], begin: bool = False
) -> list[SubmissionLookup]:
    """The answers, in their order; to reserve, `begin` a transaction, which is left open."""
    lookup = _Names(connection, epoch, queries, begin)
    wanted = {number: names for number, query in enumerate(queries) if (names := lookup.reservable(query, epoch.slot))}
    lost = _reserve(connection, epoch, lookup, wanted) if wanted else set()
    return [lookup.answer(query, epoch.slot, busy=number in lost) for number, query in enumerate(queries)]


class _Names:
    """The clients, ids and keys of all queries, read in one pipeline."""

    def __init__(
        self, connection: psycopg.Connection[Any], epoch: BrokerEpoch, queries: Sequence[LookUpSubmission], begin: bool
    ) -> None:
        ids = {clean(name) for query in queries for name in (*query.ids, query.reserve or "")} - {""}
        keys = sorted({key for query in queries if (key := _key(query)) is not None})
        series = sorted({clean(query.series) for query in queries if query.series is not None})
        with connection.pipeline():
            fence = None
            if begin:
                connection.execute("BEGIN")
                fence = connection.execute(_FENCE, (epoch.slot, epoch.epoch))
            clients = connection.execute(_CLIENTS, (sorted({clean(query.client) for query in queries}),))
            by_id = connection.execute(_IDS, (sorted(ids),), binary=True) if ids else None
            by_key = None
            if keys:
                by_key = connection.execute(_KEYS, _columns(keys), binary=True)
            lasts = connection.execute(_LASTS, (series,)) if series else None
        if fence is not None and fence.fetchone() is None:
            raise StoreFenced(FENCED)
        self.clients = {row[0]: TaskClient(*row) for row in clients}
        self.names: dict[Name, NamedTask] = {(row[0],): named_task(row[1:]) for row in by_id or ()}
        self.names.update({(row[0], row[1], row[2]): named_task(row[3:]) for row in by_key or ()})
        self.lasts: dict[str, str | None] = dict(lasts.fetchall()) if lasts is not None else {}

    def task(self, name: Name) -> Any:
        known = self.names.get(name)
        return None if known is None else known.task

    def keyed(self, query: LookUpSubmission) -> Any:
        """The task of the query's key: of its owner, or without one."""
        key = _key(query)
        return None if key is None else self.task(key) or self.task((*key[:2], ""))

    def is_busy(self, name: Name, slot: int) -> bool:
        known = self.names.get(name)
        return known is not None and known.task is None and known.reserver != slot and known.is_live

    def is_ours(self, name: Name, slot: int) -> bool:
        known = self.names.get(name)
        return known is not None and known.task is None and known.reserver == slot and known.is_live

    def reservable(self, query: LookUpSubmission, slot: int) -> list[Name]:
        """The names to reserve for a query: none if one of them has a task, or another broker reserved it."""
        names = _names(query)
        if self.keyed(query) or any(self.task(name) is not None or self.is_busy(name, slot) for name in names):
            return []
        return names

    def answer(self, query: LookUpSubmission, slot: int, busy: bool) -> SubmissionLookup:
        names, keyed = _names(query), self.keyed(query)
        free = keyed is None and all(self.task(name) is None for name in names)
        return SubmissionLookup(
            client=self.clients.get(clean(query.client)),
            tasks=tuple(self.task((clean(name),)) for name in query.ids),
            keyed=keyed,
            last="" if query.series is None else self.lasts.get(clean(query.series)) or "",
            busy=busy or (free and any(self.is_busy(name, slot) for name in names)),
        )


def _key(query: LookUpSubmission) -> Key | None:
    return None if query.key is None else (clean(query.client), clean(query.key), query.owner)


def _columns(keys: Sequence[Key]) -> tuple[list[str], list[str], list[str]]:
    """As array parameters."""
    return [key[0] for key in keys], [key[1] for key in keys], [key[2] for key in keys]


def _names(query: LookUpSubmission) -> list[Name]:
    if query.reserve is None:
        return []
    names: list[Name] = [(clean(query.reserve),)] if query.reserve else []
    key = _key(query)
    return names if key is None else [*names, key]


def _reserve(
    connection: psycopg.Connection[Any], epoch: BrokerEpoch, lookup: _Names, wanted: dict[int, list[Name]]
) -> set[int]:
    """Reserve the names; the queries that lost a name to a faster broker, for which nothing stays reserved."""
    every: set[Name] = {name for names in wanted.values() for name in names}
    ids = sorted(name[0] for name in every if len(name) == 1)
    keys = sorted(name for name in every if len(name) == 3)
    with connection.pipeline():
        by_id = connection.execute(_RESERVE_IDS, (epoch.slot, epoch.epoch, ids)) if ids else None
        by_key = None
        if keys:
            by_key = connection.execute(_RESERVE_KEYS, (epoch.slot, epoch.epoch, *_columns(keys)))
    got: set[Name] = set(by_id or ()) | set(by_key or ())
    lost = {number for number, names in wanted.items() if not got.issuperset(names)}
    if lost:
        kept = {name for number, names in wanted.items() if number not in lost for name in names}
        _free(connection, epoch, (name for name in got - kept if not lookup.is_ours(name, epoch.slot)))
    return lost


def _free(connection: psycopg.Connection[Any], epoch: BrokerEpoch, names: Iterable[Name]) -> None:
    for name in names:
        if len(name) == 1:
            connection.execute(_FREE_IDS, ([name[0]], epoch.slot))
        else:
            connection.execute(_FREE_KEY, (*name, epoch.slot))
