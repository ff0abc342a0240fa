"""The public Python API: its names, and the page that promises them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import scale0
import scale0.testing

STABILITY = (Path(__file__).resolve().parents[3] / "docs" / "stability.md").read_text(encoding="utf-8")


def documented(module: str) -> list[str]:
    """The names that the page lists for a module."""
    (listed,) = re.findall(rf"^- `{re.escape(module)}`:(.*?)[;.]$", STABILITY, re.MULTILINE | re.DOTALL)
    return re.findall(r"`(\w+)`", listed)


def test_dir_lists_exactly_the_public_names():
    assert dir(scale0) == sorted(scale0.__all__) == sorted(documented("scale0"))
    assert dir(scale0.testing) == sorted(scale0.testing.__all__) == sorted(documented("scale0.testing"))


def test_every_public_name_is_there():
    assert all(hasattr(scale0, name) for name in scale0.__all__)
    assert all(hasattr(scale0.testing, name) for name in scale0.testing.__all__)
    assert not hasattr(scale0, "nothing")


def test_the_import_alone_loads_no_other_module():
    loaded = "import scale0, sys; print(sorted(name for name in sys.modules if name.startswith('scale0.')))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
