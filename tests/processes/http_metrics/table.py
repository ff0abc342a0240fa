"""Write the table of metrics in docs/exports.md: `python -m tests.processes.http_metrics.table`."""

from __future__ import annotations

from pathlib import Path

from scale0.http.metrics.catalog import CATALOG

PAGE = Path(__file__).resolve().parents[3] / "docs" / "exports.md"
BEGIN = "<!-- metrics: made by tests/processes/http_metrics/table.py -->\n"
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


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
