"""The Majordomo protocols of RFC 7, 8, 9 and 18, both ends.

Lives here: frames to messages and pure machines. Never here: a socket, a clock, or another protocol.
Invariant: what a foreign peer sends is answered or dropped, and never raises past the machine.
"""
