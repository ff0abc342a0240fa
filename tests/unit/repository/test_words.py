"""No committed file names a package host, a path of one machine, or anybody but the project itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.repository import words

REPOSITORY = Path(__file__).resolve().parents[3]


MADE: frozenset[str] = frozenset({"__pycache__", "build", "dist", "node_modules", "pages"})
"""Folders that setup and the tools make."""


def committed() -> list[Path]:
    """What is committed, or would be by `git add .`; in an unpacked source archive, everything but what tools make."""
    if not (REPOSITORY / ".git").exists():
        paths = (path for path in REPOSITORY.rglob("*") if path.is_file())
        hidden = (".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis")
        parts = ((path, path.relative_to(REPOSITORY).parts) for path in paths)
        return sorted(path for path, names in parts if not MADE & set(names) and not names[0].startswith(hidden))
    # A clone may belong to another user than the one who tests it: it is still this repository.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    paths = (REPOSITORY / name for name in listed.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


# Promise: HOUSE-2
def test_no_committed_file_says_what_is_nobodys_business():
    found = []
    for path in committed():
        content = path.read_bytes()
        if b"\0" not in content:
            text = content.decode("utf-8", "replace")
            found += [f"{path.relative_to(REPOSITORY)}:{complaint}" for complaint in words.complaints(text)]
    assert not found, "\n" + "\n".join(found)


def test_the_lock_files_pin_and_hash_every_package():
    for name in ("requirements.lock", "requirements-pipeline.lock"):
        entries = (REPOSITORY / name).read_text(encoding="utf-8").replace("\\\n", "").splitlines()
        packages = [entry for entry in entries if entry and not entry.startswith((" ", "#"))]
        assert packages
        assert [entry for entry in packages if "==" not in entry or "--hash=sha256:" not in entry] == []
        assert not any("://" in entry for entry in entries)


SLASH = "/"


@pytest.mark.parametrize(
    "text",
    [
        "index-url = https://" + "py" + "pi.org/simple",
        '"resolved": "https://registry.npm' + 'js.org/preact"',
        "FROM gh" + "cr.io/someone/something",
        f"cd {SLASH}root{SLASH}project",
        f'path = "{SLASH}work{SLASH}main"',
        f"see {SLASH}work.",
        f"{SLASH}home{SLASH}somebody",
        "written with Cla" + "ude",
        "as an AI " + "assistant",
        "ask chat" + "gpt",
    ],
)
def test_a_planted_word_is_seen(text):
    assert list(words.complaints(text))


@pytest.mark.parametrize(
    "text",
    [
        "tests/work/one.py",
        f"the route {SLASH}workers{SLASH}all",
        "a package from PyPI, or from npm",
        "the agent asks Helen",
        f"df {SLASH}home",
        f"src{SLASH}root{SLASH}x",
    ],
)
def test_an_innocent_word_is_left_alone(text):
    assert list(words.complaints(text)) == []
