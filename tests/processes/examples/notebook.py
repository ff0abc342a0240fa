"""A script in cells (`# %%`) as a notebook without output, and back to cells."""

from __future__ import annotations

import json
import re
from typing import Any

_MARK = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def cells_of_script(text: str) -> list[tuple[str, str]]:
    """(kind, source) of each cell; what stands before the first mark is the script's own docstring, a text."""
    head, *parts = _MARK.split(text)
    cells = [("markdown", head.strip().strip('"').strip())]
    for mark, source in zip(parts[::2], parts[1::2], strict=True):
        stripped = source.strip("\n")
        if mark:
            cells.append(("markdown", re.sub(r"^# ?", "", stripped, flags=re.MULTILINE)))
        else:
            cells.append(("code", stripped))
    return cells


def cells_of_notebook(text: str) -> list[tuple[str, str]]:
    """The same of a notebook."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]


def notebook(script: str) -> str:
    """A script as a notebook (version 4.5 of its format)."""
    cells: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(cells_of_script(script)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        cell["source"] = source.splitlines(keepends=True)
        cells.append({**cell, "execution_count": None, "outputs": []} if kind == "code" else cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
