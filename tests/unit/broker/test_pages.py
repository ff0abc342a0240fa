"""Pages of lists: bounded by rows and by bytes, and complete together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.broker.admin.views import MAX_LRU_ROWS, MAX_PAGE_BYTES, MAX_ROW_CHARS, page
from scale0.client.admin.helens import PagedRows
from tests.fakes.broker import FakeBroker

NAMES = tuple(f"{number:04}" for number in range(1_000))
SERVICES = tuple(f"{number:03}.{'s' * 200}" for number in range(200))


def pages(broker: FakeBroker, command: str) -> list[Any]:
    """All pages of a list, as our clients read them."""
    rows = PagedRows({})
    found = []
    while (arguments := rows.request()) is not None:
        found.append(broker.manage(command, **arguments).body)
        rows.add(found[-1])
    return found


# Promise: WIRE-5, MGMT-5
@pytest.mark.parametrize(("size", "count"), [(10, 1_000), (MAX_PAGE_BYTES // 100, 100), (2 * MAX_PAGE_BYTES, 1)])
def test_a_page_ends_with_the_row_that_reaches_its_bytes(size: int, count: int) -> None:
    found = page(NAMES, str, lambda name: name + "x" * size, 1_000, None)
    assert len(found["items"]) == count
    assert found["next"] == (None if count == len(NAMES) else NAMES[count - 1])
    assert len(msgspec.json.encode(found["items"])) <= MAX_PAGE_BYTES + size + 10_000


@pytest.fixture
def crowded() -> FakeBroker:
    """105 backends with long identities offer 200 services with long names."""
    broker = FakeBroker()
    for number in range(105):
        broker.join(f"backend-{number}", *SERVICES, identity=f"{number:03}.{'x' * 124}", slots=10)
    return broker


# Promise: WIRE-5, MGMT-5
def test_many_backends_of_many_services_make_more_pages_and_not_larger_ones(crowded: FakeBroker) -> None:
    found = pages(crowded, "list_queues")
    assert all(len(msgspec.json.encode(one)) <= MAX_PAGE_BYTES + 3 * MAX_ROW_CHARS for one in found)
    rows = [row for one in found for row in one["items"]]
    assert [row["service"] for row in rows] == sorted(SERVICES)
    for row in rows:
        assert row["backends"] == 105, "the backends that are not listed are counted"
        assert 0 < len(row["lru"]) < MAX_LRU_ROWS
        assert sum(len(one["identity"]) for one in row["lru"]) <= MAX_ROW_CHARS


# Promise: WIRE-5, MGMT-5
def test_a_client_with_many_services_has_a_short_row_that_counts_the_others(crowded: FakeBroker) -> None:
    crowded.join("backend-few", "a", "b")
    for one in pages(crowded, "list_clients"):
        assert len(msgspec.json.encode(one)) <= MAX_PAGE_BYTES + 3 * MAX_ROW_CHARS
        for row in one["items"]:
            assert sum(map(len, row["services"])) <= MAX_ROW_CHARS
            if row["role"] == "backend":
                assert len(row["services"]) + row["services_more"] == (2 if "few" in row["identity"] else len(SERVICES))
