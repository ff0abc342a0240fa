"""The dashboard for Grafana, as tests read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[3] / "docs" / "grafana" / "scale0.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


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
