"""A network's history with known truths planted in it: for tests, demos and benchmarks.

Lives here: `synth`, and what it says of its work. Never here: Spark; numpy and pyarrow are enough to make things up.
"""

from simulator.history.history import NotEmpty, synth
from simulator.history.plan import TooSmall
from simulator.history.truths import Counts, Truth, Truths, read

__all__ = ["Counts", "NotEmpty", "TooSmall", "Truth", "Truths", "read", "synth"]
