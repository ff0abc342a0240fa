"""Chosen stories of checks: results, soft and hard, downtimes, incidents, flapping.

Lives here: what happened, and what every second of it was, written by hand. Never here: a computation.
"""

from __future__ import annotations

from tests.pipeline.judge.journals import Journal, answer, downtime
from tests.pipeline.judge.promises import UNTIL, promise


def tell_checks(helen: Journal, other: Journal) -> None:
    """All of them."""
    _checks(helen)
    _counted(helen, other)
    _hardness(helen)
    _downtimes(helen, other)
    _incidents(helen)


def series(helen: Journal, check: str, results: str, begin: int = 600, **words: int) -> int:
    """Results of a check of agent `a`, a minute apart, as letters; a dot is none. Returns when it is over."""
    states = {"o": "ok", "w": "warning", "c": "critical", "u": "unknown"}
    for number, letter in enumerate(results):
        if letter in states:
            second = begin + 60 * number
            answer(helen, second, "a", check, states[letter], f"{check}:{begin}:{number}", **words)  # type: ignore[arg-type]
    return begin + 60 * len(results) + 10


def _checks(helen: Journal) -> None:
    series(helen, "vouch", "o..o")
    promise(
        "a result vouches for interval and timeout",
        "check",
        "a/vouch",
        ("up", 600, 670),
        ("unobserved", 670, 780),
        ("up", 780, 850),
        ("unobserved", 850, UNTIL),
    )
    answer(helen, 3600, "a", "hourly", "ok", "hourly:1", interval=3600, timeout=0)
    answer(helen, 7200, "a", "hourly", "critical", "hourly:2", interval=3600, timeout=0, max_attempts=1)
    promise(
        "results exactly on the hour meet",
        "check",
        "a/hourly",
        ("up", 3600, 7200),
        ("down", 7200, 10800),
        ("unobserved", 10800, UNTIL),
    )
    answer(helen, 5000, "a", "late", "critical", "late:1", at=700, max_attempts=1)
    answer(helen, 730, "a", "late", "ok", "late:2")
    promise(
        "a spooled result counts when it happened",
        "check",
        "a/late",
        ("down", 700, 730),
        ("up", 730, 800),
        ("unobserved", 800, UNTIL),
    )


def _counted(helen: Journal, other: Journal) -> None:
    for recorder, second in ((helen, 705), (other, 706)):
        answer(recorder, second, "a", "twice", "critical", "twice:1", at=700, max_attempts=2)
    promise(
        "a result that two Helens recorded counts once",
        "check",
        "a/twice",
        ("up", 700, 770),
        ("unobserved", 770, UNTIL),
    )
    answer(helen, 700, "a", "asked", "ok", "asked:1")
    answer(helen, 720, "a", "asked", "critical", "asked:2", scheduled=False)
    promise(
        "a result that somebody asked for does not count",
        "check",
        "a/asked",
        ("up", 700, 770),
        ("unobserved", 770, UNTIL),
    )
    answer(helen, 700, "a", "removed", "ok", "removed:1")
    helen.record(730, "check.removed", identity="a", service="removed")
    answer(helen, 3600, "a", "removed", "ok", "removed:2")
    promise(
        "a check without a definition is absent",
        "check",
        "a/removed",
        ("up", 700, 730),
        ("up", 3600, 3670),
        ("unobserved", 3670, UNTIL),
    )
    answer(helen, 700, "a", "slower", "ok", "slower:1", interval=60, timeout=10)
    answer(helen, 760, "a", "slower", "ok", "slower:2", interval=300, timeout=30)
    promise(
        "each result vouches by its own interval", "check", "a/slower", ("up", 700, 1090), ("unobserved", 1090, UNTIL)
    )


def _hardness(helen: Journal) -> None:
    end = series(helen, "hard", "ocuwco", max_attempts=3)
    promise(
        "a problem is hard from the last attempt on with its own state",
        "check",
        "a/hard",
        ("up", 600, 840),
        ("down", 840, 900),
        ("up", 900, end),
        ("unobserved", end, UNTIL),
    )
    series(helen, "gap", "cc", max_attempts=3)
    end = series(helen, "gap", "c", 3600, max_attempts=3)
    promise(
        "gaps do not reset the count",
        "check",
        "a/gap",
        ("up", 600, 730),
        ("unobserved", 730, 3600),
        ("down", 3600, end),
        ("unobserved", end, UNTIL),
    )
    series(helen, "lasting", "c", max_attempts=1)
    end = series(helen, "lasting", "c", 660, max_attempts=5)
    promise(
        "a hard problem stays hard if max_attempts grows",
        "check",
        "a/lasting",
        ("down", 600, end),
        ("unobserved", end, UNTIL),
    )
    end = series(helen, "warned", "wwww", max_attempts=1)
    promise("a hard warning is up", "check", "a/warned", ("up", 600, end), ("unobserved", end, UNTIL))


def _downtimes(helen: Journal, other: Journal) -> None:
    end = series(helen, "planned", "c" * 20, max_attempts=1)
    downtime(helen, "one", "a", "planned", 700, 900)
    downtime(other, "two", "a", "planned", 800, 1100, early=1000)
    promise(
        "overlapping downtimes are one and end when they are ended",
        "check",
        "a/planned",
        ("down", 600, 700),
        ("downtime", 700, 1000),
        ("down", 1000, end),
        ("unobserved", end, UNTIL),
    )
    answer(helen, 3500, "b", "all", "ok", "all:1", interval=300)
    answer(helen, 3500, "b", "other", "ok", "other:1", interval=300)
    downtime(helen, "wide", "b", None, 3600, 3700, early=5000)
    downtime(helen, "narrow", "b", "other", 3600, 3650)
    for check in ("all", "other"):
        promise(
            "an agent's downtime is that of all its checks and ends as planned",
            "check",
            f"b/{check}",
            ("up", 3500, 3600),
            ("downtime", 3600, 3700),
            ("up", 3700, 3810),
            ("unobserved", 3810, UNTIL),
        )
    answer(helen, 600, "a", "hidden", "critical", "hidden:1", interval=300, max_attempts=1)
    answer(helen, 900, "a", "hidden", "ok", "hidden:2")
    downtime(helen, "three", "a", "hidden", 600, 900)
    promise(
        "a problem within a downtime is no down second",
        "check",
        "a/hidden",
        ("downtime", 600, 900),
        ("up", 900, 970),
        ("unobserved", 970, UNTIL),
    )


def _incidents(helen: Journal) -> None:
    """Down, unobserved, downtime, down again, over two hours: one incident."""
    series(helen, "long", "c", 3400, max_attempts=1)
    end = series(helen, "long", "cccccoo", 3580, max_attempts=1)
    downtime(helen, "four", "a", "long", 3600, 3640)
    promise(
        "unobserved and downtime lie within an incident",
        "check",
        "a/long",
        ("down", 3400, 3470),
        ("unobserved", 3470, 3580),
        ("down", 3580, 3600),
        ("downtime", 3600, 3640),
        ("down", 3640, 3880),
        ("up", 3880, end),
        ("unobserved", end, UNTIL),
    )
    # Changes at the weights .84 .86 .88 .90 .98 1.06 1.12 1.18, between 21 results.
    changes = {2, 3, 4, 5, 9, 13, 16, 19}
    letters = "o"
    for number in range(20):
        letters += {"o": "w", "w": "o"}[letters[-1]] if number in changes else letters[-1]
    series(helen, "flap", letters, 3600, max_attempts=1)
