"""A test that did not run proves nothing: a skip or an expected failure makes the whole run fail, by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = ROOT / "tests" / "conftest.py"
SKIPPED = "import pytest\n\n\ndef test_good(): ...\n\n\n@pytest.mark.skip(reason='later')\ndef test_later(): ...\n"
EXPECTED = "import pytest\n\n\n@pytest.mark.xfail\ndef test_broken():\n    raise ValueError\n"
ABSENT = "import pytest\n\npytest.importorskip('a_module_that_nobody_has')\n\n\ndef test_unseen(): ...\n"
GOOD = "def test_good(): ...\n"

pytestmark = pytest.mark.slow  # each starts a pytest of its own


def run_suite(directory: Path, sources: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, directory / "conftest.py")
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    processes: real ones\n")
    for name, source in sources.items():
        (directory / f"test_{name}.py").write_text(source)
    # Other plugins take longer to import than all of this takes to run.
    only = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    environment = {**os.environ, **only, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "."]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


NOT_RUN = {
    "skipped": (SKIPPED, "test_skipped.py::test_later"),
    "expected": (EXPECTED, "test_expected.py::test_broken"),
    "absent": (ABSENT, "test_absent.py"),
}


# Promise: HOUSE-3
@pytest.mark.parametrize("name", NOT_RUN)
def test_a_run_with_a_skipped_test_fails_and_names_it(tmp_path, name):
    source, named = NOT_RUN[name]
    done = run_suite(tmp_path, {name: source}, "-n", "0")
    assert done.returncode != 0
    assert f"\n{named} (" in done.stdout


# Promise: HOUSE-3
def test_workers_tell_of_what_they_skipped(tmp_path):
    done = run_suite(tmp_path, {name: source for name, (source, _) in NOT_RUN.items()}, "-n", "1")
    assert done.returncode != 0
    assert [named for _, named in NOT_RUN.values() if f"\n{named} (" not in done.stdout] == []


def test_a_run_without_skips_passes(tmp_path):
    assert run_suite(tmp_path, {"good": GOOD}).returncode == 0


def test_skips_can_be_allowed_by_hand(tmp_path):
    assert run_suite(tmp_path, {"skipped": SKIPPED}, "--allow-skips").returncode == 0
