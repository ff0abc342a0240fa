"""Reports computed from the warehouse.

Reading order: `model` (the structure of a report), `period` and `query` (the question, and the reader that answers it),
`data_quality` (notes on completeness), one file for each report, `catalog` (all of them), `formatting`, `plots` and
`html` (rendering). A report is computed from one manifest, and states how recent and how complete its data are.
"""

from __future__ import annotations

from typing import Final

REPORTS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "availability": (
        ("subject", "service", "agent", "check"),
        "How long each subject was up, down or not observed; the worst first.",
    ),
    "tasks": (("method",), "Tasks by method: counts, waiting and running times, failures."),
    "requests": (("service",), "Requests by service: counts, latencies, failures."),
    "checks": (("subject", "agent", "check"), "Checks: states, problems, flapping, the slowest."),
    "incidents": (
        ("subject", "service", "agent", "check"),
        "Incidents: what was down, when, for how long, and what else with it.",
    ),
    "capacity": (("subject", "agent", "check"), "Forecasts of full resources, load of nodes, trends."),
    "noise": (("check",), "Checks with the most needless alerts."),
}
"""The filters of each report, and a sentence about it. Other filters are ignored when all reports are made."""
