"""Small histories by chance, with all that can go wrong in them, and their segments cut as one likes.

Lives here: a seeded generator of events (whole seconds), stories told line by line, and the writing of segments. Never
here: anything of `src/scale0`, or what a history means. Invariant: the same seed makes the same events.
"""

from __future__ import annotations

import datetime
import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.naive_history import NAMES, SCHEMA, START

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


# By chance.


def by_chance(seed: int) -> Story:
    """A network for two to six hours, over midnight in some, with a bit of everything."""
    dice = random.Random(seed)
    begin = dice.choice((0, 600, 3600, 22 * 3600, 23 * 3600 - 1, 22 * 3600 + 1234))
    story = Story(begin, begin + dice.randint(2 * 3600, 5 * 3600))
    for name in ("broker-1", "broker-2"):
        _life(dice, story, story.broker(name, (0, 0)))
    for name in ("helen-1", "helen-2"):
        _life(dice, story, story.helen(name, (0, 0)))
    for number in range(3):
        _backend(dice, story, f"worker-{number}")
    for number in range(2):
        _agent(dice, story, f"agent-{number}")
        for check in ("cpu", "disk"):
            _check(dice, story, f"agent-{number}", check)
    for number in range(dice.randint(0, 5)):
        _downtime(dice, story, f"down-{number}")
    _tasks(dice, story)
    _requests(dice, story)
    _odd(dice, story)
    return story


def _life(dice: random.Random, story: Story, journal: Journal) -> None:
    """Boots with gaps between them, some with a jump of the numbers; silences; lost segments."""
    journal.boots.clear()
    begin = story.begin + dice.randint(0, 100)
    while begin < story.end:
        end = begin + dice.choice((dice.randint(600, 4000), dice.randint(4000, 20000)))
        whole = begin // 3600 * 3600 + 3600
        end = whole if dice.random() < 0.15 else end
        jump = dice.choice((0, 0, 0, 5, -5, -1)) if journal.boots else 0
        journal.boot(begin, min(end, story.end + 1), jump)
        begin = end + dice.choice((1, 20, 149, 150, 151, 400, 1500))
    for begin, end, _ in journal.boots:
        if end - begin > 1200 and dice.random() < 0.5:
            quiet = dice.randint(begin + 10, end - 1000)
            journal.frozen.append((quiet, quiet + dice.choice((100, 149, 150, 151, 300, 900))))
        if end - begin > 1200 and dice.random() < 0.3:
            lost = dice.randint(begin + 300, end - 800)
            journal.holes.append((lost, lost + dice.choice((30, 100, 200, 600))))
    if dice.random() < 0.3 and journal.broker:
        other = story.journals.get("broker-1", journal)
        for _ in range(3):
            second = dice.randint(story.begin, story.end)
            other.record(second, "peer.lost", at=second - dice.choice((0, 0, 5)), identity=journal.name)


def _moment(dice: random.Random, story: Story, least: int, most: int, now: int) -> int:
    """Some seconds later, now and then exactly on the hour."""
    later = now + dice.randint(least, most)
    hour = later // 3600 * 3600
    return hour if dice.random() < 0.2 and hour > now else later


def _backend(dice: random.Random, story: Story, name: str) -> None:
    """It joins, changes, leaves, is lost, is replaced, at one broker or at both."""
    pool = ("paint", "glue", "saw")
    brokers = [journal for journal in story.journals.values() if journal.broker]
    for journal in dice.sample(brokers, dice.randint(1, 2)):
        now, within = story.begin + dice.randint(0, 900), -1
        while now < story.end:
            boot = journal.boot_at(now)
            data = offer(dice.sample(pool, dice.randint(1, 2)), slots=dice.randint(1, 4))
            if boot is None:
                now += dice.randint(5, 60)
                continue
            if within != boot:
                journal.record(now, "client.joined", identity=name, data=data)
                within = boot
            else:
                within = _next(dice, journal, now, name, data, within)
            now = _moment(dice, story, 0 if dice.random() < 0.1 else 30, 2500, now)


