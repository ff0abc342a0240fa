"""A hook of the build backend: a wheel carries the built console; an editable install is left alone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleHook(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Runs scripts/console before a wheel is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the pages, unless the install only points at the source."""
        root = Path(self.root)
        if self.target_name != "wheel" or version == "editable":
            return
        if not (root / "console").is_dir() and (root / "src/scale0/management/pages/index.html").is_file():
            return  # a source archive that carries the pages
        subprocess.run([str(root / "scripts" / "console")], check=True)
