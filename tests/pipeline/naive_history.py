"""A second, naive generator of histories: plain loops, second by second, with a few truths in them.

Nothing of `src/scale0` is used here, not even the schema: what two programs written apart agree on is less likely to be
wrong in both. Events are dicts with the keys of `scale0.history.events.journal.read`.

A history is a small network: two brokers and a Helen; three services, each with one backend; two agents with two checks
each; tasks now and then. Truths are chosen by chance.
"""

from __future__ import annotations

import datetime
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

START = int(datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC).timestamp())
"""A Monday, at midnight, in seconds; everything below counts seconds from here."""

BROKERS = ("broker-1", "broker-2")
HELEN = "helen-1"
BACKENDS = {"worker-a": ("paint", "broker-1"), "worker-b": ("glue", "broker-2"), "worker-c": ("saw", "broker-2")}
AGENTS = {"agent-x": ("cpu", "disk"), "agent-y": ("cpu", "disk")}
INTERVAL, TIMEOUT, MAX_ATTEMPTS = 60, 10, 3
PATIENCE = 15
ALIVE = 60
REJOIN = 2


@dataclass(frozen=True)
class Planted:
    """Something that is true of a history: seconds from START."""

    kind: str
    """outage (a backend), killed (a broker), hole (a broker), flapping or critical (a check)."""
    subject: str
    begin: int
    end: int
    lost_seconds: int = 0
    """Of a hole: how much of what was recorded before the crash is gone."""


@dataclass
class History:
    events: list[dict[str, Any]]
    planted: list[Planted]
    seconds: int
    lost: list[dict[str, Any]] = field(default_factory=list)
    """Events that were recorded and whose segment is gone; `events` does not hold them."""


