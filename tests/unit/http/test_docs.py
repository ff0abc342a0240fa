"""The documentation knows exactly the routes and the metrics that there are, and so does the dashboard."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from scale0.broker.main.http_settings import HttpSettings
from scale0.config import BrokerConfig, ExportConfig, parse
from scale0.http.app import create_core, table
from scale0.http.broker_client import BrokerClient
from scale0.http.metrics.catalog import CATALOG
from tests.docs import pages
from tests.unit.http.metrics_page import DASHBOARD, PAGE, queries, variables, written

ROUTES_PAGE = Path(__file__).resolve().parents[3] / "docs" / "http.md"
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
OUTSIDE = "(not below `/api/v1`)"
NAME = re.compile(r"\bscale0_[a-z_]+")


def known() -> set[str]:
    """Every name that a series can have."""
    names = {one.name for one in CATALOG}
    parts = {f"{one.name}_{end}" for one in CATALOG if one.kind == "histogram" for end in ("bucket", "sum", "count")}
    return names | parts


# Promise: EXP-7
def test_the_table_of_metrics_is_that_of_the_catalogue():
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "python -m tests.unit.http.metrics_page writes it"


# Promise: EXP-7
def test_every_query_of_the_page_and_the_dashboard_is_about_metrics_that_there_are():
    found = [*queries(), *variables(), *re.findall(r"`([^`]*scale0_[^`]*)`", PAGE.read_text(encoding="utf-8"))]
    assert len(found) > 40
    unknown = {name for query in found for name in NAME.findall(query)} - known()
    assert unknown == set()


# Promise: EXP-7
def test_labels_in_queries_are_labels_of_their_metrics():
    labels = {one.name: set(one.labels) for one in CATALOG}
    for query in queries():
        for name, braces in re.findall(r"(scale0_[a-z_]+)\{([^}]*)\}", query):
            base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in labels else name
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces))
            assert used <= labels[base] | {"instance", "le"}, query


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not places & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_the_examples_of_the_page_are_configurations_that_a_broker_takes():
    page = PAGE.read_text(encoding="utf-8")
    block = next(part for part in page.split("\n\n") if "exports\n" in part)
    management = parse(textwrap.dedent(f"{block}\n").encode(), "zpl", BrokerConfig).management
    assert [one.kind for one in management.exports] == ["otlp", "graphite", "statsd"]
    assert management.exports[1].prefix == "servers.scale0"


@pytest.mark.parametrize("key", ExportConfig.__struct_fields__)
def test_every_key_of_an_export_is_explained(key):
    assert f"| `{key}` |" in PAGE.read_text(encoding="utf-8")


def documented_routes() -> set[tuple[str, str, str | None]]:
    """The routes of the page."""
    found = set()
    for cells in pages.table_rows(ROUTES_PAGE.read_text(encoding="utf-8")):
        if cells[0] in METHODS:
            path = cells[1].split("`")[1]
            whole = path if OUTSIDE in cells[1] else f"/api/v1{path}"
            found.add((cells[0], whole, None if cells[2] == "-" else cells[2]))
    return found


# Promise: HTTP-8
def test_the_page_names_every_route_with_its_role():
    app = create_core(HttpSettings(), BrokerClient("tcp://127.0.0.1:1"))
    assert documented_routes() == {(one.method, one.path, one.role) for one in table(app)}
