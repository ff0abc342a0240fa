"""The promises that every simulated network must keep, by name.

Lives here: the names, what each one says, and the error of a broken one. Never here: how it is seen.
"""

from __future__ import annotations

from typing import Final

PROMISES: Final = {
    "ends-once": "every call ends in exactly one answer or failure",
    "ends-in-time": "every call ends by its timeout and one grace",
    "runs-once": "a request is run again only if it may be retried, and only after a loss",
    "own-answer": "an answer belongs to the request that it answers",
    "whole-answer": "an answer in parts has all of them, in order, from one execution",
    "true-failure": "a failure says what was: no handler's error without one, nothing fails where nothing is wrong",
    "silence-noticed": "a silent backend is dead within interval x (liveness + 1) + 0.25 s",
    "never-too-early": "nobody is dead before interval x liveness of silence",
    "clock-kills-nobody": "only a client whose own clock is wrong is told so",
    "nobody-is-blamed": "an honest client is never told that it sent something wrong",
    "slots": "a backend is never given more than its slots",
    "no-leak": "when all is quiet, nothing is held, taken, waiting or under way",
    "one-place": "a backend is once in each queue of its services, and in all of them while it has a free slot",
    "lru": "work goes to the free backend that was handed work longest ago",
    "back-after-healing": "after healing every backend is back in its queues within the backoff and three heartbeats",
    "answered-again": "after healing every call is answered",
    "stored-then-said": "what was acknowledged or told is on disk, and survives every crash that the disk survives",
    "versions-forward": "nobody goes back to an older configuration",
    "journal": "the journal has no gaps over restarts, and its time never goes back within a boot",
    "sessions-pair-up": "a session begins before it changes or ends, and ends before it begins again",
    "bounded-memory": "records and timers stay in proportion to the clients",
    "progress": "not everything fails",
    "no-exception": "no input and no fault raises out of a machine",
}


class PromiseBroken(Exception):
    """A promise did not hold; `name` is one of PROMISES."""

    def __init__(self, name: str, story: str) -> None:
        super().__init__(f"{name}: {story}")
        self.name = name
        self.story = story


def broken(name: str, story: str) -> PromiseBroken:
    """The error for a promise; a name that is not a promise is our own mistake."""
    if name not in PROMISES:
        raise AssertionError(f"{name} is not a promise")
    return PromiseBroken(name, story)
