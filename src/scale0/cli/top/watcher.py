"""Who looks for `scale0 top`: a thread of its own, so that the screen never waits.

Lives here: looking again and again, over one connection that comes back by itself. Never here: a screen. Invariant: a
look takes at most a tenth of the time, however large the network is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.cli.common import errors
from scale0.cli.common.connection import connect
from scale0.cli.network import snapshot
from scale0.cli.network.listing import DISCOVERY_SECONDS
from scale0.cli.top.frame import TopFrame, frame_of
from scale0.kernel.errors import Scale0Error

if TYPE_CHECKING:
    from scale0.cli.network.snapshot import AdminRights, Snapshot

RESTS: Final = 9
"""Pauses are so many times as long as looks: what a large network costs its broker stays a tenth of the time."""
AWAY_SECONDS: Final = 0.5
"""How soon we look again for a broker that does not answer; finding that out takes seconds itself."""


class BrokerAway(NamedTuple):
    """The broker did not answer; what it says, and what to do."""

    words: str
    next_step: str


Told = Callable[[TopFrame | BrokerAway], None]


class TopWatcher:
    """Looks, and tells of it, until it is stopped."""

    def __init__(self, join: str, right: AdminRights, seconds: float, tell: Told) -> None:
        self._join = join
        self._right = right
        self._seconds = seconds
        self._tell = tell
        self._stopped = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._before: Snapshot | None = None
        # A daemon: whoever quits does not wait for an answer that is not wanted any more.
        self._thread = threading.Thread(target=self._run, name="scale0-top", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._going.set()

    def pause(self, paused: bool) -> None:
        """Leave the broker alone for a while."""
        if paused:
            self._going.clear()
        else:
            self._going.set()

    def _run(self) -> None:
        with connect(self._join, DISCOVERY_SECONDS) as client:
            while not self._stopped.is_set():
                began = time.monotonic()
                try:
                    found = snapshot.look(client, self._right)
                    self._told(frame_of(found, self._before))
                    self._before = found
                    pause = max(self._seconds, RESTS * (time.monotonic() - began))
                except (Scale0Error, OSError) as error:
                    self._before = None
                    trouble = errors.trouble_of(error)
                    self._told(BrokerAway(trouble.message, trouble.next_step))
                    pause = AWAY_SECONDS
                except errors.CommandError as trouble:
                    self._told(BrokerAway(trouble.message, trouble.next_step))
                    pause = AWAY_SECONDS
                self._stopped.wait(pause)
                self._going.wait()

    def _told(self, what: TopFrame | BrokerAway) -> None:
        if not self._stopped.is_set():
            self._tell(what)
