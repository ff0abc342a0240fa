"""What every event is to the journal.

Lives here: the Protocol alone, so that the noun files and the journal need not know each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from scale0.history.events.columns import EventRow


class Event(Protocol):
    """Something that happened: frozen fields in words of its domain, and the row that they make."""

    kind: ClassVar[str]
    """`noun.past`"""

    def row(self) -> EventRow:
        """This event in the columns of the one schema."""
        ...
