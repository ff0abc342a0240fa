"""Whose clock is wrong, with jumps at the worst moments.

Promise: LIVE-2
"""

from __future__ import annotations

from tests.unit.broker.world import World

JUMP_SECONDS = 3_600.0


def told_off(world: World, who: str) -> list[int]:
    return [said["code"] for command, said, _ in world.hear(who) if command == "DISCONNECTERROR"]


def town() -> World:
    """One worker, and enough clients who tell no time that a judgement waits for a window."""
    world = World()
    for name in ("x", "y"):
        world.say(f"frontend-{name}", "CHECKCONFIG", {"identity": f"frontend-{name}"})
    world.ready("backend-right", "echo")
    return world


def test_a_jump_that_nobody_was_there_to_see_is_not_taken_for_right():
    """Seed 2077200452: the only reading of the window is gone when it is judged, and the clock jumped meanwhile."""
    world = town()
    world.ready("backend-wrong", "echo", time=world.wall + 86_400)
    for name in ("right", "wrong"):
        world.say(f"backend-{name}", "DISCONNECT")
    world.wall += JUMP_SECONDS
    world.pass_time(20)
    for _ in range(3):
        world.ready("backend-right", "echo", time=world.wall - JUMP_SECONDS)
        world.pass_time(2)
        assert told_off(world, "backend-right") == []
    assert "broker.clock_suspect" in world.kinds()


def test_a_jump_between_reading_and_judgement_is_ours():
    world = town()
    world.ready("backend-wrong", "echo", time=world.wall + 86_400)
    world.wall += JUMP_SECONDS
    world.pass_time(1.2)
    assert told_off(world, "backend-right") == []
    assert "broker.clock_suspect" in world.kinds()
    world.wall -= JUMP_SECONDS
    world.pass_time(0.5)
    world.say("backend-wrong", "HEARTBEAT", {"time": world.wall + 86_400})
    world.pass_time(2)
    assert told_off(world, "backend-wrong") == [425], "once our clock is right again, who is wrong is told"
