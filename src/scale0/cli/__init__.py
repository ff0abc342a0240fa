"""The `scale0` command.

Lives here: words typed to calls made, and answers shown. Never here: what a room below could decide.
Invariant: exit codes are 0 yes, 1 no or unhealthy, 2 wrong usage, 3 not reachable.
"""
