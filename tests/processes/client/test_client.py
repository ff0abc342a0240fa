"""`Client`: every way to ask, every way to be refused, and big things."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import scale0
from scale0 import errors
from scale0.broker.core.discovery import MAX_PAGES
from scale0.kernel.errors import Refusal
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.waiting import until
from tests.processes.client.handlers import arguments, fails, same, waits
from tests.processes.client.net import Concurrency, Together, client_of, offered, started

pytestmark = pytest.mark.processes

MIB = 1024 * 1024
LIMIT_BYTES = 8 * MIB
HEAD_BYTES = 512
"""More than the frames before a body take."""

inside = Concurrency()
gate = threading.Event()


def double(number: int) -> int:
    if number == 13:
        raise Refusal(429, "thirteen is too many")
    with inside:
        return number * 2


def steps(most: int) -> Iterator[int]:
    for number in range(most):
        yield number
        assert gate.wait(10)
        gate.clear()
    return "end"  # type: ignore[return-value]


def open_gate(times: int) -> None:
    for _ in range(times):
        until(lambda: not gate.is_set())
        gate.set()


def no_json(*_: bytes) -> bytes:
    return b"{this is no JSON"


@pytest.fixture(scope="module", autouse=True)
def worker(broker: BrokerProcess) -> Iterator[None]:
    made = scale0.Worker(broker.endpoints["backend"], identity="shared")
    for function in (arguments, fails, steps):
        made.add(function.__name__, function)
    made.add("double", double, slots=8)
    made.add("waits", waits, slots=4)
    made.add("same", same, raw=True)
    made.add("no_json", no_json, raw=True)
    with started(made):
        yield


def test_arguments_travel_by_position_by_name_and_both(net: scale0.Client) -> None:
    assert net.call("arguments") == [[], {}]
    assert net.call("arguments", 1, "ü", None) == [[1, "ü", None], {}]
    assert net.call("arguments", a=1, b=[2.5]) == [[], {"a": 1, "b": [2.5]}]
    assert net.call("arguments", 1, a={"deep": [True]}) == [[1], {"a": {"deep": [True]}}]


def test_raw_frames_pass_as_they_are(net: scale0.Client) -> None:
    assert net.request("same", b"", b"\0\xff", b"{") == [b"", b"\0\xff", b"{"]
    assert net.request("same") == []
    assert net.start_request("same", bytearray(b"a"), memoryview(b"b")).result() == [b"a", b"b"]  # type: ignore[arg-type]


def test_a_stream_gives_each_part_as_it_comes(net: scale0.Client) -> None:
    gate.clear()
    stream = net.stream("steps", 3)
    for number in range(3):
        assert next(stream) == number  # the handler makes the next one only when the gate opens
        gate.set()
    assert list(stream) == ["end"]


def test_a_stream_that_nobody_reads_part_by_part_still_has_a_result(net: scale0.Client) -> None:
    gate.clear()
    pending = net.start("steps", 2)
    together = Together()
    together.start(open_gate, 2)
    assert pending.result() == "end"
    together.join()


def test_map_keeps_the_order_and_the_bound(net: scale0.Client) -> None:
    inside.most = 0
    assert list(net.map("double", range(14, 300), in_flight=3)) == [number * 2 for number in range(14, 300)]
    assert 1 <= inside.most <= 3
    assert list(net.map("double", [], in_flight=1)) == []
    assert list(net.map("double", [5], in_flight=1)) == [10]
    assert list(net.map("same", [b"a", b"b"], raw=True)) == [[b"a"], [b"b"]]


def test_map_takes_no_more_of_its_items_than_it_may_have_under_way(net: scale0.Client) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100, 200):
            taken.append(number)
            yield number

    results = net.map("double", items(), in_flight=4)
    assert next(results) == 200
    assert len(taken) <= 4


def test_map_raises_an_error_where_its_result_would_be(net: scale0.Client) -> None:
    results = net.map("double", [11, 12, 13, 14])
    assert [next(results), next(results)] == [22, 24]
    with pytest.raises(errors.TooMany, match="thirteen"):
        next(results)


def test_start_does_not_wait_and_results_come_in_any_order(net: scale0.Client) -> None:
    slow, quick = net.start("waits", 0.3), net.start("double", 4)
    assert quick.result() == 8
    assert not slow.done
    assert slow.result() == slow.result() == 0.3


def test_the_broker_tells_who_is_there(net: scale0.Client) -> None:
    assert offered(net)["waits"]["slots"] >= 4
    me = until(lambda: [row for row in net.clients() if row["identity"] == net.identity])
    assert me[0]["role"] == "frontend"
    assert net.ping()["broker"] == "broker-1"


def test_management_needs_the_token(net: scale0.Client, broker: BrokerProcess) -> None:
    assert net.manage("status", auth_token=broker.token)["broker"] == "broker-1"
    with pytest.raises(errors.WrongCredentials) as caught:
        net.manage("status", auth_token="s0_wrong")
    assert caught.value.code == 401


@pytest.mark.parametrize(("code", "kind"), [*errors.BY_CODE.items(), (418, errors.CallError), (200, None), (7, None)])
def test_each_code_has_its_error(net: scale0.Client, code: int, kind: type[errors.CallError] | None) -> None:
    with pytest.raises(kind or errors.ServiceFailed) as caught:
        net.call("fails", code)
    assert caught.value.code == (code if kind else 500)
    assert type(caught.value) is (kind or errors.ServiceFailed)
    assert "on purpose" in caught.value.message
    assert caught.value.service == "fails"


def test_nobody_offers_it_is_404_and_nobody_answers_is_504(net: scale0.Client) -> None:
    with pytest.raises(errors.NoSuchService):
        net.call("nobody.offers.this", timeout=0.1)
    begin = time.monotonic()
    with pytest.raises(errors.NoAnswer):
        net.call("waits", 1.0, timeout=0.2)
    assert time.monotonic() - begin < 1.0


def test_what_cannot_travel_is_refused_before_it_spoils_anything(net: scale0.Client) -> None:
    other = net.start("waits", 0.1)
    with pytest.raises(TypeError):
        net.call("arguments", object())
    with pytest.raises(TypeError):
        net.request("same", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        net.call(5)  # type: ignore[arg-type]
    with pytest.raises(UnicodeEncodeError):
        net.call("\ud800")
    for wrong in (0, -1, float("nan"), float("inf"), 1e9):
        with pytest.raises(ValueError):
            net.call("arguments", timeout=wrong)
    with pytest.raises(ValueError):
        next(net.map("double", [1], in_flight=0))
    assert other.result() == 0.1


def test_an_answer_that_is_no_json_is_its_callers_own_trouble(net: scale0.Client) -> None:
    other = net.start("double", 3)
    with pytest.raises(ValueError):
        net.call("no_json")
    assert other.result() == 6


@pytest.mark.parametrize("size", [0, 1, MIB, LIMIT_BYTES - HEAD_BYTES])
def test_big_bodies_pass_up_to_the_limit(net: scale0.Client, size: int) -> None:
    body = bytes(size)
    assert net.request("same", body) == [body]


@pytest.mark.parametrize("size", [LIMIT_BYTES, 2 * LIMIT_BYTES + 1])
def test_over_the_limit_is_413_at_once_and_costs_nobody_else(net: scale0.Client, size: int) -> None:
    other = net.start("waits", 0.2)
    begin = time.monotonic()
    with pytest.raises(errors.TooBig):
        net.request("same", bytes(size), timeout=10)
    assert time.monotonic() - begin < 5
    assert other.result() == 0.2


def test_many_big_bodies_are_not_packed_into_one_message_that_is_too_big(net: scale0.Client) -> None:
    bodies = [bytes([number]) * (3 * MIB) for number in range(6)]
    assert list(net.map("same", bodies, raw=True)) == [[body] for body in bodies]


def test_a_closed_client_says_so_and_closing_twice_is_no_error(broker: BrokerProcess) -> None:
    net = client_of(broker)
    assert net.ping()
    net.close()
    net.close()
    with pytest.raises(RuntimeError, match="closed"):
        net.call("arguments")
    with pytest.raises(ValueError):
        scale0.Client("127.0.0.1:5700")
    with pytest.raises(ValueError):
        scale0.Client([])


def test_the_broker_forgets_an_idle_client_and_its_next_call_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("forgetful")
    with broker_process(folder, frontend_idle=0.3) as broker, client_of(broker) as net, client_of(broker) as other:
        assert net.ping()
        name = net.identity

        def gone() -> bool:
            return name not in {row["identity"] for row in other.clients()}

        until(gone, "the idle client is forgotten")
        assert list(net.map("scale0.ping", [None] * 0)) == []
        answers = [net.start("scale0.ping") for _ in range(3)]
        assert all(one.result()["broker"] == "broker-1" for one in answers)
        until(gone, "and again")
        assert [row["broker"] for row in net.map("scale0.ping", [None] * 5, raw=False)] == ["broker-1"] * 5


# Promise: CLIENT-1
def test_a_list_waits_while_too_many_pages_were_requested(net: scale0.Client) -> None:
    bodies = [f'{{"after":"{number}"}}'.encode() for number in range(MAX_PAGES)]
    for pending in [net.start_request("scale0.services", body) for body in bodies]:
        pending.result()
    assert {"same", "double"} <= {row["service"] for row in net.services()}
