"""What the server reads besides the broker: events of this machine, and the warehouse.

Lives here: where they are, by the settings, and their life. Never here: a route. Invariant: they live as long as the
server does, and every route of one server has the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from scale0.broker.main.http_settings import HttpSettings
from scale0.history.segments.event_reader import empty
from scale0.history.segments.settings import OFF
from scale0.http.events.event_index import places_of
from scale0.http.events.stream import EventStream
from scale0.http.network import BrokerClient
from scale0.http.problem import ApiProblem
from scale0.http.sampler import Sampler
from scale0.http.warehouse import WarehouseReader

WAREHOUSE: Final = "warehouse"
"""In the broker's folder, unless the settings say otherwise."""


class DataSources:
    """Of one server."""

    def __init__(self, settings: HttpSettings) -> None:
        here = Path(settings.data_dir) if settings.data_dir else None
        default = None if here is None else here / WAREHOUSE
        self._feed = (
            None
            if here is None
            else EventStream(places_of(here), segments="" if settings.segments == OFF else settings.segments)
        )
        self.stock = WarehouseReader(Path(settings.warehouse) if settings.warehouse else default)

    @property
    def feed(self) -> EventStream:
        """The events of the broker's machine. Raises `ApiProblem` on another."""
        if self._feed is None:
            step = "start this server there: scale0 management serve --data-dir FOLDER"
            raise ApiProblem(501, "events are on the broker's machine, and this server is not", step)
        return self._feed

    async def warm_up(self) -> None:
        """Import what the first reader would wait for: pyarrow brings pandas along, where that is installed."""
        if self._feed is not None:
            await self._feed.read(lambda _: empty().num_rows)

    async def close(self) -> None:
        """Read nothing more."""
        self.stock.close()
        if self._feed is not None:
            await self._feed.close()


_OF: Final[WeakKeyDictionary[BrokerClient, DataSources]] = WeakKeyDictionary()
"""By the connection to the broker, of which each server has one."""


@asynccontextmanager
async def living(settings: HttpSettings, network: BrokerClient, _: Sampler) -> AsyncIterator[None]:
    """As long as the server runs."""
    _OF[network] = readings = DataSources(settings)
    warming = asyncio.create_task(readings.warm_up())
    try:
        yield
    finally:
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        await readings.close()


def readings_of(network: BrokerClient) -> DataSources:
    """Those of the server that uses this connection."""
    return _OF[network]
