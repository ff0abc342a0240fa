"""What a source records, with its boots, silences and losses, and its segments cut as one likes.

Nothing of `src/scale0` is used here. Times are whole seconds since START.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.pipeline.naive_history import NAMES, START, write_segment

Row = dict[str, Any]
ALIVE = 60


def us(second: float) -> int:
    return (START + round(second)) * 1_000_000


class Journal:
    """One source: its boots, its numbers, and what of it was lost."""

    def __init__(self, name: str, broker: bool = True) -> None:
        self.name = name
        self.broker = broker
        self.boots: list[tuple[int, int, int]] = []
        """Start, end, and by how much the numbers jump: above 0 a hole, below 0 a rewind."""
        self.frozen: list[tuple[int, int]] = []
        """It recorded nothing after the one and before the other."""
        self.holes: list[tuple[int, int]] = []
        """What it recorded in [a, b) is gone."""
        self.lines: list[tuple[int, int, Row]] = []

    def boot(self, begin: int, end: int, jump: int = 0) -> None:
        self.boots.append((begin, end, jump))

    def boot_at(self, second: int) -> int | None:
        """The number of the boot that records in this second."""
        for number, (begin, end, _) in enumerate(self.boots):
            if begin <= second < end:
                return None if any(a < second < b for a, b in self.frozen) else number
        return None

    def record(self, second: int, kind: str, *, at: int | None = None, **columns: Any) -> bool:
        """Whether it was recorded: nobody records while it does not run."""
        if self.boot_at(second) is None:
            return False
        self.lines.append((second, len(self.lines), {"kind": kind, "at": second if at is None else at, **columns}))
        return True

    def alive(self, phase: int) -> None:
        """What it says of itself."""
        for begin, end, _ in self.boots:
            first = {"kind": "broker.started" if self.broker else "source.alive", "at": begin, "identity": self.name}
            self.lines.append((begin, -1, first))
            for second in range(begin + phase, end, ALIVE):
                self.record(second, "source.alive", identity=self.name)
        for begin, end in self.frozen:
            for second in (begin, end):
                self.record(second, "source.alive", identity=self.name)

    def events(self) -> list[Row]:
        """In the order of their numbers, without what was lost."""
        out: list[Row] = []
        seq = 0
        for number, (begin, _, jump) in enumerate(self.boots):
            seq = max(0, seq + jump)
            for second, _, line in sorted(self.lines, key=lambda line: line[:2]):
                if self.boot_at(second) != number:
                    continue
                seq += 1
                row: Row = dict.fromkeys(NAMES)
                row |= line | {"source": self.name, "boot": us(begin), "seq": seq}
                row |= {"time": us(second), "at": us(min(line["at"], second))}
                if isinstance(row["data"], dict):
                    row["data"] = json.dumps(row["data"], sort_keys=True)
                if not any(a <= second < b for a, b in self.holes):
                    out.append(row)
        return out


@dataclass
class Story:
    """Journals, and the seconds from the first to the last thing in them."""

    begin: int
    end: int
    journals: dict[str, Journal] = field(default_factory=dict)

    def broker(self, name: str, *boots: tuple[int, ...]) -> Journal:
        return self._source(name, True, boots)

    def helen(self, name: str, *boots: tuple[int, ...]) -> Journal:
        return self._source(name, False, boots)

    def _source(self, name: str, broker: bool, boots: tuple[tuple[int, ...], ...]) -> Journal:
        journal = self.journals[name] = Journal(name, broker)
        for boot in boots or ((self.begin, self.end),):
            journal.boot(*boot)
        return journal

    def events(self, phase: int = 7) -> list[Row]:
        """All that was recorded and not lost; tells it once."""
        for number, journal in enumerate(self.journals.values()):
            journal.alive((phase + 13 * number) % ALIVE or 1)
        return [row for journal in self.journals.values() for row in journal.events()]


def offer(services: tuple[str, ...] | list[str], role: str = "backend", slots: int = 2) -> dict[str, Any]:
    return {"role": role, "services": list(services), "slots": slots}


def answer(
    journal: Journal,
    second: int,
    agent: str,
    check: str,
    state: str,
    ref: str,
    *,
    at: int | None = None,
    interval: int = 60,
    timeout: int = 10,
    max_attempts: int = 3,
    scheduled: bool = True,
) -> bool:
    data: dict[str, Any] = {"message": state, "scheduled": scheduled}
    if scheduled:
        data |= {"interval": float(interval), "timeout": float(timeout), "max_attempts": max_attempts}
    return journal.record(
        second, "check.answered", at=at, identity=agent, service=check, ref=ref, state=state, seconds=0.25, data=data
    )


def downtime(helen: Journal, ref: str, agent: str, check: str | None, begin: int, ends: int, early: int = 0) -> None:
    data = {"ends": float(START + ends), "reason": "", "author": "x"}
    helen.record(begin, "downtime.started", identity=agent, service=check, ref=ref, data=data)
    if early:
        helen.record(early, "downtime.ended", identity=agent, service=check, ref=ref, data={"ends": data["ends"]})


# Segments.


def cut(events: list[Row], dice: random.Random, most: int) -> list[list[Row]]:
    """The events as segments of at most so many, each of one boot and without a gap, in any order."""
    out: list[list[Row]] = []
    left, before = 0, None
    for row in sorted(events, key=lambda row: (row["source"], row["boot"], row["seq"])):
        here = (row["source"], row["boot"], row["seq"] - 1)
        if here != before or left == 0:
            out.append([])
            left = dice.randint(1, most)
        out[-1].append(row)
        left -= 1
        before = (row["source"], row["boot"], row["seq"])
    dice.shuffle(out)
    return out


def write(segments: list[list[Row]], folder: Path) -> None:
    for group in segments:
        write_segment(group, folder)


def ordered(events: list[Row]) -> bool:
    """Whether times go forward within each boot and nothing was recorded before it happened: of a sound history."""
    rows = sorted(events, key=lambda row: (row["source"], row["boot"], row["seq"]))
    forward = all(
        a["time"] <= b["time"]
        for a, b in itertools.pairwise(rows)
        if (a["source"], a["boot"]) == (b["source"], b["boot"])
    )
    return forward and all(row["at"] <= row["time"] for row in rows)
