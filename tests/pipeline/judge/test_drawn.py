"""The tables beside the judge of every second, on histories that hypothesis draws.

With holes, rewinds, restarts, silences, late and spooled results, downtimes, and segments that come in a second run.
JUDGE_EXAMPLES says how many are tried (default 5). An example is a run of Spark or two, of seconds each: what fails is
made smaller only if JUDGE_SHRINK is set.

Promise: PIPE-6, PIPE-7
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings

from scale0.pipeline.engine import advance
from tests.pipeline.judge import compare, drawn
from tests.pipeline.judge.computing import FORMULAS, agree, compute, judged, parameters
from tests.pipeline.judge.journals import cut, ordered
from tests.pipeline.judge.seconds import second

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.extended]

EXAMPLES = int(os.environ.get("JUDGE_EXAMPLES", "5"))
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
if os.environ.get("JUDGE_SHRINK"):
    PHASES.append(Phase.shrink)


@given(drawn.histories())
@settings(max_examples=EXAMPLES, phases=PHASES, suppress_health_check=list(HealthCheck))
def test_every_second_is_what_the_judge_says(spark: SparkSession, history: drawn.Drawn):
    """Also flapping, incidents and availability, which are made of the seconds."""
    events = drawn.tell(history).events()
    assert ordered(events)
    last = max(second(row["time"]) for row in events)
    until = max(last - history.before_end, history.begin + 1)
    dice, formula = random.Random(history.seconds), FORMULAS[history.seconds % len(FORMULAS)]
    segments = cut(events, dice, history.cut)
    late = [] if history.late is None else segments[:: history.late]
    event(f"{len(history.networks)} networks, late segments: {bool(late)}, {formula.name}")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        place = Path(folder)
        if history.seconds % 2:
            # Late hours have steps of their own, for the keys that they touch alone.
            patch.setattr(advance, "NEAR_EVENTS", -1)
        for part in ([one for one in segments if one not in late], late):
            if part:
                compute(spark, place, part, until=until, said=parameters(formula))
        verdict = judged(events, until, formula)
        agree(place / "warehouse", verdict)
        assert compare.audit_differences(place / "warehouse", verdict) == []
