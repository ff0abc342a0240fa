"""The attack part: every registered attack in turn, again and again until the time is up."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

from evidence import attacks_floods, attacks_http, attacks_keys, attacks_tasks, attacks_wire
from evidence.model import Campaign, Violation
from evidence.processes import DidNotStart
from evidence.site import ATTACKS, NotJudged, Site, run_attack

MODULES = (attacks_wire, attacks_tasks, attacks_keys, attacks_floods, attacks_http)
"""They register their attacks when they are imported."""


def run_attacks(source: Path, folder: Path, seconds: float, campaign: Campaign, only: Sequence[str] = ()) -> None:
    """All attacks in an order of the seed, the quick ones first, and again while there is time; `only` these, once."""
    dice = random.Random(f"attacks {campaign.seed}")
    chosen = [one for name, one in ATTACKS.items() if not only or name in only]
    campaign.attacks_known = len(ATTACKS)
    site = Site(source, folder)
    end = time.monotonic() + seconds
    try:
        site.start({one.where for one in chosen})
        quick, slow = [one for one in chosen if not one.slow], [one for one in chosen if one.slow]
        while not campaign.attacks or (time.monotonic() < end and not only):
            for one in (*dice.sample(quick, len(quick)), *dice.sample(slow, len(slow))):
                if not campaign.attacks or only or time.monotonic() < end:
                    campaign.attacks.append(run_attack(site, one, campaign))
    except (DidNotStart, NotJudged) as error:
        campaign.extra.append(Violation("CURVE-3", str(error), judged=False))
    finally:
        site.stop()
