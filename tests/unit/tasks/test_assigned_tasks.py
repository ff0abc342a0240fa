"""A node's tasks in hand: what it is given, what it says, what it keeps, and what it forgets."""

# Promise: TASK-14
from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scale0.kernel.clock import Now
from scale0.tasks.node import assigned_tasks, messages
from scale0.tasks.node.assigned_tasks import (
    ENDED,
    RUNNING,
    WAITING,
    AssignedTask,
    AssignedTasks,
    CapacityAvailable,
    TasksAssigned,
    TasksStopped,
)
from tests.fakes.examples import examples

NOW = Now(100.0, 1_900_000_000.0)
Said = tuple[str, list[dict[str, Any]]]


@pytest.fixture
def tasks() -> AssignedTasks:
    return AssignedTasks()


def handed(id_: str, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": id_, "method": "m", "params": [1], "attempt": attempt, "timeout": 9, "owner": "b1", **more}


def hear(tasks: AssignedTasks, command: str, *what: Any) -> list[Any]:
    news: list[Any] = []
    tasks.receive_tasks(command, msgspec.json.encode(what), news)
    return news


def give(tasks: AssignedTasks, *given: dict[str, Any]) -> list[AssignedTask]:
    return [job for one in hear(tasks, "TASKS", *given) if isinstance(one, TasksAssigned) for job in one.tasks]


def say(tasks: AssignedTasks, mono: float = 100.0) -> list[Said]:
    return [(command, msgspec.json.decode(body)) for command, body in tasks.take_messages(Now(mono, NOW.wall))]


def running(*keys: tuple[str, int]) -> Said:
    return "TASKSTATUS", [{"id": id_, "attempt": attempt, "status": "running"} for id_, attempt in keys]


def test_a_task_goes_from_tasks_to_tasksok(tasks):
    (job,) = give(tasks, handed("a", 2, params={"x": [1.50, "é"]}))
    assert (job.id, job.attempt, job.method, job.timeout, job.owner) == ("a", 2, "m", 9.0, "b1")
    assert msgspec.json.decode(job.params) == {"x": [1.5, "é"]}
    assert say(tasks) == []
    assert tasks.start([job]) == [job]
    assert say(tasks) == [running(("a", 2))]
    tasks.finish(job, b'{"y":1.50}')
    ((command, body),) = tasks.take_messages(NOW)
    assert (command, body) == ("TASKSDONE", b'[{"id":"a","attempt":2,"result":{"y":1.50}}]'), "as the bytes it came in"
    assert tasks.unfinished == 1
    assert hear(tasks, "TASKSOK", ["a", 2, 200]) == []
    assert (tasks.unfinished, tasks.holds(1_000), say(tasks)) == (0, [], [])


@pytest.mark.parametrize("code", [200, 404, 409, 0])
def test_whatever_the_code_an_acknowledged_result_is_forgotten(tasks: AssignedTasks, code: int):
    (job,) = give(tasks, handed("a"))
    tasks.start([job])
    tasks.fail(job, b'{"code":-32000,"message":"no"}')
    hear(tasks, "TASKSOK", ["a", 1, code])
    tasks.connected()
    assert say(tasks) == []


def test_results_leave_before_what_starts_in_their_place_and_progress_before_results(tasks):
    one, two, three = give(tasks, handed("a"), handed("b"), handed("c"))
    tasks.start([one, two])
    say(tasks)
    tasks.progress(one, 0.2, "early")
    tasks.progress(one, 0.9, "late")
    tasks.finish(one, b"1")
    tasks.fail(two, b'{"code":1}')
    tasks.start([three])
    assert say(tasks) == [
        ("TASKSTATUS", [{"id": "a", "attempt": 1, "status": "running", "progress": 0.9, "note": "late"}]),
        ("TASKSDONE", [{"id": "a", "attempt": 1, "result": 1}, {"id": "b", "attempt": 1, "error": {"code": 1}}]),
        running(("c", 1)),
    ]


def test_a_new_connection_hears_of_what_runs_and_of_every_result_again(tasks):
    one, two, _ = give(tasks, handed("a"), handed("b"), handed("c"))
    tasks.start([one, two])
    tasks.finish(one, b"1")
    say(tasks)
    for _ in range(3):
        assert tasks.holds(1_000) == [("b", 1), ("a", 1), ("c", 1)]
        tasks.connected()
        assert say(tasks) == [("TASKSDONE", [{"id": "a", "attempt": 1, "result": 1}]), running(("b", 1))]
    hear(tasks, "TASKSOK", ["a", 1, 200])
    tasks.connected()
    assert say(tasks) == [running(("b", 1))]


def test_a_cancelled_task_that_waits_never_begins(tasks):
    one, two = give(tasks, handed("a"), handed("b"))
    assert hear(tasks, "TASKSCANCEL", ["a", 1], ["unknown", 1], ["b", 7]) == []
    assert tasks.start([one, two]) == [two]
    assert one.stop
    assert tasks.holds(1_000) == [("b", 1)]


def test_a_cancelled_task_that_runs_is_told_to_stop_and_says_nothing_more(tasks):
    (job,) = give(tasks, handed("a"))
    tasks.start([job])
    say(tasks)
    tasks.progress(job, 0.5, "")
    (stopped,) = hear(tasks, "TASKSCANCEL", ["a", 1])
    assert isinstance(stopped, TasksStopped)
    assert (stopped.tasks, job.stop) == ([job], True)
    tasks.progress(job, 0.6, "")
    tasks.finish(job, b"1")
    tasks.fail(job, b"{}")
    tasks.connected()
    assert (say(tasks), tasks.holds(1_000), tasks.unfinished) == ([], [], 0)


@pytest.mark.parametrize("code", [404, 409])
def test_a_task_that_is_not_ours_any_more_is_stopped(tasks: AssignedTasks, code: int):
    runs, waits = give(tasks, handed("a"), handed("b"))
    tasks.start([runs])
    (stopped,) = hear(tasks, "TASKSOK", ["a", 1, code], ["b", 1, code])
    assert stopped.tasks == [runs]
    assert runs.stop
    assert waits.stop
    assert tasks.start([waits]) == []


def test_a_task_that_is_handed_out_twice_is_run_once(tasks):
    (job,) = give(tasks, handed("a"))
    assert give(tasks, handed("a")) == []
    tasks.start([job])
    assert give(tasks, handed("a")) == []
    tasks.finish(job, b"1")
    assert give(tasks, handed("a")) == []


def test_a_newer_attempt_takes_the_place_of_an_older_one(tasks):
    runs, waits, other = give(tasks, handed("a"), handed("b"), handed("c", 2))
    tasks.start([runs])
    news = hear(tasks, "TASKS", handed("a", 2), handed("b", 3))
    assert [one.tasks for one in news if isinstance(one, TasksStopped)] == [[runs]]
    assert waits.stop
    assert not other.stop
    assert sorted(tasks.holds(1_000)) == [("a", 2), ("b", 3), ("c", 2)]


def test_nothing_begins_beyond_the_bytes_that_may_be_kept():
    tasks = AssignedTasks(max_unconfirmed_bytes=100)
    one, two = give(tasks, handed("a"), handed("b"))
    tasks.start([one, two])
    tasks.finish(one, b"0" * 100)
    assert not tasks.is_full
    tasks.finish(two, b"0")
    assert tasks.is_full
    assert hear(tasks, "TASKSOK", ["b", 1, 200]) == [CapacityAvailable()]
    assert not tasks.is_full
    assert hear(tasks, "TASKSOK", ["a", 1, 200]) == []


def test_large_results_are_said_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages, "MAX_BODY_BYTES", 100)
    monkeypatch.setattr(messages, "MAX_BODY_TASKS", 3)
    tasks = AssignedTasks()
    jobs = give(tasks, *(handed(str(number)) for number in range(8)))
    tasks.start(jobs)
    for job, size in zip(jobs, (60, 60, 500, 10, 10, 10, 10, 10), strict=True):
        tasks.finish(job, b'"%b"' % (b"x" * size))
    said = say(tasks)
    counts = [(command, len(what)) for command, what in said]
    assert counts[:5] == [("TASKSDONE", 1), ("TASKSDONE", 1), ("TASKSDONE", 1), ("TASKSDONE", 3), ("TASKSDONE", 2)]
    assert counts[5:] == [("TASKSTATUS", 3), ("TASKSTATUS", 3), ("TASKSTATUS", 2)]


