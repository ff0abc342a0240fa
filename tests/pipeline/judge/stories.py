"""Chosen stories, one for each meaning, all in one history; and what was true in them, written by hand.

Lives here: what happened, and what every second of it was. Never here: a computation. Each story has names of its own,
so that none matters to another. Seconds count from the start of the history; UNTIL is its horizon, and what was
recorded later has a clock that is ahead.
"""

from __future__ import annotations

from tests.pipeline.judge.journals import Journal, Row, Story, downtime, offer
from tests.pipeline.judge.promises import PROMISES, UNTIL, promise
from tests.pipeline.judge.stories_checks import tell_checks


def told() -> list[Row]:
    """All stories."""
    PROMISES.clear()
    story = Story(0, UNTIL + 900)
    hub, second_hub = story.broker("hub"), story.broker("hub-2")
    helen, second_helen = story.helen("helen"), story.helen("helen-2")
    _brokers(story, hub)
    _silences(story)
    _clients(story, hub, second_hub)
    _services(story, hub, second_hub)
    _agents(helen, second_helen)
    tell_checks(helen, second_helen)
    hub.record(UNTIL, "source.alive", identity="hub")
    hub.record(UNTIL + 60, "client.joined", identity="tomorrow", data=offer(["s-tomorrow"]))
    promise("what lies beyond the horizon waits", "client", "tomorrow")
    return story.events(60)


def _brokers(story: Story, hub: Journal) -> None:
    for name, jump, between in (("killed", 0, "down"), ("holed", 5, "unobserved"), ("rewound", -5, "down")):
        broker = story.broker(name, (0, 1001), (1300, story.end, jump))
        broker.record(1000, "source.alive")
        promise(
            f"a broker that was {name} is {between} until it starts again",
            "broker",
            name,
            ("up", 0, 1000),
            (between, 1000, 1300),
            ("up", 1300, UNTIL),
        )
    quick = story.broker("quick", (3000, 3600), (3601, story.end))
    quick.record(3599, "source.alive")
    promise(
        "a restart within two seconds is two seconds down",
        "broker",
        "quick",
        ("up", 3000, 3599),
        ("down", 3599, 3601),
        ("up", 3601, UNTIL),
    )
    story.broker("torn").holes.append((1000, 1100))
    story.journals["torn"].record(990, "source.alive")
    story.journals["torn"].record(1110, "source.alive")
    promise(
        "a lost segment is unobserved",
        "broker",
        "torn",
        ("up", 0, 990),
        ("unobserved", 990, 1110),
        ("up", 1110, UNTIL),
    )
    for name in ("dead", "mourned"):
        story.broker(name, (0, 1001)).record(1000, "source.alive")
    hub.record(500, "peer.lost", identity="mourned")
    hub.record(1500, "peer.lost", identity="mourned")
    promise(
        "a broker that never starts again is unobserved",
        "broker",
        "dead",
        ("up", 0, 1000),
        ("unobserved", 1000, UNTIL),
    )
    promise(
        "once a peer lost it a dead broker is down",
        "broker",
        "mourned",
        ("up", 0, 1000),
        ("unobserved", 1000, 1500),
        ("down", 1500, UNTIL),
    )


def _silences(story: Story) -> None:
    story.broker("pausing").frozen.append((1000, 1150))
    story.journals["pausing"].record(300, "client.joined", identity="patient", data=offer(["p"]))
    promise("150 seconds of silence are still watching", "broker", "pausing", ("up", 0, UNTIL))
    promise("150 seconds of silence end no session", "client", "patient", ("up", 300, UNTIL))
    asleep = story.broker("asleep")
    asleep.frozen.append((2000, 2151))
    for name in ("slept", "woken"):
        asleep.record(300, "client.joined", identity=name, data=offer([f"s-{name}"]))
    asleep.record(2400, "client.seen", identity="woken", code=12, seconds=5.0)
    promise(
        "151 seconds of silence end a session",
        "client",
        "slept",
        ("up", 300, 2000),
        ("unobserved", 2000, 2151),
        ("down", 2151, UNTIL),
    )
    promise(
        "a client that is seen again after a silence is up again",
        "client",
        "woken",
        ("up", 300, 2000),
        ("unobserved", 2000, 2151),
        ("down", 2151, 2400),
        ("up", 2400, UNTIL),
    )
    story.broker("tail", (0, UNTIL - 149)).record(UNTIL - 150, "source.alive")
    promise("a source is watching 150 seconds after its last event", "broker", "tail", ("up", 0, UNTIL))
    last = UNTIL - 151
    story.broker("cold", (0, last + 1)).record(last, "source.alive")
    promise(
        "a source is not watching 151 seconds after its last event",
        "broker",
        "cold",
        ("up", 0, last),
        ("unobserved", last, UNTIL),
    )


