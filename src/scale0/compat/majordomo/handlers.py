"""Majordomo: the speakers of its four headers, joined.

Lives here: which header is whose. Never here: a word of any of them.
"""

from __future__ import annotations

from typing import Generic

from scale0.compat.majordomo.broker_interface import Desk, L
from scale0.compat.majordomo.clients import Clients, Clients02
from scale0.compat.majordomo.frames import CLIENT_01, CLIENT_02, WORKER_01, WORKER_02
from scale0.compat.majordomo.workers import Workers
from scale0.compat.titanic.services import Safe, Titanic


class Majordomo(Generic[L]):
    """RFC 7, 8 and 18 at one desk, and RFC 9 with one safe."""

    __slots__ = ("speakers",)

    def __init__(self, desk: Desk[L], safe: Safe) -> None:
        titanic = Titanic(desk, safe)
        self.speakers: dict[bytes, Clients[L] | Clients02[L] | Workers[L]] = {
            CLIENT_01.header: Clients(CLIENT_01, desk, titanic),
            CLIENT_02.header: Clients02(desk, titanic),
            WORKER_01.header: Workers(WORKER_01, desk),
            WORKER_02.header: Workers(WORKER_02, desk),
        }
        """By the first frame of a message."""
