"""The data that the server reads besides the broker: the events of this machine, and the warehouse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from scale0.broker.main.http_settings import HttpSettings
from scale0.history.segments.event_reader import empty
from scale0.history.segments.settings import OFF
from scale0.http.events.event_index import data_folders
from scale0.http.events.stream import EventStream
from scale0.http.problem import ApiProblem
from scale0.http.warehouse import WarehouseReader

WAREHOUSE: Final = "warehouse"
"""The folder in the broker's data folder, unless the settings name another."""


class DataSources:
    def __init__(self, settings: HttpSettings) -> None:
        data_dir = Path(settings.data_dir) if settings.data_dir else None
        self._events: EventStream | None = None
        if data_dir is not None:
            segments = "" if settings.segments == OFF else settings.segments
            self._events = EventStream(data_folders(data_dir), segments=segments)
        default = None if data_dir is None else data_dir / WAREHOUSE
        self.warehouse = WarehouseReader(Path(settings.warehouse) if settings.warehouse else default)

    @property
    def events(self) -> EventStream:
        """The events of the broker's machine. Raises `ApiProblem` if the server runs on another one."""
        if self._events is None:
            next_ = "start this server there: scale0 management serve --data-dir FOLDER"
            raise ApiProblem(501, "events are stored on the broker's machine; this server runs on another one", next_)
        return self._events

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        warming = asyncio.create_task(self._warm_up())
        try:
            yield
        finally:
            warming.cancel()
            await asyncio.gather(warming, return_exceptions=True)
            self.warehouse.close()
            if self._events is not None:
                await self._events.close()

    async def _warm_up(self) -> None:
        """Import pyarrow (and pandas, if installed) now, so that the first reader does not wait for it."""
        if self._events is not None:
            await self._events.read(lambda _: empty().num_rows)
