"""What gets a second try, and that a second failure is a failure; each run is a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.second_try import MOST_TESTS
from tests.unit.repository.test_skips import GOOD, SKIPPED, run_suite

pytestmark = pytest.mark.slow

HEAD = "import pathlib\n\nimport pytest\n\nSEEN = pathlib.Path(__file__).with_suffix('.seen')\n\n\n"
MARK = "@pytest.mark.processes\n"
ONCE = "def test_once():\n    if not SEEN.exists():\n        SEEN.touch()\n        raise ValueError('the first time')\n"
ALWAYS = "def test_always():\n    raise ValueError('each time')\n"
SETUP = "@pytest.fixture\ndef late():\n    test_once()\n\n\n" + MARK + "def test_with_it(late): ...\n"


def tried(folder: Path, **sources: str) -> tuple[int, str]:
    done = run_suite(folder, {name: HEAD + source for name, source in sources.items()}, "--second-try", "-n", "1")
    return done.returncode, done.stdout


# Promise: HOUSE-7
def test_what_passes_alone_passes_and_is_named_with_its_first_failure(tmp_path: Path):
    status, said = tried(tmp_path, once=MARK + ONCE, good=GOOD)
    assert status == 0, said
    assert "passed only alone" in said
    assert "ValueError: the first time" in said.rpartition("passed only alone: look for the cause")[2]
    assert "FAILED" not in said


# Promise: HOUSE-7
def test_a_fixture_that_failed_is_tried_again_too(tmp_path: Path):
    status, said = tried(
        tmp_path, setup=ONCE.replace("test_once", "once") + "\n\n" + SETUP.replace("test_once", "once")
    )
    assert status == 0, said
    assert "test_setup.py::test_with_it (setup)" in said


REFUSED = {
    "fails_again": MARK + ALWAYS,
    "one_of_two_fails_again": MARK + ONCE + "\n\n" + MARK + ALWAYS,
    "not_of_processes": ONCE,
    "one_of_two_is_not_of_processes": MARK + ONCE + "\n\n" + ALWAYS,
    "too_many": f"@pytest.mark.parametrize('n', range({MOST_TESTS + 1}))\n"
    + MARK
    + ONCE.replace("test_once()", "test_once(n)").replace("SEEN", "SEEN.with_suffix(f'.{n}')"),
    "beside_a_skip": MARK + ONCE + "\n\n" + SKIPPED,
    "a_file_that_cannot_be_imported": MARK
    + ONCE
    + "\n\nif not SEEN.exists():\n    SEEN.touch()\n    raise ValueError\n",
}


# Promise: HOUSE-7
@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_fails_as_it_would_without(tmp_path: Path, name: str):
    status, said = tried(tmp_path, **{name: REFUSED[name]})
    assert status == 1, said
    assert "passed only alone" not in said


# Promise: HOUSE-7
@pytest.mark.parametrize("options", [("-x", "-n", "1"), ("-x", "-n", "0")], ids=str)
def test_a_run_that_stopped_early_proves_nothing_of_the_rest(tmp_path: Path, options: tuple[str, ...]):
    source = HEAD + MARK + ONCE + "\n\n" + ALWAYS
    done = run_suite(tmp_path, {"stopped": source}, "--second-try", *options)
    assert done.returncode != 0, done.stdout
    assert "passed only alone" not in done.stdout


def test_nobody_gets_a_second_try_without_asking(tmp_path: Path):
    assert run_suite(tmp_path, {"once": HEAD + MARK + ONCE}, "-n", "1").returncode == 1
