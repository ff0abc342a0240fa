"""The table of log lines in docs/operations.md: each line is one that the code logs."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import REPOSITORY

ROW = re.compile(r"^\| `scale0\.\w+` [A-Z]+ \| (.+?) \|", re.MULTILINE)
SECTION = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8").split("## Log lines")[1].split("\n## ")[0]
DESCRIBED = frozenset({"a file and what is wrong with it", "… failed: and a traceback"})
"""Rows that describe a line in place of quoting it."""


@pytest.fixture(scope="module")
def texts() -> str:
    """Every string of the package, with `…` for what is filled in."""
    found: list[str] = []
    for path in sorted((REPOSITORY / "src" / "scale0").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[-\w.]*[a-z]", "…", node.value))
    return "\n".join(found)


@pytest.mark.parametrize("line", sorted(set(ROW.findall(SECTION)) - DESCRIBED))
def test_a_documented_log_line_is_logged(line: str, texts: str) -> None:
    parts = [part.strip(" :;.") for part in line.split("…")]
    missing = [part for part in parts if part and part not in texts]
    assert not missing, f"docs/operations.md has {line!r}, and no string of the package has {missing}"