def _clients(story: Story, hub: Journal, other: Journal) -> None:
    hub.record(50, "client.joined", identity="front", data=offer([], "frontend", 0))
    promise("frontends are no subjects", "client", "front")
    hub.record(100, "client.joined", identity="leaver", data=offer(["s-leaver"]))
    hub.record(1000, "client.left", identity="leaver", data=offer(["s-leaver"]))
    hub.record(3600, "client.joined", identity="leaver", data=offer(["s-leaver"]))
    promise("a client that left is absent", "client", "leaver", ("up", 100, 1000), ("up", 3600, UNTIL))
    hub.record(100, "client.joined", identity="loser", data=offer(["s-loser"]))
    hub.record(3630, "client.lost", at=3590, identity="loser", data=offer(["s-loser"]))
    hub.record(7200, "client.joined", identity="loser", data=offer(["s-loser"]))
    promise(
        "a lost client is down from its last sign of life",
        "client",
        "loser",
        ("up", 100, 3590),
        ("down", 3590, 7200),
        ("up", 7200, UNTIL),
    )
    for broker in (hub, other):
        broker.record(200, "client.joined", identity="double", data=offer(["s-double"]))
    hub.record(1000, "client.left", identity="double", data=offer(["s-double"]))
    other.record(2000, "client.lost", at=1990, identity="double", data=offer(["s-double"]))
    promise("any live session is enough", "client", "double", ("up", 200, 1990), ("down", 1990, UNTIL))
    hub.record(100, "client.joined", identity="renewed", data=offer(["s-old"]))
    hub.record(1000, "client.replaced", identity="renewed", data=offer(["s-old"]))
    hub.record(1000, "client.joined", identity="renewed", data=offer(["s-new"]))
    promise("a replaced client stays up", "client", "renewed", ("up", 100, UNTIL))
    killed = story.journals["killed"]
    for name, back in (("orphan", 1400), ("lost-orphan", 0)):
        killed.record(100, "client.joined", identity=name, data=offer([f"s-{name}"]))
        if back:
            killed.record(back, "client.joined", identity=name, data=offer([f"s-{name}"]))
    promise(
        "a client is unobserved while its broker is gone",
        "client",
        "orphan",
        ("up", 100, 1000),
        ("unobserved", 1000, 1300),
        ("down", 1300, 1400),
        ("up", 1400, UNTIL),
    )
    promise(
        "a service is unobserved while its broker is gone",
        "service",
        "s-lost-orphan",
        ("up", 100, 1000),
        ("unobserved", 1000, 1300),
        ("down", 1300, UNTIL),
    )


def _services(story: Story, hub: Journal, other: Journal) -> None:
    promise(
        "a service is down when its only backend left",
        "service",
        "s-leaver",
        ("up", 100, 1000),
        ("down", 1000, 3600),
        ("up", 3600, UNTIL),
    )
    hub.record(100, "client.joined", identity="shifter", data=offer(["early", "both"]))
    hub.record(7200, "client.changed", identity="shifter", data=offer(["both", "late"]))
    promise("a service ends when it is no longer offered", "service", "early", ("up", 100, 7200), ("down", 7200, UNTIL))
    promise("a service begins when it is offered", "service", "late", ("up", 7200, UNTIL))
    promise("a service goes on through a change", "service", "both", ("up", 100, UNTIL))
    hub.record(100, "client.joined", identity="pair-1", data=offer(["pair"]))
    other.record(500, "client.joined", identity="pair-2", data=offer(["pair"]))
    hub.record(1000, "client.left", identity="pair-1", data=offer(["pair"]))
    other.record(3600, "client.left", identity="pair-2", data=offer(["pair"]))
    promise("a service is up while anybody offers it", "service", "pair", ("up", 100, 3600), ("down", 3600, UNTIL))


def _agents(helen: Journal, other: Journal) -> None:
    data = offer(["a-check"], "agent", 0)
    helen.record(100, "client.joined", identity="mover", data=data)
    helen.record(2000, "client.left", identity="mover", data=data)
    other.record(2000, "client.joined", identity="mover", data=data)
    promise("an agent that moves to another Helen stays up", "agent", "mover", ("up", 100, UNTIL))
    promise("what an agent checks is no service", "service", "a-check")
    helen.record(100, "client.joined", identity="rester", data=data)
    downtime(helen, "agent-wide", "rester", None, 3000, 4000)
    helen.record(3500, "client.left", identity="rester", data=data)
    promise(
        "downtime beats all but absent",
        "agent",
        "rester",
        ("up", 100, 3000),
        ("downtime", 3000, 3500),
    )
