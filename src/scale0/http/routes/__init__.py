"""The routes, a list of handlers for each part.

To add a part: a module with a list `HANDLERS`, and its name here. What must run as long as the server does is a
function of (settings, network, sampler) that gives an async context manager, in `LIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from litestar.handlers import HTTPRouteHandler

from scale0.http import data_sources
from scale0.http.routes import (
    brokers,
    clients,
    configuration,
    events,
    metrics,
    monitoring,
    overview,
    public,
    session,
    silences,
    tasks,
    tokens,
    warehouse,
)

ROUTES: Final[tuple[Sequence[HTTPRouteHandler], ...]] = (
    session.HANDLERS,
    overview.HANDLERS,
    brokers.HANDLERS,
    clients.HANDLERS,
    tasks.HANDLERS,
    configuration.HANDLERS,
    monitoring.HANDLERS,
    silences.HANDLERS,
    tokens.HANDLERS,
    events.HANDLERS,
    warehouse.HANDLERS,
    metrics.HANDLERS,
    public.HANDLERS,
)
LIVES: Final[tuple[Callable[..., Any], ...]] = (data_sources.living,)
