"""What the simulation found between Helens and agents, told in the fewest words that show it."""

from __future__ import annotations

from scale0.config import CheckDefinition, Reaction
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.deduplication import Spools
from scale0.monitoring.helen.core.evaluation import IncomingResult
from scale0.monitoring.helen.core.notifications import GIVE_UP_SECONDS
from scale0.monitoring.protocol.results import CheckFinding, State
from tests.unit.monitoring.evaluation_world import World

CHECK = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",))
PAGER = Reaction(name="pager", type="webhook", url="http://pager.example/")


def test_two_changes_of_one_moment_are_two_notices():
    # A Helen who slept finds all that came meanwhile in one turn, and dates it alike.
    world = World(checks=(CHECK,), handlers=(PAGER,))
    effects = Effects()
    states: tuple[State, ...] = ("critical", "warning", "critical")
    for number, state in enumerate(states, start=1):
        answered = IncomingResult("disk", CheckFinding(state), f"s:{number}", world.wall, True)
        world.evaluation.process_result("web-1", {}, answered, world.now, effects)
    world.finish(effects)
    assert [state for _, state in world.told()] == ["critical", "warning", "critical"]


def test_a_wall_clock_that_jumps_by_a_day_gives_up_no_notice():
    world = World(checks=(CHECK,), handlers=(PAGER,))
    world.queue_is_up = False
    world.result("critical")
    world.wait(5.0, wall=5.0 + 2 * GIVE_UP_SECONDS)
    world.queue_is_up = True
    world.wait(60.0)
    assert world.told() == [("pager", "critical")]
    assert not world.kinds("notice.dropped")


def test_an_agent_that_started_often_while_nobody_heard_it_is_heard_once():
    # Twenty runs of it left a result each; they come together, and again because the acknowledgement was lost.
    spools, now = Spools(), Now(1.0, 1_000_000_000.0)
    names = [f"run-{number}" for number in range(20)]
    assert all(spools.add("web-1", name, 1, now) for name in names)
    assert not any(spools.add("web-1", name, 1, now) for name in names)
