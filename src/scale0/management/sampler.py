"""The sampler: how the broker does, second by second.

Lives here: a loop that looks once per SAMPLE_SECONDS, and the last five minutes of what it saw. Never here: anything on
a disk, or a look that a reader causes: readers cost the broker nothing here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from scale0.management.network import Network

SAMPLE_SECONDS: Final = 1.0


class Sampler:
    """The last five minutes."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While this is open, it looks."""
        yield
