"""What everybody in `scale0 demo` knows: names, how much work there is, and how long anything may take.

Lives here: words and numbers. Never here: a process, or a judgement. Invariant: a time that is promised here is the one
that the last screen names.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "demo"
ONE: Final = "demo-1"
TWO: Final = "demo-2"
BROKERS: Final = (ONE, TWO)
HOMES: Final = {"worker-1": ONE, "worker-2": ONE, "worker-3": TWO}
"""Workers, and the broker that each belongs to; each has the address of the other one, too."""
VICTIM: Final = "worker-1"
WATCHER: Final = "demo"
"""The agent; Helen is called after it."""
DOOR: Final = "demo-1-answers"
"""The check that fails while that broker is dead."""

NAME: Final = "SCALE0_DEMO_NAME"
ENDPOINTS: Final = "SCALE0_DEMO_ENDPOINTS"
RUNS: Final = "SCALE0_DEMO_RUNS"
"""What a worker is told by its environment."""
BEGUN: Final = "begun"
ENDED: Final = "ended"

CALLERS: Final = tuple(f"caller-{number}" for number in range(1, 7))
"""Each a client of its own: one that is never idle would stay with the broker that took it in."""
SUBMITTERS: Final = tuple(f"submitter-{number}" for number in range(1, 5))
"""Each submits a few tasks, waits for their results, and submits again."""
BATCH: Final = 3
CALL_SECONDS: Final = 0.1
PAUSE_SECONDS: Final = 0.05
"""Of a client between two calls, or between two batches: then it may go home."""
TASK_SECONDS: Final = 0.4
"""So long that a worker that is killed has some in its hands."""

BEFORE_SECONDS: Final = 4.0
"""Of work before the first kill."""
AFTER_SECONDS: Final = 3.0
"""Of work after everybody is back."""
DEAD_SECONDS: Final = 8.0
"""Within this long a dead worker's work must be done elsewhere: three heartbeats of a second, and a slow machine."""
GAP_SECONDS: Final = 8.0
"""The longest time without any answer: clients of a dead broker are served within 5 s, and a slow machine."""
INCIDENT_SECONDS: Final = 30.0
"""For Helen to open an incident, and to close it."""
HOME_SECONDS: Final = 60.0
"""Within this long after a broker's restart everybody must be back at it."""
SETTLE_SECONDS: Final = 60.0
"""For all tasks to end, once nobody submits any more."""
