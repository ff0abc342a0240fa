"""Small histories of whole networks by chance, with all that can go wrong in them.

Nothing of `src/scale0` is used here. The same seeds make the same events.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.pipeline.judge.journals import Journal, Row, Story, answer, offer
from tests.pipeline.naive_history import START

SESSION_ENDS = ("left", "lost")
"""What happens to a client that is not there afterwards."""


@dataclass
class Net:
    """A network of a story: its brokers and Helens, and the prefix of all its names."""

    story: Story
    prefix: str
    brokers: list[Journal] = field(default_factory=list)
    helens: list[Journal] = field(default_factory=list)

    @property
    def begin(self) -> int:
        return self.story.begin

    @property
    def end(self) -> int:
        return self.story.end

    def name(self, name: str) -> str:
        return f"{self.prefix}{name}"


def by_chance(*seeds: int) -> Story:
    """For two to five hours, over midnight in some, a network for each seed, with a bit of everything."""
    dice = random.Random(seeds[0])
    begin = dice.choice((0, 600, 3600, 22 * 3600, 23 * 3600 - 1, 22 * 3600 + 1234))
    story = Story(begin, begin + dice.randint(2 * 3600, 5 * 3600))
    for seed in seeds:
        _network(random.Random(seed), Net(story, f"n{seed}-"))
    return story


def _network(dice: random.Random, net: Net) -> None:
    for number in (1, 2):
        net.brokers.append(net.story.broker(net.name(f"broker-{number}"), (0, 0)))
        net.helens.append(net.story.helen(net.name(f"helen-{number}"), (0, 0)))
    for journal in net.brokers + net.helens:
        _life(dice, net, journal)
    for journal in net.brokers:
        for _ in range(dice.choice((0, 0, 3))):
            second = dice.randint(net.begin + 10, net.end)
            net.brokers[0].record(second, "peer.lost", at=second - dice.choice((0, 0, 5)), identity=journal.name)
    for number in range(3):
        _backend(dice, net, net.name(f"worker-{number}"))
    for number in range(2):
        _agent(dice, net, net.name(f"agent-{number}"))
        for check in ("cpu", "disk"):
            _check(dice, net, net.name(f"agent-{number}"), check)
    for number in range(dice.randint(0, 5)):
        _downtime(dice, net, net.name(f"down-{number}"))
    _tasks(dice, net)
    _requests(dice, net)
    _odd(dice, net)


def _life(dice: random.Random, net: Net, journal: Journal) -> None:
    """Boots with gaps between them, some with a jump of the numbers; silences; lost segments."""
    journal.boots.clear()
    begin = net.begin + dice.randint(0, 100)
    while begin < net.end:
        end = begin + dice.choice((dice.randint(600, 4000), dice.randint(4000, 20000)))
        whole = begin // 3600 * 3600 + 3600
        end = whole if dice.random() < 0.15 else end
        jump = dice.choice((0, 0, 0, 5, -5, -1)) if journal.boots else 0
        journal.boot(begin, min(end, net.end + 1), jump)
        begin = end + dice.choice((1, 20, 149, 150, 151, 400, 1500))
    for begin, end, _ in journal.boots:
        if end - begin > 1200 and dice.random() < 0.5:
            quiet = dice.randint(begin + 10, end - 1000)
            journal.frozen.append((quiet, quiet + dice.choice((100, 149, 150, 151, 300, 900))))
        if end - begin > 1200 and dice.random() < 0.3:
            lost = dice.randint(begin + 300, end - 800)
            journal.holes.append((lost, lost + dice.choice((30, 100, 200, 600))))


def _moment(dice: random.Random, least: int, most: int, now: int) -> int:
    """Some seconds later, now and then exactly on the hour."""
    later = now + dice.randint(least, most)
    hour = later // 3600 * 3600
    return hour if dice.random() < 0.2 and hour > now else later


def _backend(dice: random.Random, net: Net, name: str) -> None:
    """It joins, changes, leaves, is lost, is replaced, at one broker or at both."""
    pool = [net.name(service) for service in ("paint", "glue", "saw")]
    for journal in dice.sample(net.brokers, dice.randint(1, 2)):
        now, within = net.begin + dice.randint(0, 900), -1
        while now < net.end:
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
            now = _moment(dice, 0 if dice.random() < 0.1 else 30, 2500, now)


def _next(dice: random.Random, journal: Journal, now: int, name: str, data: Row, boot: int) -> int:
    """What happens to somebody who is there; the boot that it is still in, or -1."""
    what = dice.choice(("left", "lost", "replaced", "changed", "changed", "seen", "again"))
    happen(journal, now, name, data, boot, what, dice.choice((0, 15, 45)) if what == "lost" else 0)
    return -1 if what in SESSION_ENDS else boot


def happen(journal: Journal, now: int, name: str, data: Row, boot: int, what: str, silent_seconds: int) -> None:
    """Something happens to a client in a boot; its last sign of life was so many seconds ago."""
    match what:
        case "lost":
            begin = max(journal.boots[boot][0], _last(journal, name))
            journal.record(now, "client.lost", at=max(begin, now - silent_seconds), identity=name, data=data)
        case "seen":
            journal.record(now, "client.seen", identity=name, code=12, seconds=5.0)
        case "left" | "changed" | "joined":
            journal.record(now, f"client.{what}", identity=name, data=data)
        case "again" | "replaced":
            if what == "replaced":
                journal.record(now, "client.replaced", identity=name, data=data)
            journal.record(now, "client.joined", identity=name, data=data)


def _last(journal: Journal, name: str) -> int:
    return max((second for second, _, line in journal.lines if line.get("identity") == name), default=0)


def _agent(dice: random.Random, net: Net, name: str) -> None:
    now, at, boot = net.begin + dice.randint(0, 400), dice.choice(net.helens), -1
    data = offer(("cpu", "disk"), "agent", 0)
    while now < net.end:
        there = at.boot_at(now)
        if there is None:
            boot = -1
            at = dice.choice(net.helens)
            now += dice.randint(5, 60)
            continue
        if boot != there:
            at.record(now, "client.joined", identity=name, data=data)
            boot = there
        else:
            boot = _next(dice, at, now, name, data, boot)
            at = dice.choice(net.helens) if boot == -1 else at
        now = _moment(dice, 5, 5000, now)


def _check(dice: random.Random, net: Net, agent: str, check: str) -> None:
    """Results at the agent, recorded by a Helen: at once, or when one is there again; by both, now and then."""
    at, number, state = net.begin + dice.randint(0, 300), 0, "ok"
    interval, limit = dice.choice((60, 120, 300)), dice.randint(1, 4)
    restless = dice.choice((0.1, 0.4, 0.9))
    while at < net.end:
        number += 1
        if dice.random() < restless:
            state = dice.choice(("ok", "ok", "warning", "critical", "critical", "unknown"))
        if dice.random() < 0.03:
            interval, limit = dice.choice((60, 120, 300)), dice.randint(1, 4)
        words: Row = {"interval": interval, "timeout": dice.choice((10, 10, 30)), "max_attempts": limit}
        ref = f"spool:{check}{number}"
        for helen in net.helens if dice.random() < 0.1 else [dice.choice(net.helens)]:
            second = at + dice.choice((0, 0, 1, 3, dice.choice((100, 1000, 5000)) if dice.random() < 0.2 else 0))
            while second <= net.end and not answer(helen, second, agent, check, state, ref, at=at, **words):
                second += 20
        if dice.random() < 0.05:
            answer(net.helens[0], at, agent, check, "critical", f"asked-{agent}-{ref}", scheduled=False)
        if dice.random() < 0.01:
            net.helens[0].record(at + 7, "check.removed", identity=agent, service=check)
        step = dice.choice((interval, interval, interval, interval, interval + 25, 5 * interval))
        at = at if dice.random() < 0.02 else (at + 3599) // 3600 * 3600 if dice.random() < 0.03 else at + step


def _downtime(dice: random.Random, net: Net, ref: str) -> None:
    begin = dice.randint(net.begin + 1200, net.end)
    begin = begin // 3600 * 3600 if dice.random() < 0.2 and begin // 3600 * 3600 > net.begin + 900 else begin
    ends = begin + dice.choice((0, 60, 600, 3000, 9000))
    words: Row = {
        "identity": net.name(f"agent-{dice.randint(0, 1)}"),
        "service": dice.choice((None, None, "cpu", "disk")),
        "ref": ref,
    }
    data = {"ends": float(START + ends), "reason": "", "author": "x"}
    both = net.helens if dice.random() < 0.3 else [dice.choice(net.helens)]
    early = dice.randint(begin, ends) if dice.random() < 0.5 else ends
    for helen in both:
        helen.record(begin, "downtime.started", data=data, **words)
        if dice.random() < 0.7:
            helen.record(early, "downtime.ended", data={"ends": data["ends"]}, **words)


def _tasks(dice: random.Random, net: Net) -> None:
    for number in range(dice.randint(5, 60)):
        ref, method = net.name(f"task-{number}"), net.name(dice.choice(("paint.do", "glue.do")))
        now = dice.randint(net.begin, net.end - 1)
        words: Row = {"service": method, "ref": ref}
        data = {"priority": dice.randint(0, 3), "group": dice.choice(("", "g"))}
        now = _somewhere(dice, net, now, "task.submitted", identity="front-1", data=data, **words)
        attempt = 0
        for life in range(dice.choice((1, 1, 1, 2))):
            if life:
                now = _somewhere(dice, net, now + dice.randint(1, 600), "task.reopened", identity="front-1", **words)
            now, attempt = _life_of_task(dice, net, now, words, attempt)
            if attempt < 0:
                break


def _somewhere(dice: random.Random, net: Net, now: int, kind: str, **words: Any) -> int:
    """Recorded by whichever broker runs; when that was."""
    while now < net.end and not dice.choice(net.brokers).record(now, kind, **words):
        now += dice.randint(1, 20)
    return now


def _life_of_task(dice: random.Random, net: Net, now: int, words: Row, attempt: int) -> tuple[int, int]:
    """When it ended, and after how many attempts; below 0: it has not ended."""
    tries = dice.choice((0, 1, 1, 1, 2, 3))
    for number in range(tries):
        attempt += 1
        ran, waited = dice.randint(1, 900 * 10**6) / 1e6, dice.randint(0, 60 * 10**6) / 1e6
        now += int(ran + waited) + dice.randint(1, 30)
        more: Row = {"attempt": attempt, "identity": net.name(f"worker-{dice.randint(0, 2)}")}
        more |= {"seconds": ran, "waited": waited, **words}
        if number < tries - 1:
            state = dice.choice(("failed", "lost", "timeout"))
            now = _somewhere(dice, net, now, "task.attempt_ended", state=state, code=500, **more)
        elif dice.random() < 0.9:
            state = dice.choice(("finished", "finished", "failed"))
            code = 500 if state == "failed" else None
            now = _somewhere(dice, net, now, "task.completed", state=state, code=code, **more)
        else:
            return now, -1
    if not tries:
        now = _somewhere(dice, net, now + dice.randint(1, 100), "task.completed", state="cancelled", code=499, **words)
    return now, attempt


def _requests(dice: random.Random, net: Net) -> None:
    for _ in range(dice.randint(0, 60)):
        now = dice.randint(net.begin, net.end) // 10 * 10
        words: Row = {
            "identity": net.name(f"worker-{dice.randint(0, 2)}"),
            "service": net.name(dice.choice(("paint", "glue"))),
        }
        if dice.random() < 0.2:
            data = {"client": "front-1", "hops": 0}
            more: Row = {"code": dice.choice((404, 503)), "seconds": 0.5, "ref": "r", "data": data}
            dice.choice(net.brokers).record(now, "request.failed", **more, **words)
            continue
        buckets = sorted(dice.sample(range(-300, 50), dice.randint(1, 5)))
        summed = [{"bucket": bucket, "count": dice.randint(1, 9)} for bucket in buckets]
        more = {"code": sum(one["count"] for one in summed), "bytes": dice.randint(0, 10**6)}
        more |= {"seconds": 1.02 ** (buckets[-1] - 0.5), "histogram": summed}
        if dice.random() < 0.2:
            more["data"] = {"failed": {"503": dice.randint(1, 2000)}}
        dice.choice(net.brokers).record(now, "request.summed", **more, **words)


def _odd(dice: random.Random, net: Net) -> None:
    """Kinds that nobody knows, and some that the tables do not use."""
    for _ in range(5):
        journal = dice.choice(net.brokers + net.helens)
        kind = dice.choice(("moon.risen", "config.changed", "client.waved", "check.state_changed"))
        journal.record(
            dice.randint(net.begin, net.end), kind, identity=net.name("worker-1"), service="cpu", state="critical"
        )
