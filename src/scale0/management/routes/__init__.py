"""The routes, a list of handlers for each part.

To add a part: a module with a list `HANDLERS`, and its name here. What must run as long as the server does is a
function of (settings, network, sampler) that gives an async context manager, in `LIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from litestar.handlers import HTTPRouteHandler

from scale0.management import readings
from scale0.management.routes import (
    brokers,
    clients,
    configuration,
    feed,
    metrics,
    overview,
    public,
    quiet,
    session,
    tasks,
    tokens,
    warehouse,
    watching,
)

ROUTES: Final[tuple[Sequence[HTTPRouteHandler], ...]] = (
    session.HANDLERS,
    overview.HANDLERS,
    brokers.HANDLERS,
    clients.HANDLERS,
    tasks.HANDLERS,
    configuration.HANDLERS,
    watching.HANDLERS,
    quiet.HANDLERS,
    tokens.HANDLERS,
    feed.HANDLERS,
    warehouse.HANDLERS,
    metrics.HANDLERS,
    public.HANDLERS,
)
LIVES: Final[tuple[Callable[..., Any], ...]] = (readings.living,)
