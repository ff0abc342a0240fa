"""Notifications: sent through the queue, once, after the commit, and not while suppressed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.config import CheckDefinition, Downtime, Flapping, NotificationHandler, Silence
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.monitored_agent import CONFIG_ROW
from scale0.monitoring.helen.core.notifications import (
    GIVE_UP_SECONDS,
    MAX_NOTIFICATIONS,
    MAX_SUBMITS,
    Notification,
    Outbox,
    notification_for,
)
from scale0.storage.check_rows import PutCheckState, PutNotice, ReadNotices
from tests.fakes.simulated_helen import WALL, SimulatedHelen, configured_helen

PAGER = NotificationHandler(name="pager", type="webhook", url="http://h/")
DISK = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",))
HEAL = NotificationHandler(name="heal", type="task", method="restart")


@pytest.fixture
def helen() -> SimulatedHelen:
    return configured_helen(checks=(DISK,), handlers=(PAGER,))


# Promise: CHECK-12
def test_a_problem_and_its_end_are_notified_once_each(helen: SimulatedHelen):
    for state in ("ok", "critical", "critical", "critical", "ok", "ok"):
        helen.result(state, message=f"it is {state}")
        helen.pass_time(60.0)
    assert helen.queue.sent() == [("pager", "critical"), ("pager", "ok")]
    problem, recovery = helen.queue.notices()
    assert (problem["kind"], problem["message"], problem["previous"]) == ("problem", "it is critical", "ok")
    assert (recovery["kind"], recovery["previous"], recovery["incident"]) == (
        "recovery",
        "critical",
        problem["incident"],
    )
    sent = helen.recorded("notice.sent")
    assert [(event["state"], event["data"]["task"]) for event in sent] == [("critical", "t-0"), ("ok", "t-1")]
    assert helen.store.read(ReadNotices("", 9)) == ()


# Promise: CHECK-12
@pytest.mark.parametrize(("notified", "at"), [("critical", 97.0), ("ok", 97.0)])
def test_a_result_is_notified_again_after_another_helen_notified_of_an_older_one(notified: str, at: float):
    def id_after(notified: str, at: float) -> str:
        state = CheckState(state="unknown", at=95.0, ref="s:1", notified=notified, notified_at=at)
        return notification_for("pager", ("web-1", "disk"), state, {}, "", 98.0).id

    assert id_after(notified, at) != id_after("ok", 60.0)
    assert id_after(notified, at) == id_after(notified, at)


def test_the_task_has_the_handlers_options_and_the_notices_id_as_its_key(helen: SimulatedHelen):
    helen.result("critical")
    (task,) = helen.queue.tasks
    assert task.method == "helen.notify"
    assert task.options == {"key": task.id, "max_attempts": 5, "backoff": 10.0, "timeout": 30.0}
    assert json.loads(task.params)["handler"] == "pager"


def test_soft_problems_are_not_notified():
    helen = configured_helen(
        checks=(CheckDefinition(name="disk", max_attempts=3, handlers=("pager",)),), handlers=(PAGER,)
    )
    for state in ("critical", "critical", "ok", "critical", "ok"):
        helen.result(state)
    assert helen.queue.sent() == []


def test_a_handler_gets_only_its_states_and_no_recovery_of_an_unsent_problem():
    loud = NotificationHandler(name="loud", type="webhook", url="http://h/", states=("critical", "ok"))
    all_ = NotificationHandler(name="all", type="webhook", url="http://h/")
    helen = configured_helen(
        checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("loud", "all")),), handlers=(loud, all_)
    )
    for state in ("warning", "ok", "warning", "critical", "ok"):
        helen.result(state)
        helen.pass_time(60.0)
    assert [one for one in helen.queue.sent() if one[0] == "loud"] == [("loud", "critical"), ("loud", "ok")]
    assert [state for name, state in helen.queue.sent() if name == "all"] == [
        "warning",
        "ok",
        "warning",
        "critical",
        "ok",
    ]


# Promise: CHECK-12
def test_nothing_is_submitted_before_it_is_stored(helen: SimulatedHelen):
    effects = Effects()
    helen.add_result(effects, "critical")
    helen.evaluation.settle(effects)
    assert effects.asks == []
    assert len(effects.deferred) == 1
    assert any(isinstance(write, PutNotice) for write in effects.writes)
    helen.end(effects)
    assert helen.queue.sent() == [("pager", "critical")]


# Promise: CHECK-12
def test_a_notice_survives_a_crash_and_is_one_task(helen: SimulatedHelen):
    helen.queue.is_up = False
    helen.result("critical")
    assert len(helen.queue.submits) == 1
    helen.restart()
    helen.queue.is_up = True
    helen.pass_time(5.0)
    helen.restart()
    helen.pass_time(5.0)
    assert helen.queue.sent() == [("pager", "critical")]
    assert len(helen.recorded("notice.sent")) == 1


# Promise: CHECK-12
def test_a_queue_that_is_away_is_asked_again_with_longer_pauses_and_given_up_after_a_day():
    check = CheckDefinition(name="disk", max_attempts=1, handlers=("heal",))
    helen = configured_helen(checks=(check,), handlers=(HEAL,))
    helen.queue.is_up = False
    helen.result("critical")
    helen.pass_time(16.0)
    assert len(helen.queue.submits) == 5
    helen.pass_time(GIVE_UP_SECONDS / 2)
    helen.pass_time(GIVE_UP_SECONDS / 2 + 60)
    (dropped,) = helen.recorded("notice.dropped")
    assert dropped["data"] == {"handler": "heal", "reason": "the queue did not accept it"}
    assert helen.store.read(ReadNotices("", 9)) == ()


# Promise: CHECK-11
@pytest.mark.parametrize(
    ("suppression", "cause"),
    [
        ({"silences": (Silence(name="s", ends=WALL + 600),)}, "silence s"),
        ({"downtimes": (Downtime(name="d", starts=WALL - 1, ends=WALL + 600),)}, "downtime d"),
    ],
)
def test_what_is_suppressed_is_recorded_and_notified_when_the_suppression_ends(suppression, cause):
    helen = configured_helen(checks=(DISK,), handlers=(PAGER,), **suppression)
    helen.result("critical")
    (change,) = helen.recorded("check.state_changed")
    assert change["data"]["suppressed"] == [cause]
    (opened,) = helen.recorded("incident.opened")
    assert opened["data"]["suppressed"] == [cause]
    assert helen.check()["suppressed"] == [cause]
    helen.pass_time(300.0)
    helen.restart()
    helen.pass_time(299.0)
    assert helen.queue.sent() == []
    helen.pass_time(2.0)
    assert helen.queue.sent() == [("pager", "critical")]
    assert helen.check()["suppressed"] == []


# Promise: CHECK-11
def test_what_recovered_while_it_was_suppressed_is_never_notified():
    helen = configured_helen(checks=(DISK,), handlers=(PAGER,), silences=(Silence(name="s", ends=WALL + 600),))
    helen.result("critical")
    helen.pass_time(60.0)
    helen.result("ok")
    helen.pass_time(1000.0)
    assert helen.queue.sent() == []


# Promise: CHECK-11
def test_a_recovery_waits_for_the_end_of_a_silence_if_the_problem_was_notified(helen: SimulatedHelen):
    helen.result("critical")
    helen.define(checks=(DISK,), handlers=(PAGER,), silences=(Silence(name="s"),))
    helen.pass_time(60.0)
    helen.result("ok")
    assert helen.queue.sent() == [("pager", "critical")]
    helen.define(checks=(DISK,), handlers=(PAGER,))
    assert helen.queue.sent() == [("pager", "critical"), ("pager", "ok")]


def test_a_silence_that_is_taken_away_lets_the_notice_out():
    helen = configured_helen(checks=(DISK,), handlers=(PAGER,), silences=(Silence(name="s"),))
    helen.result("critical")
    helen.pass_time(5000.0)
    assert helen.queue.sent() == []
    helen.define(checks=(DISK,), handlers=(PAGER,))
    assert helen.queue.sent() == [("pager", "critical")]


# Promise: CHECK-11
def test_a_dependency_that_is_down_suppresses_until_the_next_result_after_it():
    ping = CheckDefinition(name="ping", max_attempts=1, handlers=("pager",))
    disk = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",), depends_on=("ping",))
    helen = configured_helen(checks=(ping, disk), handlers=(PAGER,))
    helen.result("critical", check="ping")
    helen.result("critical")
    assert [one["check"] for one in helen.queue.notices()] == ["ping"]
    helen.pass_time(60.0)
    helen.result("ok", check="ping")
    assert helen.queue.sent() == [("pager", "critical"), ("pager", "ok")]
    helen.result("critical")
    assert [one["check"] for one in helen.queue.notices()] == ["ping", "ping", "disk"]


# Promise: CHECK-11
def test_a_flapping_check_is_suppressed_if_configured_and_notified_when_it_settles():
    check = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",), flapping=Flapping(suppress=True))
    helen = configured_helen(checks=(check,), handlers=(PAGER,))
    for _ in range(20):
        for state in ("ok", "critical"):
            helen.result(state)
            helen.pass_time(60.0)
    count = len(helen.queue.sent())
    assert count < 15
    assert helen.check()["suppressed"] == ["flapping"]
    for _ in range(20):
        helen.result("critical")
        helen.pass_time(60.0)
    assert not helen.check()["flapping"]
    assert helen.queue.sent()[-1] == ("pager", "critical")


# Promise: CHECK-15
def test_a_task_heals_and_the_check_is_run_again_behind_it():
    helen = configured_helen(
        checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("heal",)),), handlers=(HEAL,)
    )
    helen.result("critical")
    heal, recheck = helen.queue.tasks
    assert (heal.method, json.loads(heal.params)[0]["agent"]) == ("restart", "web-1")
    assert (recheck.method, json.loads(recheck.params)) == ("helen.recheck", {"agent": "web-1", "check": "disk"})
    assert recheck.options == {"key": heal.id + ":recheck", "after": ["t-0"]}
    helen.pass_time(60.0)
    helen.result("ok")
    assert len(helen.queue.tasks) == 2
    assert helen.store.read(ReadNotices("", 9)) == ()


def test_given_params_are_a_tasks_params_and_checking_again_may_be_off():
    handler = NotificationHandler(
        name="heal", type="task", method="restart", params={"unit": "nginx"}, check_again=False
    )
    helen = configured_helen(
        checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("heal",)),), handlers=(handler,)
    )
    helen.result("critical")
    (task,) = helen.queue.tasks
    assert json.loads(task.params) == {"unit": "nginx"}


# Promise: CHECK-15
def test_a_crash_between_the_task_and_its_recheck_loses_neither():
    helen = configured_helen(
        checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("heal",)),), handlers=(HEAL,)
    )
    effects = Effects()
    helen.add_result(effects, "critical")
    helen.evaluation.settle(effects)
    helen.store.commit(effects.writes)
    later = Effects()
    effects.deferred[0](helen.now, later)
    (submit,) = later.asks
    helen.queue.tasks.append(submit)
    last = Effects()
    submit.then("t-0", helen.now, last)
    helen.evaluation.settle(last)
    helen.store.commit(last.writes)
    helen.restart()
    helen.pass_time(5.0)
    assert [task.method for task in helen.queue.tasks] == ["restart", "helen.recheck"]


# Promise: CHECK-13
def test_over_the_limit_the_rest_is_one_summary_when_the_period_ends():
    few = NotificationHandler(name="pager", type="webhook", url="http://h/", limit=2, period=600.0)
    helen = configured_helen(checks=(DISK,), handlers=(few,))
    for number in range(30):
        helen.result("critical", agent=f"web-{number:02}")
    assert len(helen.queue.notices()) == 2
    helen.restart()
    helen.pass_time(599.0)
    assert len(helen.queue.notices()) == 2
    helen.pass_time(2.0)
    summary = helen.queue.notices()[-1]
    assert (summary["kind"], summary["dropped"], summary["states"]) == ("summary", 28, {"critical": 28})
    assert summary["checks"][0] == "web-02/disk"
    assert len(summary["checks"]) == 20
    (dropped,) = helen.recorded("notice.dropped")
    assert (dropped["code"], dropped["data"]) == (28, {"handler": "pager", "reason": "limit"})
    helen.result("critical", agent="web-99")
    assert helen.queue.notices()[-1]["agent"] == "web-99"


# Promise: CHECK-13
def test_tasks_over_the_limit_are_dropped_and_counted():
    few = NotificationHandler(name="heal", type="task", method="restart", limit=1, check_again=False)
    helen = configured_helen(
        checks=(CheckDefinition(name="disk", max_attempts=1, handlers=("heal",)),), handlers=(few,)
    )
    for number in range(3):
        helen.result("critical", agent=f"web-{number}")
    assert len(helen.queue.tasks) == 1
    assert [event["identity"] for event in helen.recorded("notice.dropped")] == ["web-1", "web-2"]


def test_a_handler_that_is_gone_takes_its_notices_with_it(helen: SimulatedHelen):
    helen.queue.is_up = False
    helen.result("critical")
    helen.define(checks=(CheckDefinition(name="disk", max_attempts=1),))
    helen.pass_time(60.0)
    (dropped,) = helen.recorded("notice.dropped")
    assert dropped["data"]["reason"] == "unknown handler"
    assert helen.store.read(ReadNotices("", 9)) == ()


def notice(number: int) -> Notification:
    return Notification(id=f"n-{number}", handler="pager", agent="a", check="c", state="critical", created=WALL)


# Promise: CHECK-13
def test_the_outbox_is_bounded_and_so_is_what_it_asks_at_once():
    outbox, helen, effects = Outbox(()), SimulatedHelen(evaluates=True), Effects()
    outbox.configure({"pager": NotificationHandler(name="pager", type="webhook", url="http://h/", limit=10**9)})
    for number in range(MAX_NOTIFICATIONS + 5):
        outbox.put(notice(number), helen.now, effects)
    assert (len(outbox), outbox.dropped) == (MAX_NOTIFICATIONS, 5)
    outbox.put(notice(0), helen.now, effects)
    assert outbox.dropped == 5
    outbox.settle(effects)
    (submit,) = effects.deferred
    later = Effects()
    submit(helen.now, later)
    assert len(later.asks) == MAX_SUBMITS
    done: list[Any] = list(later.asks)
    out = Effects()
    for ask in done:
        ask.then("t-1", helen.now, out)
    assert len(outbox) == MAX_NOTIFICATIONS - MAX_SUBMITS
    assert outbox.sent == MAX_SUBMITS


# Promise: CHECK-12
def test_notifications_wait_while_the_handlers_are_unknown(helen: SimulatedHelen):
    helen.queue.is_up = False
    helen.result("critical")
    # Another version wrote the configuration: this one cannot read it, and is told again later.
    helen.store.commit([PutCheckState("", CONFIG_ROW, b'{"checks":[{"name":"disk","of_a_later_version":1}]}')])
    helen.queue.is_up = True
    helen.restart()
    helen.pass_time(5.0)
    assert not helen.evaluation.configured
    assert helen.queue.sent() == []
    assert helen.recorded("notice.dropped") == []
    helen.define(checks=(DISK,), handlers=(PAGER,))
    helen.pass_time(5.0)
    assert helen.queue.sent() == [("pager", "critical")]
