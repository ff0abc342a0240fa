"""Which ZeroMQ this is.

Lives here: one question to libzmq, for those that may not import it. Never here: a socket.
"""

from __future__ import annotations

import zmq


def libzmq_version() -> str:
    """As libzmq says it, such as 4.3.5."""
    return zmq.zmq_version()
