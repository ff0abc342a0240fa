"""A wall clock that a test moves, in processes that it starts: `time.time` and `time.time_ns` of their Python.

clock = JumpingClock(tmp_path)
broker.prefix = clock.prefix
clock.set(86_400)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

STARTUP: Final = """
import os, pathlib, time
real, place = time.time, pathlib.Path(os.environ["JUMP_FILE"])
time.time = lambda: real() + float(place.read_text() or 0)
time.time_ns = lambda: round(time.time() * 1e9)
"""


class JumpingClock:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "jump"
        startup = folder / "startup"
        startup.mkdir()
        (startup / "sitecustomize.py").write_text(STARTUP)
        self.set(0)
        path = os.pathsep.join(filter(None, [str(startup), *sys.path]))
        self.prefix = ["env", f"PYTHONPATH={path}", f"JUMP_FILE={self._file}"]
        """What comes before the command of a process that has this clock."""

    def set(self, seconds: float) -> None:
        """From now on the clock is this much ahead of the right one."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(str(seconds))
        partial.rename(self._file)