def _next(dice: random.Random, journal: Journal, now: int, name: str, data: Row, boot: int) -> int:
    """What happens to somebody who is there; the boot that it is still in, or -1."""
    what = dice.choice(("left", "lost", "replaced", "changed", "changed", "seen", "again"))
    if what == "lost":
        begin = max(journal.boots[boot][0], _last(journal, name))
        journal.record(now, "client.lost", at=max(begin, now - dice.choice((0, 15, 45))), identity=name, data=data)
        return -1
    if what == "left":
        journal.record(now, "client.left", identity=name, data=data)
        return -1
    if what == "replaced":
        journal.record(now, "client.replaced", identity=name, data=data)
    if what in ("again", "replaced"):
        journal.record(now, "client.joined", identity=name, data=data)
    elif what == "changed":
        journal.record(now, "client.changed", identity=name, data=data)
    else:
        journal.record(now, "client.seen", identity=name, code=12, seconds=5.0)
    return boot


def _last(journal: Journal, name: str) -> int:
    return max((second for second, _, line in journal.lines if line.get("identity") == name), default=0)


def _agent(dice: random.Random, story: Story, name: str) -> None:
    helens = [journal for journal in story.journals.values() if not journal.broker]
    now, at, boot = story.begin + dice.randint(0, 400), dice.choice(helens), -1
    data = offer(("cpu", "disk"), "agent", 0)
    while now < story.end:
        there = at.boot_at(now)
        if there is None:
            boot = -1
            at = dice.choice(helens)
            now += dice.randint(5, 60)
            continue
        if boot != there:
            at.record(now, "client.joined", identity=name, data=data)
            boot = there
        else:
            boot = _next(dice, at, now, name, data, boot)
            at = dice.choice(helens) if boot == -1 else at
        now = _moment(dice, story, 5, 5000, now)


def _check(dice: random.Random, story: Story, agent: str, check: str) -> None:
    """Results at the agent, recorded by a Helen: at once, or when one is there again; by both, now and then."""
    helens = [journal for journal in story.journals.values() if not journal.broker]
    at, number, state = story.begin + dice.randint(0, 300), 0, "ok"
    interval, limit = dice.choice((60, 120, 300)), dice.randint(1, 4)
    restless = dice.choice((0.1, 0.4, 0.9))
    while at < story.end:
        number += 1
        if dice.random() < restless:
            state = dice.choice(("ok", "ok", "warning", "critical", "critical", "unknown"))
        if dice.random() < 0.03:
            interval, limit = dice.choice((60, 120, 300)), dice.randint(1, 4)
        words = {"interval": interval, "timeout": dice.choice((10, 10, 30)), "max_attempts": limit}
        ref = f"spool:{check}{number}"
        for helen in helens if dice.random() < 0.1 else [dice.choice(helens)]:
            second = at + dice.choice((0, 0, 1, 3, dice.choice((100, 1000, 5000)) if dice.random() < 0.2 else 0))
            while second <= story.end and not answer(helen, second, agent, check, state, ref, at=at, **words):
                second += 20
        if dice.random() < 0.05:
            answer(helens[0], at, agent, check, "critical", f"asked-{agent}-{ref}", scheduled=False)
        if dice.random() < 0.01:
            helens[0].record(at + 7, "check.removed", identity=agent, service=check)
        step = dice.choice((interval, interval, interval, interval, interval + 25, 5 * interval))
        at = at if dice.random() < 0.02 else (at + 3599) // 3600 * 3600 if dice.random() < 0.03 else at + step


def _downtime(dice: random.Random, story: Story, ref: str) -> None:
    helens = [journal for journal in story.journals.values() if not journal.broker]
    begin = dice.randint(story.begin + 1200, story.end)
    begin = begin // 3600 * 3600 if dice.random() < 0.2 and begin // 3600 * 3600 > story.begin + 900 else begin
    ends = begin + dice.choice((0, 60, 600, 3000, 9000))
    words: Row = {
        "identity": f"agent-{dice.randint(0, 1)}",
        "service": dice.choice((None, None, "cpu", "disk")),
        "ref": ref,
    }
    data = {"ends": float(START + ends), "reason": "", "author": "x"}
    both = helens if dice.random() < 0.3 else [dice.choice(helens)]
    early = dice.randint(begin, ends) if dice.random() < 0.5 else ends
    for helen in both:
        helen.record(begin, "downtime.started", data=data, **words)
        if dice.random() < 0.7:
            helen.record(early, "downtime.ended", data={"ends": data["ends"]}, **words)


