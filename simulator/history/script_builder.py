"""Plans everything that happens in a history, from the seed, and allocates time for it."""

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
"""The random stream of planting; the generators use others."""


def plant(plan: Plan) -> Script:
    """TooSmall if there is not enough time for all truths."""
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
