"""The Majordomo protocols of RFC 7, 8, 9 and 18, as a broker speaks them.

Lives here: frames to messages and pure machines. Never here: a socket, a clock, or another protocol.
Invariant: what a foreign peer sends is answered or dropped, and never raises past the machine.

Reading order: `frames` (what is on the wire, and how the dialect is told apart), `desk` (what is needed of a broker),
`titanic` (requests that are kept), `clients`, `workers`, `machine` (the four headers, joined).
`compat/majordomo/broker_adapter.py` is the desk of our own broker, `compat/titanic/stored_requests.py` its safe.
"""
