"""The exporter's process and its parent: where the audit chain begins is stored before anything is removed.

Promise: AUDIT-1
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import msgspec

from scale0.history.events.changes import ManagementCommanded
from scale0.history.segments import writer
from scale0.history.segments.exporter import SegmentExporter
from scale0.history.segments.exporter_process import (
    FINISH,
    AuditChainBegins,
    ExporterParent,
    decode_message,
    encode_message,
    serve,
)
from scale0.kernel.edge.commits import Commits
from scale0.storage.interface import AUDIT_START
from scale0.storage.memory.store import MemoryStore
from scale0.storage.rows import DropSetting
from tests.processes.segments.folders import Folder


def test_the_process_reports_where_the_chain_begins_until_the_store_has_it(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "data")
    folder.enter([ManagementCommanded("ada", "patch_config", 200)])
    head = folder.journal.audit_head
    folder.export()
    next((folder.path / "segments").rglob("*.parquet")).unlink()
    folder.store.commit([DropSetting(AUDIT_START)])
    monkeypatch.setattr(writer, "RETENTION_SECONDS", 0.0)
    (receiving, to_child), (from_child, sending) = os.pipe(), os.pipe()
    os.write(to_child, msgspec.json.encode(folder.settings(seconds=0.02)) + b"\n")
    child = threading.Thread(target=serve, args=(ExporterParent(receiving, sending),))
    child.start()
    said = [decode_message(line) for line in os.read(from_child, 65_536).splitlines()]
    os.write(to_child, FINISH)
    child.join(timeout=30.0)
    assert not child.is_alive()
    assert set(said) == {AuditChainBegins(head, "east-1")}
    folder.store.close()
    for descriptor in (receiving, to_child, from_child, sending):
        os.close(descriptor)


async def test_its_parent_stores_it():
    store, failures = MemoryStore(), list[Any]()
    store.open()
    commits = Commits(store, asyncio.get_running_loop(), failures.append)
    exporter = SegmentExporter(None, commits)
    exporter.receive(encode_message(AuditChainBegins("ab", "b")))
    await commits.flush()
    assert (store.snapshot().settings[AUDIT_START], failures) == (b"ab b", [])
    commits.close()
