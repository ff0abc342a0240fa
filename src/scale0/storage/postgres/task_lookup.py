"""All that must be known before tasks can be taken, and the reservation of their ids and keys, in PostgreSQL.

Lives here: `find_new`, for all submissions of a turn at once. Never here: a transaction. Invariants: a constant number
of statements, however many asks; what is reserved is reserved whole or not at all; names are locked in their order, so
that two brokers do not wait for each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.storage.interface import StoreFenced
from scale0.storage.postgres.brokers import FENCED, BrokerEpoch
from scale0.storage.postgres.task_rows import JOINED, NAMED, NamedTask, named
from scale0.storage.postgres.values import clean
from scale0.storage.task_queries import LookUpSubmission, SubmissionLookup
from scale0.storage.task_rows import TaskClient

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import psycopg

_FENCE: Final = "SELECT 1 FROM brokers WHERE slot = %s AND epoch = %s FOR SHARE"
_CLIENTS: Final = "SELECT id, owner, heard_us FROM task_clients WHERE id = ANY(%s::text[])"
_IDS: Final = f"SELECT n.id, {NAMED} FROM task_ids n {JOINED} WHERE n.id = ANY(%s::text[])"
_KEYS: Final = f"""
    SELECT n.client, n.key, {NAMED} FROM unnest(%s::text[], %s::text[]) AS v (client, key)
    JOIN task_keys n ON n.client = v.client AND n.key = v.key {JOINED}"""
# "/" is the letter behind ".".
_LASTS: Final = """
    SELECT s.name, (SELECT n.id FROM task_ids n WHERE n.id >= s.name || '.' AND n.id < s.name || '/'
        AND n.seq IS NOT NULL ORDER BY n.id DESC LIMIT 1) FROM unnest(%s::text[]) AS s (name)"""

# A reservation of one's own, or of an epoch that has ended, is taken over.
_OVER: Final = """
    SET broker = excluded.broker, epoch = excluded.epoch WHERE n.seq IS NULL AND (n.broker = excluded.broker
        OR NOT EXISTS (SELECT 1 FROM brokers b WHERE b.slot = n.broker AND b.epoch = n.epoch))"""
_RESERVE_IDS: Final = f"""
    INSERT INTO task_ids AS n (id, broker, epoch) SELECT v.id, %s, %s FROM unnest(%s::text[]) AS v (id)
    ON CONFLICT (id) DO UPDATE {_OVER} RETURNING n.id"""
_RESERVE_KEYS: Final = f"""
    INSERT INTO task_keys AS n (client, key, broker, epoch)
    SELECT v.client, v.key, %s, %s FROM unnest(%s::text[], %s::text[]) AS v (client, key)
    ON CONFLICT (client, key) DO UPDATE {_OVER} RETURNING n.client, n.key"""
_FREE_IDS: Final = "DELETE FROM task_ids WHERE id = ANY(%s::text[]) AND seq IS NULL AND broker = %s"
_FREE_KEY: Final = "DELETE FROM task_keys WHERE client = %s AND key = %s AND seq IS NULL AND broker = %s"

Name = tuple[str] | tuple[str, str]
"""A clean id, or a clean client and key."""


def find_new(
    connection: psycopg.Connection[Any], life: BrokerEpoch, asks: Sequence[LookUpSubmission], begin: bool = False
) -> list[SubmissionLookup]:
    """The answers, in their order; to reserve, `begin` a transaction, which is left open."""
    look = _Look(connection, life, asks, begin)
    wanted = {place: names for place, ask in enumerate(asks) if (names := look.wanted(ask, life.slot))}
    lost = _reserve(connection, life, look, wanted) if wanted else set()
    return [look.found(ask, life.slot, busy=place in lost) for place, ask in enumerate(asks)]


class _Look:
    """What is there, all of it asked for without waiting in between."""

    def __init__(
        self, connection: psycopg.Connection[Any], life: BrokerEpoch, asks: Sequence[LookUpSubmission], begin: bool
    ) -> None:
        ids = {clean(name) for ask in asks for name in (*ask.ids, ask.reserve or "")} - {""}
        keys = sorted({(clean(ask.client), clean(ask.key)) for ask in asks if ask.key is not None})
        series = sorted({clean(ask.series) for ask in asks if ask.series is not None})
        with connection.pipeline():
            fence = None
            if begin:
                connection.execute("BEGIN")
                fence = connection.execute(_FENCE, (life.slot, life.epoch))
            clients = connection.execute(_CLIENTS, (sorted({clean(ask.client) for ask in asks}),))
            by_id = connection.execute(_IDS, (sorted(ids),), binary=True) if ids else None
            by_key = None
            if keys:
                by_key = connection.execute(_KEYS, ([key[0] for key in keys], [key[1] for key in keys]), binary=True)
            lasts = connection.execute(_LASTS, (series,)) if series else None
        if fence is not None and fence.fetchone() is None:
            raise StoreFenced(FENCED)
        self.clients = {row[0]: TaskClient(*row) for row in clients}
        self.names: dict[Name, NamedTask] = {(row[0],): named(row[1:]) for row in by_id or ()}
        self.names.update({(row[0], row[1]): named(row[2:]) for row in by_key or ()})
        self.lasts: dict[str, str | None] = dict(lasts.fetchall()) if lasts is not None else {}

    def task(self, name: Name) -> Any:
        known = self.names.get(name)
        return None if known is None else known.task

    def is_busy(self, name: Name, slot: int) -> bool:
        known = self.names.get(name)
        return known is not None and known.task is None and known.reserver != slot and known.is_live

    def is_ours(self, name: Name, slot: int) -> bool:
        known = self.names.get(name)
        return known is not None and known.task is None and known.reserver == slot and known.is_live

    def wanted(self, ask: LookUpSubmission, slot: int) -> list[Name]:
        """What is to be reserved for an ask: nothing if one of its names leads to a task, or is another's."""
        names = _names(ask)
        if any(self.task(name) is not None or self.is_busy(name, slot) for name in names):
            return []
        return names

    def found(self, ask: LookUpSubmission, slot: int, busy: bool) -> SubmissionLookup:
        names = _names(ask)
        free = all(self.task(name) is None for name in names)
        return SubmissionLookup(
            client=self.clients.get(clean(ask.client)),
            tasks=tuple(self.task((clean(name),)) for name in ask.ids),
            keyed=None if ask.key is None else self.task((clean(ask.client), clean(ask.key))),
            last="" if ask.series is None else self.lasts.get(clean(ask.series)) or "",
            busy=busy or (free and any(self.is_busy(name, slot) for name in names)),
        )


