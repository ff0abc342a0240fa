"""The simulated world, and doubles that users can test with.

Lives here: virtual time, seeded faults, checkers. Never here: a real socket or a real clock.
Invariant: the same seed gives the same run.
"""
