"""Stub and network give the same answers: one table of calls, asked of both."""

# Promise: CLIENT-5
from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import scale0
from scale0.kernel.errors import Refusal
from scale0.testing import StubNetwork
from tests.fakes.broker_process import broker_process

pytestmark = pytest.mark.processes

worker = scale0.Worker(identity="one")


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


@worker.service("plain")
def plain(a: int, b: str = "x", *rest: float, c: bool = False) -> list[Any]:
    return [a, b, list(rest), c]


@worker.service("untyped")
def untyped(*args, **kwargs):
    return [list(args), kwargs]


@worker.service("area")
def area(size: Size) -> int:
    return size.width * size.height


@worker.service("value")
def value(name: str) -> Any:
    return {"nothing": None, "empty": [], "nan": math.nan, "unicode": "ü\0", "huge": 2**70, "set": {1}}[name]


@worker.service("refuses")
def refuses() -> None:
    raise Refusal(429, "not now")


@worker.service("own.code")
def own_code() -> None:
    error = RuntimeError("mine")
    error.code = 418  # type: ignore[attr-defined]
    raise error


@worker.service("counts")
def counts(most: int) -> Iterator[int]:
    yield from range(most)
    return most * 10  # type: ignore[return-value]


@worker.service("breaks.later")
def breaks_later() -> Iterator[int]:
    yield 1
    raise KeyError("two")


@worker.service("coroutine")
async def coroutine(a: int) -> int:
    return a + 1


@worker.service("async.parts")
async def async_parts(most: int) -> AsyncIterator[int]:
    for number in range(most):
        yield number


worker.add("unencodable", lambda: [object()])
worker.add("raw", lambda *bodies: list(reversed(bodies)), raw=True)
worker.add("raw.one", lambda *bodies: b"".join(bodies), raw=True)
worker.add("raw.none", lambda *_: None, raw=True)


@worker.service("raw.parts", raw=True)
def raw_parts(*bodies: bytes) -> Iterator[bytes]:
    yield from bodies


Net = scale0.Client | StubNetwork

CASES: dict[str, Callable[[Net], Any]] = {
    "by position": lambda net: net.call("plain", 1, "y", 2.5, 3),
    "by name": lambda net: net.call("plain", b="y", a=1, c=True),
    "both": lambda net: net.call("plain", 1, c=True),
    "an int where a float is meant": lambda net: net.call("plain", 1, "y", 2),
    "too few": lambda net: net.call("plain"),
    "twice": lambda net: net.call("plain", 1, a=2),
    "a name that is not there": lambda net: net.call("plain", 1, d=2),
    "a wrong type": lambda net: net.call("plain", "one"),
    "a wrong type of the rest": lambda net: net.call("plain", 1, "y", "z"),
    "no arguments": lambda net: net.call("untyped"),
    "an empty list": lambda net: net.call("untyped", []),
    "tuples become lists": lambda net: net.call("untyped", (1, 2), k={"t": (3,)}),
    "keys become text": lambda net: net.call("untyped", {1: 2}),
    "bytes become text": lambda net: net.call("untyped", b"abc"),
    "too deep": lambda net: net.call("untyped", nested(70)),
    "a structure": lambda net: net.call("area", {"width": 3, "height": 4}),
    "a structure by default": lambda net: net.call("area", size={"width": 3}),
    "a structure that lacks": lambda net: net.call("area", {"height": 4}),
    "None": lambda net: net.call("value", "nothing"),
    "an empty answer": lambda net: net.call("value", "empty"),
    "NaN": lambda net: net.call("value", "nan"),
    "unicode": lambda net: net.call("value", "unicode"),
    "a huge number": lambda net: net.call("value", "huge"),
    "a set": lambda net: net.call("value", "set"),
    "a handler's KeyError": lambda net: net.call("value", "missing"),
    "an answer that is no JSON": lambda net: net.call("unencodable"),
    "a refusal": lambda net: net.call("refuses"),
    "an error with a code": lambda net: net.call("own.code"),
    "parts": lambda net: list(net.stream("counts", 3)),
    "no parts": lambda net: list(net.stream("counts", 0)),
    "parts of a call": lambda net: net.call("counts", 3),
    "a stream of one": lambda net: list(net.stream("coroutine", 1)),
    "a stream that breaks": lambda net: parts_and_error(net.stream("breaks.later")),
    "a coroutine": lambda net: net.call("coroutine", 1),
    "a coroutine with wrong arguments": lambda net: net.call("coroutine"),
    "asynchronous parts": lambda net: list(net.stream("async.parts", 3)),
    "started": lambda net: net.start("plain", 5).result(),
    "started, in parts": lambda net: list(net.start("counts", 2).parts()),
    "map": lambda net: list(net.map("coroutine", range(5))),
    "map, raw": lambda net: list(net.map("raw.one", [b"a", b"b"], raw=True)),
    "raw": lambda net: net.request("raw", b"a", b"", b"\xff"),
    "raw, one": lambda net: net.request("raw.one", b"a", b"b"),
    "raw, none": lambda net: net.request("raw.none", b"a"),
    "raw, in parts": lambda net: list(net.start_request("raw.parts", b"a", b"b").parts()),
    "raw, the last of its parts": lambda net: net.start_request("raw.parts", b"a", b"b").result(),
    "raw to one that is not": lambda net: net.request("plain", b"[7]"),
    "raw that is no JSON": lambda net: net.request("plain", b"\xff"),
    "raw that is no arguments": lambda net: net.request("plain", b"5"),
    "a call of a raw one": lambda net: net.call("raw.one", 1, 2),
    "nobody": lambda net: net.call("nobody.does", timeout=0.2),
    "a reserved name": lambda net: net.call("scale0.nonsense"),
    "a timeout that is none": lambda net: net.call("plain", 1, timeout=0),
    "a service that is no text": lambda net: net.call(5, 1),  # type: ignore[arg-type]
    "a body that is no bytes": lambda net: net.request("raw", "text"),  # type: ignore[arg-type]
    "unencodable arguments": lambda net: net.call("untyped", object()),
    "services": lambda net: [(row["service"], row["backends"], row["slots"]) for row in net.services()],
    "ping": lambda net: sorted(net.ping()),
}


def nested(depth: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


def parts_and_error(parts: Iterator[Any]) -> Any:
    out: list[Any] = []
    try:
        for part in parts:
            out.append(part)
    except scale0.CallError as error:
        out.append((type(error).__name__, error.code, error.message))
    return out


def outcome(net: Net, case: Callable[[Net], Any]) -> Any:
    """What comes of it: a value with its type, or an error with all that it says."""
    try:
        value = case(net)
    except scale0.CallError as error:
        return type(error).__name__, error.code, error.message, error.service, str(error)
    except (TypeError, ValueError, RecursionError) as error:
        return type(error).__name__, str(error)
    return repr(value)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with broker_process(tmp_path_factory.mktemp("broker")) as broker:
        worker.endpoints = [broker.endpoints["backend"]]
        with worker, scale0.Client(broker.endpoints["frontend"]) as net:
            assert worker.wait_until_up(30)
            yield net


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_stub_and_network_give_the_same_answer(real, case):
    assert outcome(StubNetwork(worker), case) == outcome(real, case)
