"""What `make soak` does to the pipeline's driver: killed for real, where a seed says; what is wrong is noticed.

Promise: PIPE-1, PIPE-3
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from scale0.pipeline.warehouse.warehouse import FAILPOINTS
from tests.pipeline.kills import FAILED, Wrong, draws, forked, judge

pytestmark = pytest.mark.extended


REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_seed_says_the_same_every_time_and_seeds_reach_every_failpoint():
    assert list(islice(draws(7), 10)) == list(islice(draws(7), 10))
    assert {next(draws(seed)).point for seed in range(100)} == set(FAILPOINTS)


def test_how_a_driver_ended_is_known(capfd):
    assert forked(lambda: None) == 0
    assert forked(lambda: os.kill(os.getpid(), signal.SIGKILL)) == -signal.SIGKILL

    def fail() -> None:
        raise LookupError("not as it should be")

    assert forked(fail) == FAILED
    assert "not as it should be" in capfd.readouterr().err


def test_half_a_run_and_a_driver_that_failed_are_noticed():
    for found in (10, 15):
        judge(-signal.SIGKILL, 10, found, 15)
    with pytest.raises(Wrong, match="12 events: neither the 10 of before nor all 15"):
        judge(-signal.SIGKILL, 10, 12, 15)
    with pytest.raises(Wrong, match="ended with 3"):
        judge(FAILED, 10, 15, 15)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_drivers_that_are_killed_lose_and_double_nothing():
    command = [sys.executable, "-m", "tests.pipeline.kills", "--few", "--first", "2", "--seeds", "2"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^seed (\d): killed at", done.stdout, re.MULTILINE) == ["2", "3"]
    assert "2 drivers were killed, seeds 2 to 3; every promise was kept" in done.stdout