def test_holds_name_what_runs_first_and_let_go_what_waits_beyond_the_room(tasks):
    jobs = give(tasks, *(handed(f"task-{number}") for number in range(100)))
    tasks.start(jobs[50:52])
    tasks.finish(jobs[51], b"1")
    each = len('["task-50",1],')
    held = tasks.holds(10 * each)
    assert held[:2] == [("task-50", 1), ("task-51", 1)]
    assert len(held) == 10
    assert [job.id for job in tasks.start(jobs)] == [id_ for id_, _ in held[2:]]
    assert tasks.holds(100 * each)[-1] == ("task-51", 1), "the rest was let go"


def test_what_runs_is_not_let_go_though_there_is_no_room(tasks):
    jobs = give(tasks, handed("a"), handed("b"), handed("c"))
    tasks.start(jobs[:1])
    tasks.finish(jobs[0], b"1")
    tasks.start(jobs[1:2])
    assert tasks.holds(0) == []
    assert [job.state for job in jobs] == [ENDED, RUNNING, ENDED]
    tasks.connected()
    assert [what[0]["id"] for _, what in say(tasks)] == ["a", "b"]


def test_a_result_that_nobody_takes_is_said_again_after_a_while(tasks):
    (job,) = give(tasks, handed("a"))
    tasks.start([job])
    assert tasks.deadline() is None
    tasks.finish(job, b"1")
    say(tasks, 100.0)
    times = []
    for mono in range(100, 300):
        tasks.tick(Now(float(mono), 0.0))
        times += [mono for _ in say(tasks, float(mono))]
    assert times[0] <= 100 + 2 * assigned_tasks.RESEND_SECONDS
    assert {later - one for one, later in pairwise(times)} == {assigned_tasks.RESEND_SECONDS}
    hear(tasks, "TASKSOK", ["a", 1, 200])
    tasks.tick(Now(1_000.0, 0.0))
    assert (say(tasks), tasks.deadline()) == ([], None)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"5", b"[5]", b'[{"id":5}]', b'["a",1]', b"[[1,2]]", b"[" * 100_000, b'[["a","1",200]]', b"\xff"],
)
@pytest.mark.parametrize("command", ["TASKS", "TASKSOK", "TASKSCANCEL", "TASKSWHAT"])
def test_what_cannot_be_understood_changes_nothing(tasks: AssignedTasks, command: str, body: bytes):
    (job,) = give(tasks, handed("a"))
    news: list[Any] = []
    tasks.receive_tasks(command, body, news)
    assert (news, job.state, tasks.holds(1_000)) == ([], WAITING, [("a", 1)])


