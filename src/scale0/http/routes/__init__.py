"""The routes: a list of handlers for each subject. A new module adds its list `HANDLERS` to `ROUTES`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litestar.handlers import HTTPRouteHandler

from scale0.http.routes import (
    access,
    brokers,
    clients,
    configuration,
    events,
    monitoring,
    overview,
    public,
    silences,
    tasks,
    warehouse,
)

ROUTES: Final[tuple[Sequence[HTTPRouteHandler], ...]] = (
    access.SESSION_HANDLERS,
    overview.HANDLERS,
    brokers.HANDLERS,
    clients.HANDLERS,
    tasks.HANDLERS,
    configuration.HANDLERS,
    monitoring.HANDLERS,
    silences.HANDLERS,
    access.TOKEN_HANDLERS,
    events.HANDLERS,
    warehouse.HANDLERS,
    public.HANDLERS,
)
