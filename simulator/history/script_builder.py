"""From a plan to a script: everything that happens is decided here, by the seed.

Lives here: the order of planting. Never here: events. Invariant: the same plan makes the same script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from simulator.history.calendar import Calendar
from simulator.history.script import Script
from simulator.history.script_checks import plant_checks
from simulator.history.script_clients import plant_clients
from simulator.history.script_sources import plant_sources

if TYPE_CHECKING:
    from simulator.history.plan import Plan

PLANTING: Final = 1
"""The stream of chance that planting uses; the makers of events have others."""


def plant(plan: Plan) -> Script:
    """Decide. TooSmall if there is no room for all that was asked for."""
    dice = np.random.Generator(np.random.PCG64([plan.seed, PLANTING]))
    calendar = Calendar(plan.start_us, plan.end_us, dice)
    sources = plant_sources(plan, calendar, dice)
    clients = plant_clients(plan, calendar, dice)
    monitoring = plant_checks(plan, calendar, dice)
    return Script(
        plan=plan,
        boots=sources.boots,
        steps=sources.steps,
        backends=clients.backends,
        releases=clients.releases,
        schedule=monitoring.schedule,
        episodes=monitoring.episodes,
        downtimes=monitoring.downtimes,
        absences=monitoring.absences,
        fillings=monitoring.fillings,
        truths=(*sources.truths, *clients.truths, *monitoring.truths),
    )
