"""What a broker has recorded, read from its store while it runs.

Lives here: the journal of a SQLite store, its events as plain objects. Never here: an expectation.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from scale0.events import journal
from tests.support.broker_process import BrokerProcess


def recorded(broker: BrokerProcess, command: str) -> list[dict[str, Any]]:
    """What the broker's journal has of a management command, the columns of its `data` among the others."""
    path = Path(broker.config["data_dir"]) / "scale0.db"
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        rows = database.execute("SELECT * FROM journal").fetchall()
    finally:
        database.close()
    events = (event for row in rows for event in journal.read(next(one for one in reversed(row) if type(one) is bytes)))
    told = ({**one, **json.loads(one["data"])} for one in events if one["kind"] == "management.commanded")
    return [one for one in told if one["command"] == command]