def _names(ask: LookUpSubmission) -> list[Name]:
    if ask.reserve is None:
        return []
    names: list[Name] = [(clean(ask.reserve),)] if ask.reserve else []
    if ask.key is not None:
        names.append((clean(ask.client), clean(ask.key)))
    return names


def _reserve(
    connection: psycopg.Connection[Any], life: BrokerEpoch, look: _Look, wanted: dict[int, list[Name]]
) -> set[int]:
    """Reserve what looked free; the asks for which another broker was faster, and nothing is reserved."""
    every: set[Name] = {name for names in wanted.values() for name in names}
    ids = sorted(name[0] for name in every if len(name) == 1)
    keys = sorted(name for name in every if len(name) == 2)
    with connection.pipeline():
        by_id = connection.execute(_RESERVE_IDS, (life.slot, life.epoch, ids)) if ids else None
        by_key = None
        if keys:
            values = (life.slot, life.epoch, [key[0] for key in keys], [key[1] for key in keys])
            by_key = connection.execute(_RESERVE_KEYS, values)
    got: set[Name] = set(by_id or ()) | set(by_key or ())
    lost = {place for place, names in wanted.items() if not got.issuperset(names)}
    if lost:
        kept = {name for place, names in wanted.items() if place not in lost for name in names}
        _free(connection, life, (name for name in got - kept if not look.is_ours(name, life.slot)))
    return lost


def _free(connection: psycopg.Connection[Any], life: BrokerEpoch, names: Iterable[Name]) -> None:
    for name in names:
        if len(name) == 1:
            connection.execute(_FREE_IDS, ([name[0]], life.slot))
        else:
            connection.execute(_FREE_KEY, (*name, life.slot))