def test_a_bad_task_does_not_cost_the_good_ones(tasks):
    bad: list[Any] = [{"id": "x"}, 5, handed("x", 0), handed("x", -1), handed(""), handed("x" * 129)]
    jobs = give(tasks, handed("a"), *bad, handed("b", timeout=None), handed("c", timeout=-1), handed("d", params=None))
    assert [job.id for job in jobs] == ["a", "b", "c", "d"]
    assert [job.timeout for job in jobs] == [9.0, 3_600.0, 3_600.0, 9.0]
    assert jobs[3].params == b""


def test_a_job_does_not_keep_its_whole_message_in_memory(tasks):
    (job,) = give(tasks, handed("a"))
    assert type(job.params) is bytes


def test_a_result_waits_for_its_owner_and_is_told_to_nobody_else(tasks):
    tasks.set_broker("b1")
    done, runs, waits = give(tasks, handed("done"), handed("runs"), handed("waits"))
    tasks.start([done, runs])
    tasks.finish(done, b"1")
    tasks.set_broker("b2")
    tasks.connected()
    assert say(tasks) == [], "they are b1's"
    assert tasks.holds(1_000) == []
    assert tasks.is_idle, "nothing of b2's is in hand"
    (own,) = give(tasks, handed("own", owner="b2"))
    assert tasks.start([own]) == [own]
    tasks.progress(runs, 0.5, "half")
    assert say(tasks) == [running(("own", 1))]
    hear(tasks, "TASKSOK", ["done", 1, 404])
    tasks.finish(runs, b"2")
    assert say(tasks) == []
    tasks.set_broker("b1")
    assert sorted(tasks.holds(1_000)) == [("done", 1), ("runs", 1), ("waits", 1)]
    tasks.connected()
    ((command, said),) = say(tasks)
    assert (command, {one["id"]: one["result"] for one in said}) == ("TASKSDONE", {"done": 1, "runs": 2})
    hear(tasks, "TASKSOK", ["done", 1, 200], ["runs", 1, 200])
    assert tasks.holds(1_000) == [("waits", 1)]
    assert waits.state == WAITING


