"""Every column of every table that the pipeline makes is on its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scale0.pipeline.registry import table_infos

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
ROWS = {
    name: row for row in PAGE.splitlines() if row.startswith("| `") for name in re.findall(r"^\| `([a-z_]+)` \|", row)
}


# Promise: HOUSE-4
@pytest.mark.parametrize(("name", "columns"), [(name, info.columns) for name, info in table_infos().items()])
def test_every_column_is_documented(name, columns):
    assert [column for column in columns if f"`{column}`" not in ROWS[name]] == []
