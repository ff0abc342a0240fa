"""The Majordomo protocols of RFC 7, 8, 9 and 18, as a broker implements them. Invariant: every message from a peer is
answered or dropped, and never raises an exception past the handlers.

Reading order: `frames` (the wire format and detection of the dialect), `clients`, `workers`, `handlers` (the four
headers together). `broker_adapter` connects them to the broker, and `compat/titanic` has the stored requests."""