def _tasks(dice: random.Random, story: Story) -> None:
    brokers = [journal for journal in story.journals.values() if journal.broker]
    for number in range(dice.randint(5, 60)):
        ref, method = f"task-{number}", dice.choice(("paint.do", "glue.do"))
        now = dice.randint(story.begin, story.end - 1)
        words: Row = {"service": method, "ref": ref}
        if dice.random() < 0.95:
            data = {"priority": dice.randint(0, 3), "group": dice.choice(("", "g"))}
            dice.choice(brokers).record(now, "task.submitted", identity="front-1", data=data, **words)
        for life in range(dice.choice((1, 1, 1, 2))):
            if life:
                now += dice.randint(1, 600)
                dice.choice(brokers).record(now, "task.reopened", identity="front-1", **words)
            now = _life_of_task(dice, brokers, now, words)


def _life_of_task(dice: random.Random, brokers: list[Journal], now: int, words: Row) -> int:
    tries = dice.choice((0, 1, 1, 1, 2, 3))
    for attempt in range(1, tries + 1):
        ran, waited = dice.randint(1, 900 * 10**6) / 1e6, dice.randint(0, 60 * 10**6) / 1e6
        now += int(ran + waited) + dice.randint(1, 30)
        node = f"worker-{dice.randint(0, 2)}"
        more: Row = {"attempt": attempt, "identity": node, "seconds": ran, "waited": waited}
        if attempt < tries:
            state = dice.choice(("failed", "lost", "timeout"))
            dice.choice(brokers).record(now, "task.attempt_ended", state=state, code=500, **more, **words)
        elif dice.random() < 0.9:
            state = dice.choice(("finished", "finished", "failed"))
            code = 500 if state == "failed" else None
            dice.choice(brokers).record(now, "task.completed", state=state, code=code, **more, **words)
    if not tries:
        now += dice.randint(1, 100)
        dice.choice(brokers).record(now, "task.completed", state="cancelled", code=499, **words)
    return now


def _requests(dice: random.Random, story: Story) -> None:
    brokers = [journal for journal in story.journals.values() if journal.broker]
    for _ in range(dice.randint(0, 60)):
        now = dice.randint(story.begin, story.end) // 10 * 10
        words: Row = {"identity": f"worker-{dice.randint(0, 2)}", "service": dice.choice(("paint", "glue"))}
        if dice.random() < 0.2:
            data = {"client": "front-1", "hops": 0}
            more = {"code": dice.choice((404, 503)), "seconds": 0.5, "ref": "r", "data": data}
            dice.choice(brokers).record(now, "request.failed", **more, **words)
            continue
        buckets = sorted(dice.sample(range(-300, 50), dice.randint(1, 5)))
        summed = [{"bucket": bucket, "count": dice.randint(1, 9)} for bucket in buckets]
        more = {"code": sum(one["count"] for one in summed), "bytes": dice.randint(0, 10**6)}
        more |= {"seconds": 1.02 ** (buckets[-1] - 0.5), "histogram": summed}
        if dice.random() < 0.2:
            more["data"] = {"failed": {"503": dice.randint(1, 2000)}}
        dice.choice(brokers).record(now, "request.summed", **more, **words)


def _odd(dice: random.Random, story: Story) -> None:
    """Kinds that nobody knows, and some that the tables do not use."""
    for _ in range(5):
        journal = dice.choice(list(story.journals.values()))
        kind = dice.choice(("moon.risen", "config.changed", "client.waved", "check.state_changed"))
        journal.record(dice.randint(story.begin, story.end), kind, identity="worker-1", service="cpu", state="critical")


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
    """One file for each."""
    for group in segments:
        first, last = group[0], group[-1]
        day = datetime.datetime.fromtimestamp(last["time"] / 1e6, datetime.UTC).date().isoformat()
        path = folder / f"written={day}" / f"seg-{first['source']}-{first['boot']}-{first['seq']}-{last['seq']}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({name: pa.array([row[name] for row in group], SCHEMA.field(name).type) for name in NAMES})
        pq.write_table(table.cast(SCHEMA), path, compression="zstd", write_page_checksum=True)


def ordered(events: list[Row]) -> bool:
    """Whether times go forward within each boot and nothing was recorded before it happened: of a sound history."""
    rows = sorted(events, key=lambda row: (row["source"], row["boot"], row["seq"]))
    forward = all(
        a["time"] <= b["time"]
        for a, b in itertools.pairwise(rows)
        if (a["source"], a["boot"]) == (b["source"], b["boot"])
    )
    return forward and all(row["at"] <= row["time"] for row in rows)
