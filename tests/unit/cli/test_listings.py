"""Lists of the command line: what a broker shortened is counted."""

from __future__ import annotations

import pytest

from scale0.cli.network.listing import listed
from scale0.cli.network.queues import next_backends


# Promise: MGMT-5
@pytest.mark.parametrize(
    ("services", "more", "text"),
    [
        ([], 0, "-"),
        (["a", "b"], 0, "a b"),
        (["a", "b", "c", "d"], 0, "a b c +1"),
        (["a", "b", "c", "d"], 9, "a b c +10"),
    ],
)
def test_the_services_of_a_client_that_are_not_listed_are_counted(services: list[str], more: int, text: str) -> None:
    assert listed({"services": services, "services_more": more}) == text
    if not more:
        assert listed({"services": services}) == text, "a broker of an earlier version"


# Promise: MGMT-5
def test_the_backends_of_a_queue_that_are_not_listed_are_counted() -> None:
    rows = [{"identity": f"b{number}", "slots": 2, "busy": 1} for number in range(5)]
    assert next_backends(rows, 105) == "b0 1/2, b1 1/2, b2 1/2 +102"
    assert next_backends(rows[:2], 2) == "b0 1/2, b1 1/2"
    assert next_backends([], 0) == "-"
