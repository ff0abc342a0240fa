"""docs/http.md names every route with its role, and no other."""

from __future__ import annotations

from pathlib import Path

from scale0.broker.main.http_settings import HttpSettings
from scale0.http.app import create_core, table
from scale0.http.broker_client import BrokerClient
from tests.docs import pages

PAGE = Path(__file__).resolve().parents[3] / "docs" / "http.md"
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
OUTSIDE = "(not below `/api/v1`)"


def told() -> set[tuple[str, str, str | None]]:
    """The routes of the page."""
    found = set()
    for cells in pages.table_rows(PAGE.read_text(encoding="utf-8")):
        if cells[0] in METHODS:
            path = cells[1].split("`")[1]
            whole = path if OUTSIDE in cells[1] else f"/api/v1{path}"
            found.add((cells[0], whole, None if cells[2] == "-" else cells[2]))
    return found


# Promise: HTTP-8
def test_the_page_names_every_route_with_its_role():
    app = create_core(HttpSettings(), BrokerClient("tcp://127.0.0.1:1"))
    assert told() == {(one.method, one.path, one.role) for one in table(app)}
