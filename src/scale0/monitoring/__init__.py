"""Monitoring: the agent and Helen, their line protocol, checks, schedules and states.

Lives here: pure machines that are told the time. Never here: a socket, a clock, or a child process.
Invariant: a check's state changes only by an answer, or by the lack of one past its deadline.
"""
