"""The journal of a broker or a Helen, read from its SQLite store while it runs."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from scale0.history.events.journal import read
from tests.fakes.broker_process import BrokerProcess


def journal_events(data: Path) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(f"file:{data / 'scale0.db'}?mode=ro", uri=True)) as database:
        bodies = database.execute("SELECT body FROM journal ORDER BY first_seq").fetchall()
    return [event for (body,) in bodies for event in read(body)]


def recorded(broker: BrokerProcess, command: str) -> list[dict[str, Any]]:
    """What the broker's journal has of a management command, the columns of its `data` among the others."""
    events = journal_events(broker.data_dir)
    commands = ({**one, **json.loads(one["data"])} for one in events if one["kind"] == "management.commanded")
    return [one for one in commands if one["command"] == command]
