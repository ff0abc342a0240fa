"""Chosen stories, one for each meaning, all in one history; and what was true in them, written by hand.

Each story has names of its own, so that none matters to another. Seconds count from the start of the history; UNTIL is
its horizon, and what was recorded later has a clock that is ahead. Nothing is computed here: a test compares the
expectations with the judge and with the tables.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.pipeline.judge.journals import Journal, Row, Story, answer, downtime, offer

UNTIL = 12600
Span = tuple[str, int, int]


class Expected(NamedTuple):
    """What must be true of a subject; seconds that no span names are absent."""

    name: str
    kind: str
    subject: str
    spans: tuple[Span, ...]


EXPECTATIONS: list[Expected] = []


def expect(name: str, kind: str, subject: str, timeline: str = "") -> None:
    """`timeline`: seconds and the class that begins there, as in "0 up 1000 down 1300 up"; the last class lasts."""
    words = [*timeline.split(), str(UNTIL)]
    spans = [
        (word, int(begin), int(end)) for begin, word, end in zip(words[::2], words[1::2], words[2::2], strict=False)
    ]
    shown = tuple(span for span in spans if span[0] != "absent")
    EXPECTATIONS.append(Expected(name.replace(" ", "_"), kind, subject, shown))


def recorded() -> list[Row]:
    EXPECTATIONS.clear()
    story = Story(0, UNTIL + 900)
    hub, second_hub = story.broker("hub"), story.broker("hub-2")
    helen, second_helen = story.helen("helen"), story.helen("helen-2")
    _brokers(story, hub)
    _silences(story)
    _clients(story, hub, second_hub)
    _services(hub, second_hub)
    _agents(helen, second_helen)
    _checks(helen)
    _counted(helen, second_helen)
    _hardness(helen)
    _downtimes(helen, second_helen)
    _incidents(helen)
    hub.record(UNTIL, "source.alive", identity="hub")
    hub.record(UNTIL + 60, "client.joined", identity="tomorrow", data=offer(["s-tomorrow"]))
    expect("what lies beyond the horizon waits", "client", "tomorrow")
    return story.events(60)


def _brokers(story: Story, hub: Journal) -> None:
    for name, jump, between in (("killed", 0, "down"), ("holed", 5, "unobserved"), ("rewound", -5, "down")):
        broker = story.broker(name, (0, 1001), (1300, story.end, jump))
        broker.record(1000, "source.alive")
        what = f"a broker that was {name} is {between} until it starts again"
        expect(what, "broker", name, f"0 up 1000 {between} 1300 up")
    quick = story.broker("quick", (3000, 3600), (3601, story.end))
    quick.record(3599, "source.alive")
    expect("a restart within two seconds is two seconds down", "broker", "quick", "3000 up 3599 down 3601 up")
    story.broker("torn").holes.append((1000, 1100))
    story.journals["torn"].record(990, "source.alive")
    story.journals["torn"].record(1110, "source.alive")
    expect("a lost segment is unobserved", "broker", "torn", "0 up 990 unobserved 1110 up")
    for name in ("dead", "mourned"):
        story.broker(name, (0, 1001)).record(1000, "source.alive")
    hub.record(500, "peer.lost", identity="mourned")
    hub.record(1500, "peer.lost", identity="mourned")
    expect("a broker that never starts again is unobserved", "broker", "dead", "0 up 1000 unobserved")
    expect("once a peer lost it a dead broker is down", "broker", "mourned", "0 up 1000 unobserved 1500 down")


def _silences(story: Story) -> None:
    story.broker("pausing").frozen.append((1000, 1150))
    story.journals["pausing"].record(300, "client.joined", identity="patient", data=offer(["p"]))
    expect("150 seconds of silence are still watching", "broker", "pausing", "0 up")
    expect("150 seconds of silence end no session", "client", "patient", "300 up")
    asleep = story.broker("asleep")
    asleep.frozen.append((2000, 2151))
    for name in ("slept", "woken"):
        asleep.record(300, "client.joined", identity=name, data=offer([f"s-{name}"]))
    asleep.record(2400, "client.seen", identity="woken", code=12, seconds=5.0)
    expect("151 seconds of silence end a session", "client", "slept", "300 up 2000 unobserved 2151 down")
    what = "a client that is seen again after a silence is up again"
    expect(what, "client", "woken", "300 up 2000 unobserved 2151 down 2400 up")
    story.broker("tail", (0, UNTIL - 149)).record(UNTIL - 150, "source.alive")
    expect("a source is watching 150 seconds after its last event", "broker", "tail", "0 up")
    last = UNTIL - 151
    story.broker("cold", (0, last + 1)).record(last, "source.alive")
    expect("a source is not watching 151 seconds after its last event", "broker", "cold", f"0 up {last} unobserved")


def _clients(story: Story, hub: Journal, other: Journal) -> None:
    hub.record(50, "client.joined", identity="front", data=offer([], "frontend", 0))
    expect("frontends are no subjects", "client", "front")
    hub.record(100, "client.joined", identity="leaver", data=offer(["s-leaver"]))
    hub.record(1000, "client.left", identity="leaver", data=offer(["s-leaver"]))
    hub.record(3600, "client.joined", identity="leaver", data=offer(["s-leaver"]))
    expect("a client that left is absent", "client", "leaver", "100 up 1000 absent 3600 up")
    hub.record(100, "client.joined", identity="loser", data=offer(["s-loser"]))
    hub.record(3630, "client.lost", at=3590, identity="loser", data=offer(["s-loser"]))
    hub.record(7200, "client.joined", identity="loser", data=offer(["s-loser"]))
    expect("a lost client is down from its last sign of life", "client", "loser", "100 up 3590 down 7200 up")
    for broker in (hub, other):
        broker.record(200, "client.joined", identity="double", data=offer(["s-double"]))
    hub.record(1000, "client.left", identity="double", data=offer(["s-double"]))
    other.record(2000, "client.lost", at=1990, identity="double", data=offer(["s-double"]))
    expect("any live session is enough", "client", "double", "200 up 1990 down")
    hub.record(100, "client.joined", identity="renewed", data=offer(["s-old"]))
    hub.record(1000, "client.replaced", identity="renewed", data=offer(["s-old"]))
    hub.record(1000, "client.joined", identity="renewed", data=offer(["s-new"]))
    expect("a replaced client stays up", "client", "renewed", "100 up")
    killed = story.journals["killed"]
    for name, back in (("orphan", 1400), ("lost-orphan", 0)):
        killed.record(100, "client.joined", identity=name, data=offer([f"s-{name}"]))
        if back:
            killed.record(back, "client.joined", identity=name, data=offer([f"s-{name}"]))
    orphan = "100 up 1000 unobserved 1300 down"
    expect("a client is unobserved while its broker is gone", "client", "orphan", f"{orphan} 1400 up")
    expect("a service is unobserved while its broker is gone", "service", "s-lost-orphan", orphan)


def _services(hub: Journal, other: Journal) -> None:
    expect("a service is down when its only backend left", "service", "s-leaver", "100 up 1000 down 3600 up")
    hub.record(100, "client.joined", identity="shifter", data=offer(["early", "both"]))
    hub.record(7200, "client.changed", identity="shifter", data=offer(["both", "late"]))
    expect("a service ends when it is no longer offered", "service", "early", "100 up 7200 down")
    expect("a service begins when it is offered", "service", "late", "7200 up")
    expect("a service goes on through a change", "service", "both", "100 up")
    hub.record(100, "client.joined", identity="pair-1", data=offer(["pair"]))
    other.record(500, "client.joined", identity="pair-2", data=offer(["pair"]))
    hub.record(1000, "client.left", identity="pair-1", data=offer(["pair"]))
    other.record(3600, "client.left", identity="pair-2", data=offer(["pair"]))
    expect("a service is up while anybody offers it", "service", "pair", "100 up 3600 down")


def _agents(helen: Journal, other: Journal) -> None:
    data = offer(["a-check"], "agent", 0)
    helen.record(100, "client.joined", identity="mover", data=data)
    helen.record(2000, "client.left", identity="mover", data=data)
    other.record(2000, "client.joined", identity="mover", data=data)
    expect("an agent that moves to another Helen stays up", "agent", "mover", "100 up")
    expect("what an agent checks is no service", "service", "a-check")
    helen.record(100, "client.joined", identity="rester", data=data)
    downtime(helen, "agent-wide", "rester", None, 3000, 4000)
    helen.record(3500, "client.left", identity="rester", data=data)
    expect("downtime beats all but absent", "agent", "rester", "100 up 3000 downtime 3500 absent")


# Checks.


def series(helen: Journal, check: str, results: str, begin: int = 600, **options: int) -> int:
    """Results of a check of agent `a`, a minute apart, as letters; a dot is none. Returns when it is over."""
    states = {"o": "ok", "w": "warning", "c": "critical", "u": "unknown"}
    for number, letter in enumerate(results):
        if letter in states:
            second = begin + 60 * number
            answer(helen, second, "a", check, states[letter], f"{check}:{begin}:{number}", **options)  # type: ignore[arg-type]
    return begin + 60 * len(results) + 10


def _checks(helen: Journal) -> None:
    series(helen, "vouch", "o..o")
    what = "a result vouches for interval and timeout"
    expect(what, "check", "a/vouch", "600 up 670 unobserved 780 up 850 unobserved")
    answer(helen, 3600, "a", "hourly", "ok", "hourly:1", interval=3600, timeout=0)
    answer(helen, 7200, "a", "hourly", "critical", "hourly:2", interval=3600, timeout=0, max_attempts=1)
    expect("results exactly on the hour meet", "check", "a/hourly", "3600 up 7200 down 10800 unobserved")
    answer(helen, 5000, "a", "late", "critical", "late:1", at=700, max_attempts=1)
    answer(helen, 730, "a", "late", "ok", "late:2")
    expect("a spooled result counts when it happened", "check", "a/late", "700 down 730 up 800 unobserved")


def _counted(helen: Journal, other: Journal) -> None:
    for recorder, second in ((helen, 705), (other, 706)):
        answer(recorder, second, "a", "twice", "critical", "twice:1", at=700, max_attempts=2)
    expect("a result that two Helens recorded counts once", "check", "a/twice", "700 up 770 unobserved")
    answer(helen, 700, "a", "asked", "ok", "asked:1")
    answer(helen, 720, "a", "asked", "critical", "asked:2", scheduled=False)
    expect("a result that somebody asked for does not count", "check", "a/asked", "700 up 770 unobserved")
    answer(helen, 700, "a", "removed", "ok", "removed:1")
    helen.record(730, "check.removed", identity="a", service="removed")
    answer(helen, 3600, "a", "removed", "ok", "removed:2")
    what = "a check without a definition is absent"
    expect(what, "check", "a/removed", "700 up 730 absent 3600 up 3670 unobserved")
    answer(helen, 700, "a", "slower", "ok", "slower:1", interval=60, timeout=10)
    answer(helen, 760, "a", "slower", "ok", "slower:2", interval=300, timeout=30)
    expect("each result vouches by its own interval", "check", "a/slower", "700 up 1090 unobserved")


def _hardness(helen: Journal) -> None:
    end = series(helen, "hard", "ocuwco", max_attempts=3)
    what = "a problem is hard from the last attempt on with its own state"
    expect(what, "check", "a/hard", f"600 up 840 down 900 up {end} unobserved")
    series(helen, "gap", "cc", max_attempts=3)
    end = series(helen, "gap", "c", 3600, max_attempts=3)
    expect("gaps do not reset the count", "check", "a/gap", f"600 up 730 unobserved 3600 down {end} unobserved")
    series(helen, "lasting", "c", max_attempts=1)
    end = series(helen, "lasting", "c", 660, max_attempts=5)
    what = "a hard problem stays hard if max_attempts grows"
    expect(what, "check", "a/lasting", f"600 down {end} unobserved")
    end = series(helen, "warned", "wwww", max_attempts=1)
    expect("a hard warning is up", "check", "a/warned", f"600 up {end} unobserved")


def _downtimes(helen: Journal, other: Journal) -> None:
    end = series(helen, "planned", "c" * 20, max_attempts=1)
    downtime(helen, "one", "a", "planned", 700, 900)
    downtime(other, "two", "a", "planned", 800, 1100, early=1000)
    what = "overlapping downtimes are one and end when they are ended"
    expect(what, "check", "a/planned", f"600 down 700 downtime 1000 down {end} unobserved")
    answer(helen, 3500, "b", "all", "ok", "all:1", interval=300)
    answer(helen, 3500, "b", "other", "ok", "other:1", interval=300)
    downtime(helen, "wide", "b", None, 3600, 3700, early=5000)
    downtime(helen, "narrow", "b", "other", 3600, 3650)
    for check in ("all", "other"):
        what = "an agent's downtime is that of all its checks and ends as planned"
        expect(what, "check", f"b/{check}", "3500 up 3600 downtime 3700 up 3810 unobserved")
    answer(helen, 600, "a", "hidden", "critical", "hidden:1", interval=300, max_attempts=1)
    answer(helen, 900, "a", "hidden", "ok", "hidden:2")
    downtime(helen, "three", "a", "hidden", 600, 900)
    expect("a problem within a downtime is no down second", "check", "a/hidden", "600 downtime 900 up 970 unobserved")


def _incidents(helen: Journal) -> None:
    """Down, unobserved, downtime, down again, over two hours: one incident."""
    series(helen, "long", "c", 3400, max_attempts=1)
    end = series(helen, "long", "cccccoo", 3580, max_attempts=1)
    downtime(helen, "four", "a", "long", 3600, 3640)
    timeline = f"3400 down 3470 unobserved 3580 down 3600 downtime 3640 down 3880 up {end} unobserved"
    expect("unobserved and downtime lie within an incident", "check", "a/long", timeline)
    # Changes at the weights .84 .86 .88 .90 .98 1.06 1.12 1.18, between 21 results.
    changes = {2, 3, 4, 5, 9, 13, 16, 19}
    letters = "o"
    for number in range(20):
        letters += {"o": "w", "w": "o"}[letters[-1]] if number in changes else letters[-1]
    series(helen, "flap", letters, 3600, max_attempts=1)
