"""What can be said about a task: options that no broker takes are refused before anything is sent."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest

import scale0
from scale0.client import results
from scale0.client.argument_checks import check_service
from scale0.client.results import MAX_PARAMS_BYTES, TaskStatus
from scale0.client.task_options import TaskOptions
from scale0.errors import BadArguments, TaskTooBig, submit_error, task_error, task_failed
from scale0.tasks.jsonrpc import messages
from scale0.tasks.jsonrpc.arguments import NewTaskOptions as Taken


def test_what_is_not_said_is_the_brokers_choice() -> None:
    assert TaskOptions().wire() == {"notify": True}
    assert TaskOptions(notify=False).wire() == {}


def test_all_options_are_what_the_broker_takes() -> None:
    import msgspec

    noon = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)
    made = TaskOptions(
        priority=9, at=noon, timeout=5, max_attempts=1, backoff=0.5, result_ttl=60, key="k", after=["a", "b"], id="mine"
    )
    taken = msgspec.convert(made.wire(), Taken)
    assert (taken.priority, taken.at, taken.timeout, taken.max_attempts) == (9, noon.timestamp(), 5, 1)
    assert (taken.backoff, taken.result_ttl, taken.key, taken.after, taken.notify) == (0.5, 60, "k", ["a", "b"], True)
    assert msgspec.convert(TaskOptions(delay=3).wire(), Taken).delay == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"priority": -1},
        {"priority": 1.5},
        {"priority": True},
        {"delay": -1},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": "5"},
        {"delay": 1, "at": 1},
        {"at": datetime.datetime(2030, 1, 1)},  # noqa: DTZ001
        {"timeout": 0},
        {"max_attempts": 0},
        {"backoff": -1},
        {"result_ttl": math.inf},
        {"key": ""},
        {"key": "k" * 256},
        {"after": "one"},
        {"after": ["x"] * 1_001},
        {"id": "two words"},
        {"id": ""},
        {"window": 0},
    ],
)
def test_options_that_no_broker_takes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        TaskOptions(**wrong)


def test_an_option_that_is_misspelt_is_refused() -> None:
    with pytest.raises(TypeError, match="priorty"):
        TaskOptions(priorty=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("options", [{"id": "mine"}, {"key": "k"}])
def test_an_id_or_a_key_is_for_one_task(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one task"):
        TaskOptions(**options).check_many()


def test_arguments_travel_as_those_of_a_call() -> None:
    assert results.params_of("s", (), {}) == b"[]"
    assert results.params_of("s", (1, "a"), {}) == b'[1,"a"]'
    assert results.params_of("s", (), {"n": 1}) == b'{"n":1}'
    assert results.params_of("s", (1,), {"n": 2}) == b'{"*":[1],"n":2}'
    assert [list(chunk) for chunk in results.chunks("s", [(1, 2), (3, 4), (5, 6)], True, 2)] == [
        [b"[1,2]", b"[3,4]"],
        [b"[5,6]"],
    ]


def test_arguments_that_would_spoil_the_message_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(65):
        deep = [deep]
    with pytest.raises(BadArguments):
        results.params_of("s", (deep,), {})
    with pytest.raises(TaskTooBig):
        results.params_of("s", ("x" * MAX_PARAMS_BYTES,), {})
    for name in ("", "new\nline", "x" * 256):
        with pytest.raises(ValueError):
            check_service(name)
    with pytest.raises(TypeError):
        check_service(7)


@pytest.mark.parametrize("code", [code for code in messages.MEANINGS if code not in (messages.CANCELLED_ERROR,)])
def test_every_error_says_what_happened_and_to_what(code: int) -> None:
    for make in (task_error, submit_error, task_failed):
        error = make(code, "because", "thumbs.make", "t.1", {"attempts": [1]})
        assert isinstance(error, scale0.TaskError)
        assert isinstance(error, scale0.CallError)
        for part in ("because", "thumbs.make", "t.1", str(code), messages.MEANINGS[code]):
            assert part in str(error)
    assert task_failed(code, "", "", "", {"attempts": [1]}).history == [1]


def test_the_errors_of_tasks_say_what_to_do_next() -> None:
    for code in (-32010, -32020, -32050, -32060, -32070, -32071, -32080):
        assert "; " in str(task_error(code, "because", "s", "t"))
    for cause, step in (("disk", "space"), ("database", "the database of the broker"), ("", "try again")):
        assert step in str(task_error(-32060, "because", "s", "t", {"cause": cause} if cause else None))
    for code in (-32090, -32091):
        assert "; " in str(task_failed(code, "because", "s", "t"))


@pytest.mark.parametrize(
    ("info", "progress"),
    [
        ({"progress": 0.5, "note": "half"}, (0.5, "half")),
        ({"progress": 1}, (1.0, "")),
        ({"progress": "much", "note": 5}, (None, "")),
        ({}, (None, "")),
        (None, (None, "")),
        ([1], (None, "")),
    ],
)
def test_progress_is_what_the_worker_said_if_it_makes_sense(info: Any, progress: tuple[float | None, str]) -> None:
    assert TaskStatus("t", "running", 5_000, info=info).progress == progress
