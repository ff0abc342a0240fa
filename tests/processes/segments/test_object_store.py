"""Segments in an object store: whole under their names or not there, and an outage loses nothing.

Promise: SEG-2
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from scale0.history.segments.names import parse
from scale0.history.segments.writer import SegmentWriter
from tests.fakes.broker_process import broker_process
from tests.fakes.journals import journal_events
from tests.fakes.waiting import until
from tests.processes.segments.folders import Folder
from tests.wire.scale0.raw import raws
from tests.wire.scale0.rpc import client

pytestmark = [pytest.mark.processes, pytest.mark.slow]

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}


class ObjectStore:
    """A server that speaks S3 on loopback; what it holds is lost when it stops."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            config=Config(connect_timeout=2, read_timeout=10, retries={"max_attempts": 0}),
        )

    @property
    def url(self) -> str:
        return f"s3://bucket/east?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def start(self) -> None:
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._listens)
        self.client.create_bucket(Bucket="bucket")

    def _listens(self) -> bool:
        with contextlib.closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def names(self) -> list[str]:
        """Of everything but folders: pyarrow puts one where it has deleted the last file."""
        found = self.client.list_objects_v2(Bucket="bucket").get("Contents", ())
        return [one["Key"] for one in found if not one["Key"].endswith("/")]

    def seqs(self) -> list[int]:
        """The numbers that the names promise."""
        out: list[int] = []
        for name in self.names():
            segment = parse(name.rpartition("/")[2])
            assert segment is not None, name
            out += range(segment.first_seq, segment.last_seq + 1)
        return sorted(out)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    made = ObjectStore()
    yield made
    made.stop()
    made.client.close()


def test_segments_go_to_an_object_store_and_old_days_leave_it(tmp_path, store):
    store.start()
    folder = Folder(tmp_path / "data")
    folder.fill(30, events=4)
    made = SegmentWriter(folder.settings(destination=store.url, events=50, keep_days=1), wall=lambda: folder.wall)
    assert [done[:2] for done in made.export(everything=True)] == [(1, 48), (49, 96), (97, 120)]
    assert store.seqs() == list(range(1, 121))
    assert all(name.startswith("east/written=2026-05-01/seg-east-1-") for name in store.names())
    made.close()
    folder.fill(1)
    mono = folder.wall
    again = SegmentWriter(
        folder.settings(destination=store.url, keep_days=1), wall=lambda: folder.wall, mono=lambda: folder.wall - mono
    )
    assert [(done[:2], bool(done.name)) for done in again.export(everything=True)] == [
        ((1, 120), False),
        ((121, 121), True),
    ]
    assert again.remove_old() == []
    folder.wall += 2 * 86_400
    assert [str(day) for day in again.remove_old()] == ["2026-05-01"]
    assert store.names() == []
    again.close()
    folder.store.close()
    assert [path.name for path in (tmp_path / "data").glob(".writing*")] == []


def test_while_the_object_store_is_away_events_stay_in_the_journal(tmp_path, store):
    with broker_process(tmp_path, segments=store.url, segment_seconds=0.2) as broker:
        with raws(broker.endpoints) as net:
            owner = client(net)
            for number in range(10):
                owner.submit("m", [number])
        data = tmp_path / "data"
        until(lambda: "cannot write segments to s3://bucket/east" in broker.log.read_text())
        assert len(journal_events(data)) > 10
        store.start()
        until(lambda: not journal_events(data))
        seqs = store.seqs()
        assert seqs == list(range(1, len(seqs) + 1))
        assert broker.terminate() == 0
        assert "endpoint_override" not in broker.log.read_text()
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == "testing"
    seqs = store.seqs()
    assert seqs == list(range(1, len(seqs) + 1))