def test_results_of_brokers_that_stay_away_stop_nobody_and_are_bounded():
    tasks = AssignedTasks(max_unconfirmed_bytes=10)
    tasks.set_broker("b1")
    jobs = give(tasks, *(handed(str(number)) for number in range(5)))
    tasks.start(jobs)
    tasks.set_broker("b2")
    for job in jobs:
        tasks.finish(job, b'"abc"')
    assert not tasks.is_full, "work for b2 may begin"
    tasks.set_broker("b1")
    tasks.connected()
    ((_, said),) = say(tasks)
    assert [one["id"] for one in said] == ["3", "4"], "the newest that fit"


def test_whoever_gave_a_task_is_told_of_it_whatever_its_name(tasks):
    """The address stayed and the broker behind it did not, or a group owns its tasks."""
    tasks.set_broker("b1")
    (job,) = give(tasks, handed("a", owner="group"))
    tasks.start([job])
    tasks.finish(job, b"1")
    assert [command for command, _ in say(tasks)] == ["TASKSDONE", "TASKSTATUS"]
    tasks.set_broker("b2")
    tasks.connected()
    assert say(tasks) == []
    give(tasks, handed("other", owner="group"))
    assert [command for command, _ in say(tasks)] == ["TASKSDONE"]


@pytest.mark.parametrize(("owner", "broker"), [("", "b2"), ("b1", ""), (None, "b2")])
def test_what_belongs_to_nobody_known_is_told_to_anybody(tasks: AssignedTasks, owner: str | None, broker: str):
    tasks.set_broker("b1")
    (job,) = give(tasks, handed("a", owner=owner))
    tasks.start([job])
    tasks.set_broker(broker)
    tasks.finish(job, b"1")
    assert [command for command, _ in say(tasks)] == ["TASKSDONE"]


