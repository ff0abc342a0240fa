"""A hook of the build backend: a wheel and a source archive carry the built console; an editable install is left alone.

Invariant: what is built without the console, or with a part of it, is not built at all.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGES = Path("src/scale0/http/pages")
_USED = re.compile(r"""(?:src|href)="\.?/?([^":#]+)\"""")


class ConsoleHook(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Runs scripts/console before anything is put together, and looks at what came of it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the pages, unless the install only points at the source."""
        if version == "editable":
            return
        root = Path(self.root)
        if (root / "console").is_dir():
            subprocess.run([str(root / "scripts" / "console")], check=True)
        missing = missing_pages(root / PAGES)
        if missing:
            raise RuntimeError(
                f"the console is not built: {', '.join(missing)} missing in {PAGES}; run scripts/console"
            )


def missing_pages(pages: Path) -> list[str]:
    """What the first page needs and does not have; the page itself, if there is none."""
    index = pages / "index.html"
    if not index.is_file():
        return ["index.html"]
    used: list[str] = _USED.findall(index.read_text(encoding="utf-8"))
    if not any(name.endswith(".js") for name in used):
        return ["a script of index.html"]
    return [name for name in used if not (pages / name).is_file()]
