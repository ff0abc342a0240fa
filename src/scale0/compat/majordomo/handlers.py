"""Majordomo: the handlers of its four headers."""

from __future__ import annotations

from scale0.compat.majordomo.broker_adapter import MajordomoAdapter
from scale0.compat.majordomo.clients import MajordomoClients, MajordomoClients02
from scale0.compat.majordomo.frames import CLIENT_01, CLIENT_02, WORKER_01, WORKER_02
from scale0.compat.majordomo.workers import MajordomoWorkers
from scale0.compat.titanic.services import Titanic
from scale0.compat.titanic.stored_requests import TaskRequestStore


class Majordomo:
    """RFC 7, 8 and 18 on one broker, and RFC 9 with one request store."""

    def __init__(self, adapter: MajordomoAdapter, safe: TaskRequestStore) -> None:
        titanic = Titanic(adapter, safe)
        self.handlers: dict[bytes, MajordomoClients | MajordomoClients02 | MajordomoWorkers] = {
            CLIENT_01.header: MajordomoClients(CLIENT_01, adapter, titanic),
            CLIENT_02.header: MajordomoClients02(adapter, titanic),
            WORKER_01.header: MajordomoWorkers(WORKER_01, adapter),
            WORKER_02.header: MajordomoWorkers(WORKER_02, adapter),
        }
        """By the first frame of a message."""
