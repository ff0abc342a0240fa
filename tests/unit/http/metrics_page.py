"""The table of metrics in docs/exports.md, and the dashboard for Grafana.

python -m tests.unit.http.metrics_page     writes the table
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scale0.http.metrics.catalog import CATALOG

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "exports.md"
BEGIN = "<!-- metrics: made by tests/unit/http/metrics_page.py -->\n"
END = "<!-- end of metrics -->\n"


def table() -> str:
    """All metrics, as Markdown."""
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for one in CATALOG
    ]
    return "\n".join(["| metric | kind | labels | what it says |", "| --- | --- | --- | --- |", *rows]) + "\n"


def written(page: str) -> str:
    """The page with the table as it should be."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("the page has no place for the table")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "scale0.json").read_text(encoding="utf-8"))


def queries() -> Iterator[str]:
    """Every query of a panel."""
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def variables() -> Iterator[str]:
    """What the choices above the panels are made of."""
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def filled_in(query: str) -> str:
    """A query as Grafana sends it, with all chosen."""
    return query.replace("$instance", ".*").replace("$service", ".*").replace("$__rate_interval", "30s")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
