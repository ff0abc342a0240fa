"""The documentation and the dashboard know exactly the metrics that there are."""

from __future__ import annotations

import re
import textwrap

import pytest

from scale0.config import BrokerConfig, ExportConfig, parse
from scale0.http.metrics.catalog import CATALOG
from tests.processes.http_metrics import table
from tests.processes.http_metrics.dashboard import DASHBOARD, queries, variables

NAME = re.compile(r"\bscale0_[a-z_]+")


def known() -> set[str]:
    """Every name that a series can have."""
    names = {one.name for one in CATALOG}
    parts = {f"{one.name}_{end}" for one in CATALOG if one.kind == "histogram" for end in ("bucket", "sum", "count")}
    return names | parts


# Promise: EXP-7
def test_the_table_of_metrics_is_that_of_the_catalogue():
    page = table.PAGE.read_text(encoding="utf-8")
    assert page == table.written(page), "python -m tests.processes.http_metrics.table writes it"


# Promise: EXP-7
def test_every_query_of_the_page_and_the_dashboard_is_about_metrics_that_there_are():
    found = [*queries(), *variables(), *re.findall(r"`([^`]*scale0_[^`]*)`", table.PAGE.read_text(encoding="utf-8"))]
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
    page = table.PAGE.read_text(encoding="utf-8")
    block = next(part for part in page.split("\n\n") if "exports\n" in part)
    management = parse(textwrap.dedent(f"{block}\n").encode(), "zpl", BrokerConfig).management
    assert [one.kind for one in management.exports] == ["otlp", "graphite", "statsd"]
    assert management.exports[1].prefix == "servers.scale0"


@pytest.mark.parametrize("key", ExportConfig.__struct_fields__)
def test_every_key_of_an_export_is_explained(key):
    assert f"| `{key}` |" in table.PAGE.read_text(encoding="utf-8")
