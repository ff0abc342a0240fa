"""A test that did not run proves nothing: a skip or an expected failure makes the whole run fail, by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
SKIPPED = "import pytest\n\n\ndef test_good(): ...\n\n\n@pytest.mark.skip(reason='later')\ndef test_later(): ...\n"
EXPECTED = "import pytest\n\n\n@pytest.mark.xfail\ndef test_broken():\n    raise ValueError\n"
ABSENT = "import pytest\n\npytest.importorskip('a_module_that_nobody_has')\n\n\ndef test_unseen(): ...\n"
GOOD = "def test_good(): ...\n"

pytestmark = pytest.mark.slow  # each starts a pytest of its own


def run_suite(directory: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, directory / "conftest.py")
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_planted.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "."]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=60)


# Promise: HOUSE-3
@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(
    ("source", "named"),
    [(SKIPPED, "test_planted.py::test_later"), (EXPECTED, "test_planted.py::test_broken"), (ABSENT, "test_planted.py")],
    ids=["skipped", "expected to fail", "file left out"],
)
def test_a_run_with_a_skipped_test_fails_and_names_it(tmp_path, source, named, workers):
    done = run_suite(tmp_path, source, "-n", workers)
    assert done.returncode != 0
    assert f"\n{named} (" in done.stdout


def test_a_run_without_skips_passes(tmp_path):
    assert run_suite(tmp_path, GOOD).returncode == 0


def test_skips_can_be_allowed_by_hand(tmp_path):
    assert run_suite(tmp_path, SKIPPED, "--allow-skips").returncode == 0
