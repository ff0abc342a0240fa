"""Generates synthetic histories with known truths planted in them, for tests, demos and benchmarks. Needs no Spark."""

from simulator.history.history import NotEmpty, generate
from simulator.history.plan import TooSmall
from simulator.history.truths import Counts, Truth, Truths, read

__all__ = ["Counts", "NotEmpty", "TooSmall", "Truth", "Truths", "generate", "read"]
