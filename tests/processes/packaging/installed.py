"""A virtual environment with the wheel and only the packages that it requires.

The required packages are linked from the environment that runs the tests, because installing them again takes a minute.
A package that the code imports and the wheel does not require is missing, as it would be for a user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY: Final = Path(__file__).resolve().parents[3]
BUILD_SECONDS: Final = 60


def build(out: Path) -> tuple[Path, Path]:
    """A wheel and a source archive of this tree."""
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run(
        [REPOSITORY / "scripts" / "wheel", out], check=True, env=environment, capture_output=True, timeout=BUILD_SECONDS
    )
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, archive


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """A new environment with the wheel, these extras and their closure; its folder of programs."""
    quietly(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    words = ("pip", "install", "--quiet", "--offline", "--no-cache", "--no-deps", "--python", str(python), str(wheel))
    quietly(sys.executable, "-m", "uv", *words)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (ours,) = Distribution.discover(name="scale0", path=[str(site)])
    for one in closure(ours.requires or (), extras).values():
        link(one, site)
    return python.parent


def quietly(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def applying(requirements: Sequence[str], *extras: str) -> list[Requirement]:
    """Those that apply on this machine, with these extras or none."""
    found = [Requirement(line) for line in requirements]
    return [
        one for one in found if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def closure(requirements: Sequence[str], extras: Sequence[str] = ()) -> dict[str, Distribution]:
    """What these requirements install on this machine, with these extras, and what that requires in turn."""
    found: dict[str, Distribution] = {}
    asked: set[tuple[str, str]] = set()
    waiting = applying(requirements, "", *extras)
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        found.setdefault(name, distribution(name))
        for extra in {"", *one.extras} - {extra for other, extra in asked if other == name}:
            asked.add((name, extra))
            waiting += applying(found[name].requires or (), extra)
    return found


def link(one: Distribution, site: Path) -> None:
    """Its first level, by its own list of files; programs and what lies outside are left out."""
    for name in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
        if not (site / name).exists():
            (site / name).symlink_to(Path(str(one.locate_file(name))))
