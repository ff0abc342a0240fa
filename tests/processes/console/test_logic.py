"""The console's own tests of its logic, in its own language.

Promise: CON-3, CON-4, CON-5, CON-6
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
NODE = ROOT / ".venv-node" / "bin"
"""Where `scripts/console` puts a Node, if the machine has none."""
RUN_SECONDS = 100


def test_the_tests_of_its_logic_pass():
    path = f"{NODE}{os.pathsep}{os.environ['PATH']}" if NODE.is_dir() else os.environ["PATH"]
    npm = shutil.which("npm", path=path)
    assert npm, "there is no npm: `make setup` gets one"
    assert (ROOT / "console" / "node_modules").is_dir(), "the console's packages are missing: run scripts/console"
    done = subprocess.run(
        [npm, "test", "--silent"],
        cwd=ROOT / "console",
        env={**os.environ, "PATH": path, "CI": "true", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    assert "passed" in done.stdout