class AnyOrder(RuleBasedStateMachine):
    """Whatever the order of hand-outs, results, cancellations, reconnects and acknowledgements, no result is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = AssignedTasks(max_unconfirmed_bytes=40)
        self.jobs: dict[tuple[str, int], AssignedTask] = {}
        self.ended: set[tuple[str, int]] = set()
        """Finished, and not cancelled before that."""
        self.taken: set[tuple[str, int]] = set()
        self.cancelled: set[tuple[str, int]] = set()
        self.arrived: set[tuple[str, int]] = set()
        """Results that were said since the line came up."""
        self.announced: set[tuple[str, int]] = set()
        self.up = False

    @initialize()
    def connect(self) -> None:
        self.come_up()

    @rule(number=st.integers(0, 6), attempt=st.integers(1, 3))
    def hand(self, number: int, attempt: int) -> None:
        given = give(self.tasks, handed(str(number), attempt))
        for job in given:
            key = job.id, job.attempt
            assert key not in self.jobs or key in self.taken | self.cancelled
            self.jobs[key] = job
            self.ended.discard(key)
            self.taken.discard(key)
            self.cancelled.discard(key)
        if given:
            older = {key for key in self.jobs if key[0] == str(number) and key[1] < attempt}
            self.cancelled |= older - self.ended

    @precondition(lambda self: self.up)
    @rule(number=st.integers(0, 6), attempt=st.integers(1, 3))
    def begin(self, number: int, attempt: int) -> None:
        job = self.jobs.get((str(number), attempt))
        if job is not None and not self.tasks.is_full:
            for begun in self.tasks.start([job]):
                assert (begun.id, begun.attempt) not in self.cancelled
            self.say()

    @rule(number=st.integers(0, 6), attempt=st.integers(1, 3), fails=st.booleans())
    def end(self, number: int, attempt: int, fails: bool) -> None:
        key = str(number), attempt
        job = self.jobs.get(key)
        if job is None or job.state == WAITING:
            return
        if job.state == RUNNING:
            self.ended.add(key)
        (self.tasks.fail if fails else self.tasks.finish)(job, b"1234567890")

    @rule(number=st.integers(0, 6), attempt=st.integers(1, 3), code=st.sampled_from([200, 404, 409]))
    def take(self, number: int, attempt: int, code: int) -> None:
        key = str(number), attempt
        hear(self.tasks, "TASKSOK", [*key, code])
        (self.taken if key in self.ended else self.cancelled).add(key)

    @rule(number=st.integers(0, 6), attempt=st.integers(1, 3))
    def cancel(self, number: int, attempt: int) -> None:
        hear(self.tasks, "TASKSCANCEL", [str(number), attempt])
        if (str(number), attempt) not in self.ended:
            self.cancelled.add((str(number), attempt))

    @precondition(lambda self: self.up)
    @rule()
    def say(self) -> None:
        for command, what in say(self.tasks):
            keys = {(told["id"], told["attempt"]) for told in what}
            assert not keys & self.cancelled
            if command == "TASKSDONE":
                assert not keys & self.taken, "none is said after it was taken"
                assert len(keys) == len(what), "none is said twice at once"
                self.arrived |= keys
            else:
                self.announced |= keys

    @rule()
    def lose(self) -> None:
        self.up = False

    @precondition(lambda self: not self.up)
    @rule()
    def come_up(self) -> None:
        named = set(self.tasks.holds(1_000_000))
        live = {key for key, job in self.jobs.items() if job.state in (WAITING, RUNNING)}
        assert named == live | (self.ended - self.taken)
        self.tasks.connected()
        self.up, self.arrived, self.announced = True, set(), set()
        self.say()
        assert self.arrived == self.ended - self.taken
        assert self.announced == {key for key, job in self.jobs.items() if job.state == RUNNING}

    @invariant()
    def no_result_is_lost(self) -> None:
        waiting = self.ended - self.taken
        assert self.tasks.is_full == (10 * len(waiting) > 40)
        assert self.tasks.unfinished == len(waiting) + sum(job.state == RUNNING for job in self.jobs.values())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = examples(100, stateful_step_count=40)


# Promise: TASK-17
def test_a_recall_takes_what_waits_and_leaves_what_has_begun(tasks):
    ran, waits, ended = give(tasks, handed("ran"), handed("waits"), handed("ended"))
    tasks.start([ran, ended])
    tasks.finish(ended, b"1")
    list(tasks.take_messages(NOW))
    tasks.recall(msgspec.json.encode([["ran", 1], ["waits", 1], ["waits", 2], ["ended", 1], ["nobody", 1]]))
    assert say(tasks) == [("TASKSTATUS", [{"id": "waits", "attempt": 1, "status": "returned"}])]
    assert tasks.start([waits]) == [], "what was given back never begins"
    assert tasks.holds(1_000) == [("ran", 1), ("ended", 1)]
    tasks.finish(ran, b"2")
    assert [body[0]["id"] for _, body in say(tasks)] == ["ran"]


def test_a_return_survives_a_negotiation_with_the_same_broker(tasks):
    """On the same connection the broker keeps all leases: without the report the task would stay with this node."""
    tasks.set_broker("east-1")
    give(tasks, handed("waits"))
    tasks.recall(msgspec.json.encode([["waits", 1]]))
    tasks.set_broker("east-1")
    tasks.connected()
    assert say(tasks) == [("TASKSTATUS", [{"id": "waits", "attempt": 1, "status": "returned"}])]
    give(tasks, handed("other"))
    tasks.recall(msgspec.json.encode([["other", 1]]))
    tasks.set_broker("east-2")
    assert say(tasks) == [], "another broker never assigned it"
