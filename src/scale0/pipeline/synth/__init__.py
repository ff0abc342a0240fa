"""A network's history with known truths planted in it: for tests, demos and benchmarks.

Lives here: `synth`, and what it says of its work. Never here: Spark; numpy and pyarrow are enough to make things up.
"""

from scale0.pipeline.synth.history import NotEmpty, synth
from scale0.pipeline.synth.plan import TooSmall
from scale0.pipeline.synth.truths import Counts, Truth, Truths, read

__all__ = ["Counts", "NotEmpty", "TooSmall", "Truth", "Truths", "read", "synth"]
