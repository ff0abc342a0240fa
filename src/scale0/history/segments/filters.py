"""Which events are wanted: a frozen choice, applied to whole tables.

Lives here: `EventFilter`. Never here: where events come from. Invariant: globs are matched against each different text
once, however many events have it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

GLOBBED: Final = ("source", "kind", "identity", "service")
"""Columns that are chosen by globs; `ref` is chosen by itself."""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """All of it must hold; blank and None choose everything."""

    source: str = ""
    kind: str = ""
    kinds: tuple[str, ...] = ()
    """One of these, each by itself."""
    identity: str = ""
    service: str = ""
    ref: str = ""
    clock: Literal["time", "at"] = "time"
    """What the two below are about: when it was recorded, or when it happened."""
    since_us: int | None = None
    until_us: int | None = None
    """Not included."""

    def of(self, table: pa.Table) -> pa.Table:
        """The events of a table that are chosen, in their order."""
        for name in GLOBBED:
            if glob := getattr(self, name):
                table = table.filter(_matching(table[name], glob))
        if self.kinds:
            table = table.filter(pc.is_in(table["kind"], value_set=pa.array(self.kinds, pa.string())))
        if self.ref:
            table = table.filter(pc.equal(table["ref"], self.ref))
        for bound, compare in ((self.since_us, pc.greater_equal), (self.until_us, pc.less)):
            if bound is not None:
                moment = pa.scalar(bound, pa.timestamp("us", tz="UTC"))
                table = table.filter(compare(table[self.clock], moment))
        return table


def _matching(column: pa.ChunkedArray, glob: str) -> Any:
    wanted = [text for text in column.unique().to_pylist() if text is not None and fnmatchcase(text, glob)]
    return pc.is_in(column, value_set=pa.array(wanted, column.type))