def chosen(seed: int, seconds: int) -> list[Planted]:
    """One truth of each kind, somewhere; those of one broker do not touch."""
    dice = random.Random(seed)
    part = seconds // 6
    long = max(4 * INTERVAL, part // 2)

    def somewhere(number: int, length: int) -> tuple[int, int]:
        begin = number * part + dice.randrange(60, max(61, part - length - 120))
        return begin, begin + length

    return [
        Planted("outage", dice.choice(sorted(BACKENDS)), *somewhere(1, min(part // 3, 900))),
        Planted("killed", "broker-1", *somewhere(2, min(part // 3, 300))),
        Planted("hole", "broker-2", *somewhere(3, min(part // 4, 240)), lost_seconds=min(part // 4, 300)),
        Planted("flapping", f"{dice.choice(sorted(AGENTS))}/cpu", *somewhere(4, long)),
        Planted("critical", f"{dice.choice(sorted(AGENTS))}/disk", *somewhere(4, long)),
    ]


def history(seed: int, seconds: int) -> History:
    """The events of a small network, second by second, in the order in which they were recorded."""
    truths = chosen(seed, seconds)
    recorders = {name: _Recorder(name) for name in (*BROKERS, HELEN)}
    world = _World(random.Random(seed + 1), truths, recorders)
    for second in range(seconds):
        world.tick(second)
    kept: list[dict[str, Any]] = []
    lost: list[dict[str, Any]] = []
    for recorder in recorders.values():
        for event in recorder.events:
            gone = any(
                truth.kind == "hole"
                and truth.subject == recorder.name
                and _us(truth.begin - truth.lost_seconds) <= event["time"] < _us(truth.begin)
                for truth in truths
            )
            (lost if gone else kept).append(event)
    return History(kept, truths, seconds, lost)


class _Recorder:
    def __init__(self, name: str) -> None:
        self.name = name
        self.boot = 0
        self.next_seq = 1
        self.last_alive = 0
        self.boots = 0
        self.events: list[dict[str, Any]] = []

    def start(self, second: int) -> None:
        self.boot = _us(second)
        self.boots += 1
        self.last_alive = second
        if self.name in BROKERS:
            self.record(second, "broker.started", identity=self.name, data={"version": "0", "boots": self.boots})
        else:
            self.record(second, "source.alive", identity=self.name)

    def record(self, second: float, kind: str, at: float | None = None, **columns: Any) -> None:
        event: dict[str, Any] = {
            "source": self.name,
            "boot": self.boot,
            "seq": self.next_seq,
            "time": _us(second),
            "at": _us(second if at is None else at),
            "kind": kind,
        }
        for name in NAMES[6:]:
            event[name] = columns.get(name)
        if event["data"] is not None:
            event["data"] = json.dumps(event["data"], sort_keys=True, separators=(",", ":"))
        self.next_seq += 1
        self.events.append(event)


class _World:
    """Who is there, and what they do in a second."""

    def __init__(self, dice: random.Random, truths: list[Planted], recorders: dict[str, _Recorder]) -> None:
        self.dice, self.truths, self.recorders = dice, truths, recorders
        self.up: set[str] = set()
        self.joined: set[str] = set()
        self.results: dict[str, int] = {}
        self.tasks = 0
        self.open: list[tuple[int, int, str, str, str]] = []
        """When it ends, when it was submitted, task, method, broker."""

    def now(self, kind: str, subject: str, second: int) -> Planted | None:
        for truth in self.truths:
            if truth.kind == kind and truth.subject == subject and truth.begin <= second < truth.end:
                return truth
        return None

    def tick(self, second: int) -> None:
        for name, recorder in self.recorders.items():
            is_up = not self.now("killed", name, second) and not self.now("hole", name, second)
            if is_up and name not in self.up:
                recorder.start(second)
                self.up.add(name)
            elif not is_up and name in self.up:
                self.up.remove(name)
                self.joined -= {client for client in self.joined if client.endswith(f"@{name}")}
            if is_up and second - recorder.last_alive >= ALIVE:
                recorder.last_alive = second
                recorder.record(second, "source.alive", identity=name)
        for backend, (service, broker) in BACKENDS.items():
            self.backend(second, backend, service, broker)
        for agent, checks in AGENTS.items():
            self.agent(second, agent, checks)
        self.work(second)

    def backend(self, second: int, backend: str, service: str, broker: str) -> None:
        if broker not in self.up:
            return
        key, recorder = f"{backend}@{broker}", self.recorders[broker]
        offer = {"role": "backend", "services": [service, f"{service}.task"], "slots": 2}
        truth = self.now("outage", backend, second)
        if truth is None and key not in self.joined and second * 1_000_000 >= recorder_age_us(recorder, REJOIN):
            self.joined.add(key)
            recorder.record(second, "client.joined", identity=backend, data=offer)
        elif truth is not None and key in self.joined and second >= truth.begin + PATIENCE:
            self.joined.remove(key)
            recorder.record(second, "client.lost", at=truth.begin, identity=backend, data=offer)
        if key in self.joined and truth is None and second % 60 == 30:
            recorder.record(second, "client.seen", identity=backend, code=12, seconds=5.0)
        if key in self.joined and truth is None and second % 10 == 0 and self.dice.random() < 0.1:
            buckets = sorted(self.dice.sample(range(-250, -200), self.dice.randint(1, 4)))
            counts = [self.dice.randint(1, 5) for _ in buckets]
            summed = [{"bucket": bucket, "count": count} for bucket, count in zip(buckets, counts, strict=True)]
            seconds = 1.02 ** (buckets[-1] - 0.5)
            recorder.record(
                second,
                "request.summed",
                identity=backend,
                service=service,
                code=sum(counts),
                seconds=seconds,
                bytes=100 * sum(counts),
                histogram=summed,
            )

    def agent(self, second: int, agent: str, checks: tuple[str, ...]) -> None:
        recorder = self.recorders[HELEN]
        key = f"{agent}@{HELEN}"
        if HELEN not in self.up:
            return
        if key not in self.joined and second >= REJOIN:
            self.joined.add(key)
            offer = {"role": "agent", "services": list(checks), "slots": 0}
            recorder.record(second, "client.joined", identity=agent, data=offer)
        for number, check in enumerate(checks):
            offset = 7 + 11 * number + 23 * (agent == "agent-y")
            if second % INTERVAL == offset:
                self.answer(second, agent, check)

    def answer(self, second: int, agent: str, check: str) -> None:
        subject = f"{agent}/{check}"
        number = self.results[subject] = self.results.get(subject, 0) + 1
        state = "ok"
        if self.now("critical", subject, second) or (self.now("flapping", subject, second) and number % 2):
            state = "critical"
        data = {
            "message": f"{check} is {state}",
            "scheduled": True,
            "interval": float(INTERVAL),
            "timeout": float(TIMEOUT),
            "max_attempts": MAX_ATTEMPTS,
        }
        metric: dict[str, Any] = dict.fromkeys(("name", "value", "unit", "warn", "crit", "min", "max"))
        metric |= {"name": "used", "value": round(40 + 5 * self.dice.random(), 3), "min": 0.0, "max": 100.0}
        self.recorders[HELEN].record(
            second + 0.01,
            "check.answered",
            second,
            identity=agent,
            service=check,
            ref=f"{agent}-spool:{check}{number}",
            state=state,
            seconds=0.2,
            metrics=[metric],
            data=data,
        )

    def work(self, second: int) -> None:
        for backend, (service, broker) in BACKENDS.items():
            there = f"{backend}@{broker}" in self.joined and not self.now("outage", backend, second)
            if broker in self.up and there and self.dice.random() < 0.05:
                self.tasks += 1
                ref, method = f"series.{self.tasks:012x}", f"{service}.task"
                submitted = {"priority": 0, "group": ""}
                record = self.recorders[broker].record
                record(second, "task.submitted", identity="front-1", service=method, ref=ref, data=submitted)
                self.open.append((second + self.dice.randint(1, 20), second, ref, method, backend))
        for task in [task for task in self.open if task[0] <= second]:
            ends, begins, ref, method, backend = task
            broker = BACKENDS[backend][1]
            if broker in self.up:
                self.open.remove(task)
                state = "failed" if self.dice.random() < 0.05 else "finished"
                self.recorders[broker].record(
                    second,
                    "task.completed",
                    identity=backend,
                    service=method,
                    ref=ref,
                    attempt=1,
                    state=state,
                    code=500 if state == "failed" else None,
                    waited=0.5,
                    seconds=ends - begins - 0.5,
                )


def recorder_age_us(recorder: _Recorder, wait: int) -> int:
    """The second from which on clients are back, in microseconds from START."""
    return recorder.boot - START * 1_000_000 + wait * 1_000_000


def _us(second: float) -> int:
    return START * 1_000_000 + round(second * 1_000_000)


def _fields(required: dict[str, Any], optional: dict[str, Any]) -> list[pa.Field]:
    always = [pa.field(name, kind, False) for name, kind in required.items()]
    return always + [pa.field(name, kind) for name, kind in optional.items()]


def _list(fields: list[pa.Field]) -> pa.DataType:
    return pa.list_(pa.field("element", pa.struct(fields), False))


TEXT, LONG, INT, REAL, TIME = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.timestamp("us", "UTC")
METRIC = _fields({"name": TEXT, "value": REAL}, {"unit": TEXT, **dict.fromkeys(("warn", "crit", "min", "max"), REAL)})
SCHEMA = pa.schema(
    _fields(
        {"source": TEXT, "boot": LONG, "seq": LONG, "time": TIME, "at": TIME, "kind": TEXT},
        {
            "identity": TEXT,
            "service": TEXT,
            "ref": TEXT,
            "attempt": INT,
            "code": INT,
            "state": TEXT,
            "seconds": REAL,
            "waited": REAL,
            "histogram": _list(_fields({"bucket": INT, "count": LONG}, {})),
            "bytes": LONG,
            "metrics": _list(METRIC),
            "data": TEXT,
        },
    ),
    metadata={"scale0": "events", "scale0.schema_version": "1"},
)
NAMES = SCHEMA.names


def write(events: list[dict[str, Any]], folder: Path, roll_seconds: int = 3600) -> list[Path]:
    """Segments of these events, one for each source, boot, unbroken run of seqs, and period of so many seconds."""
    groups: list[list[dict[str, Any]]] = []
    before: tuple[Any, ...] = ()
    for event in sorted(events, key=lambda event: (event["source"], event["boot"], event["seq"])):
        here = (event["source"], event["boot"], event["seq"], event["time"] // (roll_seconds * 1_000_000))
        if not before or (*before[:2], before[2] + 1, before[3]) != here:
            groups.append([])
        groups[-1].append(event)
        before = here
    return [write_segment(group, folder) for group in groups]


def write_segment(group: list[dict[str, Any]], folder: Path) -> Path:
    """Events of one source and boot, without a gap, as one file."""
    first, last = group[0], group[-1]
    day = datetime.datetime.fromtimestamp(last["time"] / 1e6, datetime.UTC).date().isoformat()
    encoded = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else f"%{ord(c):02X}" for c in first["source"])
    path = folder / f"written={day}" / f"seg-{encoded}-{first['boot']}-{first['seq']}-{last['seq']}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({name: pa.array([event[name] for event in group], SCHEMA.field(name).type) for name in NAMES})
    pq.write_table(table.cast(SCHEMA), path, compression="zstd", write_page_checksum=True)
    return path
