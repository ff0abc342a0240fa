"""Notifications: sent through the queue, once, after the commit, and not while suppressed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.config import CheckDefinition, Downtime, Flapping, Reaction, Silence
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.monitored_agent import CONFIG_ROW
from scale0.monitoring.helen.core.notifications import (
    GIVE_UP_SECONDS,
    MAX_NOTIFICATIONS,
    MAX_SUBMITS,
    Notification,
    Outbox,
)
from scale0.storage.check_rows import PutCheckState, PutNotice, ReadNotices
from tests.unit.monitoring.evaluation_world import START, World

PAGER = Reaction(name="pager", type="webhook", url="http://h/")
DISK = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",))
HEAL = Reaction(name="heal", type="task", method="restart")


# Promise: CHECK-12
def test_a_problem_and_its_end_are_told_once_each():
    world = World(checks=(DISK,), handlers=(PAGER,))
    for state in ("ok", "critical", "critical", "critical", "ok", "ok"):
        world.result(state, message=f"it is {state}")
        world.wait(60.0)
    assert world.told() == [("pager", "critical"), ("pager", "ok")]
    problem, recovery = world.notices()
    assert (problem["kind"], problem["message"], problem["previous"]) == ("problem", "it is critical", "ok")
    assert (recovery["kind"], recovery["previous"], recovery["incident"]) == (
        "recovery",
        "critical",
        problem["incident"],
    )
    sent = world.kinds("notice.sent")
    assert [(event["state"], event["data"]["task"]) for event in sent] == [("critical", "t-0"), ("ok", "t-1")]
    assert world.store.read(ReadNotices("", 9)) == ()


def test_the_task_has_the_handlers_options_and_the_notices_id_as_its_key():
    world = World(checks=(DISK,), handlers=(PAGER,))
    world.result("critical")
    (task,) = world.tasks
    assert task.method == "helen.notify"
    assert task.options == {"key": task.id, "max_attempts": 5, "backoff": 10.0, "timeout": 30.0}
    assert json.loads(task.params)["handler"] == "pager"


def test_soft_problems_are_not_told():
    world = World(checks=(CheckDefinition(name="disk", max_attempts=3, handlers=("pager",)),), handlers=(PAGER,))
    for state in ("critical", "critical", "ok", "critical", "ok"):
        world.result(state)
    assert world.told() == []


def test_a_handler_hears_only_its_states_and_no_recovery_of_what_it_never_heard():
    loud = Reaction(name="loud", type="webhook", url="http://h/", states=("critical", "ok"))
    all_ = Reaction(name="all", type="webhook", url="http://h/")
    world = World(
        checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("loud", "all")),), handlers=(loud, all_)
    )
    for state in ("warning", "ok", "warning", "critical", "ok"):
        world.result(state)
        world.wait(60.0)
    assert [one for one in world.told() if one[0] == "loud"] == [("loud", "critical"), ("loud", "ok")]
    assert [state for name, state in world.told() if name == "all"] == ["warning", "ok", "warning", "critical", "ok"]


# Promise: CHECK-12
def test_nothing_is_submitted_before_it_is_stored():
    world = World(checks=(DISK,), handlers=(PAGER,))
    effects = Effects()
    world.take(effects, "critical")
    world.evaluation.settle(effects)
    assert effects.asks == []
    assert len(effects.deferred) == 1
    assert any(isinstance(write, PutNotice) for write in effects.writes)
    world.finish(effects)
    assert world.told() == [("pager", "critical")]


# Promise: CHECK-12
def test_a_notice_survives_a_crash_and_is_one_task():
    world = World(checks=(DISK,), handlers=(PAGER,))
    world.queue_is_up = False
    world.result("critical")
    assert len(world.submits) == 1
    world.restart()
    world.queue_is_up = True
    world.wait(5.0)
    world.restart()
    world.wait(5.0)
    assert world.told() == [("pager", "critical")]
    assert len(world.kinds("notice.sent")) == 1


# Promise: CHECK-12
def test_a_queue_that_is_away_is_asked_again_with_longer_pauses_and_given_up_after_a_day():
    world = World(checks=(DISK,), handlers=(PAGER,))
    world.queue_is_up = False
    world.result("critical")
    world.wait(16.0)
    assert len(world.submits) == 5
    world.wait(GIVE_UP_SECONDS / 2)
    world.wait(GIVE_UP_SECONDS / 2 + 60)
    (dropped,) = world.kinds("notice.dropped")
    assert dropped["data"] == {"handler": "pager", "reason": "the queue did not accept it"}
    assert world.store.read(ReadNotices("", 9)) == ()


# Promise: CHECK-11
@pytest.mark.parametrize(
    ("suppression", "cause"),
    [
        ({"silences": (Silence(name="s", ends=START + 600),)}, "silence s"),
        ({"downtimes": (Downtime(name="d", starts=START - 1, ends=START + 600),)}, "downtime d"),
    ],
)
def test_what_is_suppressed_is_recorded_and_told_when_the_suppression_ends(suppression, cause):
    world = World(checks=(DISK,), handlers=(PAGER,), **suppression)
    world.result("critical")
    (change,) = world.kinds("check.state_changed")
    assert change["data"]["suppressed"] == [cause]
    (opened,) = world.kinds("incident.opened")
    assert opened["data"]["suppressed"] == [cause]
    assert world.check()["suppressed"] == [cause]
    world.wait(300.0)
    world.restart()
    world.wait(299.0)
    assert world.told() == []
    world.wait(2.0)
    assert world.told() == [("pager", "critical")]
    assert world.check()["suppressed"] == []


# Promise: CHECK-11
def test_what_recovered_while_it_was_suppressed_is_never_told():
    world = World(checks=(DISK,), handlers=(PAGER,), silences=(Silence(name="s", ends=START + 600),))
    world.result("critical")
    world.wait(60.0)
    world.result("ok")
    world.wait(1000.0)
    assert world.told() == []


# Promise: CHECK-11
def test_a_recovery_waits_for_the_end_of_a_silence_if_the_problem_was_told():
    world = World(checks=(DISK,), handlers=(PAGER,))
    world.result("critical")
    world.configure(checks=(DISK,), handlers=(PAGER,), silences=(Silence(name="s"),))
    world.wait(60.0)
    world.result("ok")
    assert world.told() == [("pager", "critical")]
    world.configure(checks=(DISK,), handlers=(PAGER,))
    assert world.told() == [("pager", "critical"), ("pager", "ok")]


def test_a_silence_that_is_taken_away_lets_the_notice_out():
    world = World(checks=(DISK,), handlers=(PAGER,), silences=(Silence(name="s"),))
    world.result("critical")
    world.wait(5000.0)
    assert world.told() == []
    world.configure(checks=(DISK,), handlers=(PAGER,))
    assert world.told() == [("pager", "critical")]


# Promise: CHECK-11
def test_a_dependency_that_is_down_suppresses_until_the_next_result_after_it():
    ping = CheckDefinition(name="ping", max_attempts=1, handlers=("pager",))
    disk = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",), depends_on=("ping",))
    world = World(checks=(ping, disk), handlers=(PAGER,))
    world.result("critical", check="ping")
    world.result("critical")
    assert [one["check"] for one in world.notices()] == ["ping"]
    world.wait(60.0)
    world.result("ok", check="ping")
    assert world.told() == [("pager", "critical"), ("pager", "ok")]
    world.result("critical")
    assert [one["check"] for one in world.notices()] == ["ping", "ping", "disk"]


# Promise: CHECK-11
def test_a_flapping_check_is_silent_if_it_was_asked_for_and_told_when_it_settles():
    check = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",), flapping=Flapping(suppress=True))
    world = World(checks=(check,), handlers=(PAGER,))
    for _ in range(20):
        for state in ("ok", "critical"):
            world.result(state)
            world.wait(60.0)
    told = len(world.told())
    assert told < 15
    assert world.check()["suppressed"] == ["flapping"]
    for _ in range(20):
        world.result("critical")
        world.wait(60.0)
    assert not world.check()["flapping"]
    assert world.told()[-1] == ("pager", "critical")


# Promise: CHECK-15
def test_a_task_heals_and_the_check_is_run_again_behind_it():
    world = World(checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("heal",)),), handlers=(HEAL,))
    world.result("critical")
    heal, recheck = world.tasks
    assert (heal.method, json.loads(heal.params)[0]["agent"]) == ("restart", "web-1")
    assert (recheck.method, json.loads(recheck.params)) == ("helen.recheck", {"agent": "web-1", "check": "disk"})
    assert recheck.options == {"key": heal.id + ":recheck", "after": ["t-0"]}
    world.wait(60.0)
    world.result("ok")
    assert len(world.tasks) == 2
    assert world.store.read(ReadNotices("", 9)) == ()


def test_given_params_are_a_tasks_params_and_checking_again_may_be_off():
    handler = Reaction(name="heal", type="task", method="restart", params={"unit": "nginx"}, check_again=False)
    world = World(checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("heal",)),), handlers=(handler,))
    world.result("critical")
    (task,) = world.tasks
    assert json.loads(task.params) == {"unit": "nginx"}


# Promise: CHECK-15
def test_a_crash_between_the_task_and_its_recheck_loses_neither():
    world = World(checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("heal",)),), handlers=(HEAL,))
    effects = Effects()
    world.take(effects, "critical")
    world.evaluation.settle(effects)
    world.store.commit(effects.writes)
    later = Effects()
    effects.deferred[0](world.now, later)
    (submit,) = later.asks
    world.tasks.append(submit)
    last = Effects()
    submit.then("t-0", world.now, last)
    world.evaluation.settle(last)
    world.store.commit(last.writes)
    world.restart()
    world.wait(5.0)
    assert [task.method for task in world.tasks] == ["restart", "helen.recheck"]


# Promise: CHECK-13
def test_over_the_limit_the_rest_is_told_in_one_when_the_period_ends():
    few = Reaction(name="pager", type="webhook", url="http://h/", limit=2, period=600.0)
    world = World(checks=(DISK,), handlers=(few,))
    for number in range(30):
        world.result("critical", agent=f"web-{number:02}")
    assert len(world.notices()) == 2
    world.restart()
    world.wait(599.0)
    assert len(world.notices()) == 2
    world.wait(2.0)
    summary = world.notices()[-1]
    assert (summary["kind"], summary["dropped"], summary["states"]) == ("summary", 28, {"critical": 28})
    assert summary["checks"][0] == "web-02/disk"
    assert len(summary["checks"]) == 20
    (dropped,) = world.kinds("notice.dropped")
    assert (dropped["code"], dropped["data"]) == (28, {"handler": "pager", "reason": "limit"})
    world.result("critical", agent="web-99")
    assert world.notices()[-1]["agent"] == "web-99"


# Promise: CHECK-13
def test_tasks_over_the_limit_are_dropped_and_counted():
    few = Reaction(name="heal", type="task", method="restart", limit=1, check_again=False)
    world = World(checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("heal",)),), handlers=(few,))
    for number in range(3):
        world.result("critical", agent=f"web-{number}")
    assert len(world.tasks) == 1
    assert [event["identity"] for event in world.kinds("notice.dropped")] == ["web-1", "web-2"]


def test_a_handler_that_is_gone_takes_its_notices_with_it():
    world = World(checks=(DISK,), handlers=(PAGER,))
    world.queue_is_up = False
    world.result("critical")
    world.configure(checks=(CheckDefinition(name="disk", max_attempts=1),))
    world.wait(60.0)
    (dropped,) = world.kinds("notice.dropped")
    assert dropped["data"]["reason"] == "unknown handler"
    assert world.store.read(ReadNotices("", 9)) == ()


def notice(number: int) -> Notification:
    return Notification(id=f"n-{number}", handler="pager", agent="a", check="c", state="critical", created=START)


# Promise: CHECK-13
def test_the_outbox_is_bounded_and_so_is_what_it_asks_at_once():
    outbox, world, effects = Outbox(()), World(), Effects()
    outbox.configure({"pager": Reaction(name="pager", type="webhook", url="http://h/", limit=10**9)})
    for number in range(MAX_NOTIFICATIONS + 5):
        outbox.put(notice(number), world.now, effects)
    assert (len(outbox), outbox.dropped) == (MAX_NOTIFICATIONS, 5)
    outbox.put(notice(0), world.now, effects)
    assert outbox.dropped == 5
    outbox.settle(effects)
    (submit,) = effects.deferred
    later = Effects()
    submit(world.now, later)
    assert len(later.asks) == MAX_SUBMITS
    done: list[Any] = list(later.asks)
    out = Effects()
    for ask in done:
        ask.then("t-1", world.now, out)
    assert len(outbox) == MAX_NOTIFICATIONS - MAX_SUBMITS
    assert outbox.sent == MAX_SUBMITS


# Promise: CHECK-12
def test_notices_wait_while_nobody_says_which_handlers_there_are():
    world = World(checks=(DISK,), handlers=(PAGER,))
    world.queue_is_up = False
    world.result("critical")
    # Another version wrote the configuration: this one cannot read it, and is told again later.
    world.store.commit([PutCheckState("", CONFIG_ROW, b'{"checks":[{"name":"disk","of_a_later_version":1}]}')])
    world.queue_is_up = True
    world.restart()
    world.wait(5.0)
    assert not world.evaluation.configured
    assert world.told() == []
    assert world.kinds("notice.dropped") == []
    world.configure(checks=(DISK,), handlers=(PAGER,))
    world.wait(5.0)
    assert world.told() == [("pager", "critical")]
