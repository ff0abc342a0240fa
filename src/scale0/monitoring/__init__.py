"""Monitoring: the agent and Helen, their line protocol, checks, schedules and states.

Invariant: a check's state changes only by a result, or because none arrived before its deadline.
"""
