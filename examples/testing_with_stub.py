"""Test your own code without a network: the stub runs your handlers in process. Run it with: pytest FILE"""

import pytest

import scale0
from scale0.errors import BackendDied
from scale0.testing import StubNetwork

worker = scale0.Worker()


@worker.service("prices.of")
def price_of(item: str) -> float:
    """The shop's own worker."""
    return {"tea": 3.5, "milk": 1.2}[item]


def total(net: scale0.Client | StubNetwork, items: list[str]) -> float:
    """The code under test: it takes a Client, and calls services."""
    return sum(net.map("prices.of", items))


def test_a_total_is_the_sum_of_the_prices() -> None:
    """The handler really runs, with arguments that went through JSON and back."""
    with StubNetwork(worker) as net:
        assert total(net, ["tea", "milk"]) == pytest.approx(4.7)
        assert [call.args for call in net.calls] == [("tea",), ("milk",)]


def test_a_worker_that_dies_is_an_error_of_the_caller() -> None:
    """Errors that are rare in a network take one line here."""
    with StubNetwork(worker) as net:
        net.fail("prices.of", 502)
        with pytest.raises(BackendDied):
            total(net, ["tea"])
