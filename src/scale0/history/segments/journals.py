"""Where the journal of a data directory is: in its SQLite store, or in the database that its exporter recorded.

A reader takes no lock, so it never prevents an export. psycopg is imported only where a journal is in PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from scale0.history.events.audit import AuditStart
from scale0.history.events.journal import JournalRow
from scale0.history.segments.settings import ExporterSettings, ExportState
from scale0.kernel.errors import StoreError
from scale0.storage.sqlite.journal import JournalFile
from scale0.storage.sqlite.store import DATABASE_NAME


class JournalSource(Protocol):
    """The journal of one source, in any store."""

    def ends(self) -> tuple[int, int]: ...
    def after(self, seq: int) -> list[JournalRow]: ...
    def before(self, seq: int) -> list[JournalRow]: ...
    def audit_head(self) -> str: ...
    def audit_start(self) -> AuditStart | None: ...
    def close(self) -> None: ...


def open_journal(settings: ExporterSettings) -> JournalSource:
    """The journal to export."""
    if not settings.database:
        return JournalFile(Path(settings.data_dir))
    from scale0.storage.postgres.journal import JournalTable  # noqa: PLC0415  # an extra

    return JournalTable(settings.database, settings.source)


def open_for_reading(data_dir: Path, state: ExportState | None) -> JournalSource | None:
    """The journal of a data directory; None: there is none. StoreError if it exists and cannot be read."""
    if state is not None and state.database:
        try:
            from scale0.storage.postgres.journal import JournalTable  # noqa: PLC0415  # an extra
        except ImportError:
            raise StoreError("the journal is in PostgreSQL: pip install 'scale0[postgres]'") from None
        return JournalTable(state.database, state.source, exports=False)
    return JournalFile(data_dir) if (data_dir / DATABASE_NAME).exists() else None


def journal_identity(data_dir: Path, state: ExportState | None) -> str:
    """A text that changes when another store replaces this one; blank: there is none."""
    if state is not None and state.database:
        return f"{state.source} {state.database}"
    try:
        return str((data_dir / DATABASE_NAME).stat().st_ino)
    except OSError:
        return ""
