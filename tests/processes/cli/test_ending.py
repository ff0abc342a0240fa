"""A command with processes of its own ends by a signal at any moment, and leaves nothing behind."""

# Promise: CLI-2
from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scale0.cli.common.child_process import ChildFailed
from scale0.cli.demo.local_network import LocalNetwork
from tests.fakes.broker_process import ANY_PORTS
from tests.fakes.processes import Background, background, processes_with
from tests.fakes.shell import Shell
from tests.fakes.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SOON_SECONDS = 15.0
"""Much less than a story takes; enough to stop a network in order on a busy machine."""
SCRIPT = Path(__file__).with_name("ended_at.py")
MOMENTS = [
    ("tempfile.mkdtemp", 1),
    ("subprocess.Popen", 1),
    ("before a fork", 1),
    ("after a fork", 1),
    ("subprocess.Popen", 3),
    ("before a fork", 3),
    ("after a fork", 3),
]
"""Of the start: its folder, its first process, its third."""
STATUS = [(signal.SIGINT, 130), (signal.SIGTERM, 1)]


def nothing_is_left(shell: Shell) -> bool:
    """Its folder is gone when it has ended; its processes are, too, or will be in a moment."""
    folder = shell.folder / "tmp"
    assert list(folder.iterdir()) == []
    until(lambda: not processes_with(folder), "its processes are gone")
    return True


@pytest.mark.parametrize("command", ["chaos", "demo"])
@pytest.mark.parametrize(("moment", "count"), MOMENTS)
@pytest.mark.parametrize(("number", "status"), STATUS)
def test_a_signal_at_an_exact_moment_of_the_start_ends_it(confined, command, moment, count, number, status):
    words = [sys.executable, str(SCRIPT), moment, str(count), str(int(number)), command]
    with background(words, confined.folder, confined.environment) as running:
        assert running.wait(SOON_SECONDS) == status, running.output
    assert "Traceback" not in running.output
    assert nothing_is_left(confined)


@pytest.mark.parametrize("command", ["chaos", "demo"])
def test_a_signal_as_soon_as_it_runs_ends_it(confined, command):
    with confined.background(command) as running:
        running.signal(signal.SIGTERM)
        # The kernel ends it as long as there is nothing to clean up.
        assert running.wait(SOON_SECONDS) in (-signal.SIGTERM, 1), running.output
    assert nothing_is_left(confined)


@pytest.mark.parametrize(("command", "step"), [("chaos", ""), ("demo", ""), ("demo", "a Helen and an agent start")])
def test_a_signal_as_soon_as_it_has_a_folder_or_at_a_later_step_ends_it(confined, command, step):
    with confined.background(command) as running:
        until(lambda: list((confined.folder / "tmp").iterdir()), "it has a folder")
        running.wait_for(step)
        running.signal(signal.SIGTERM)
        assert running.wait(SOON_SECONDS) == 1, running.output
    assert nothing_is_left(confined)


STUCK = """
import threading
from scale0.cli.common.signals import stop_on_signal
with stop_on_signal() as ending:
    try:
        ending.run(lambda: print("begun", flush=True) or threading.Event().wait())
    finally:
        print("cleaning up", flush=True)
        threading.Event().wait()
"""


@pytest.mark.parametrize(("number", "status"), STATUS)
def test_a_second_signal_ends_at_once_what_is_cleaning_up(confined, number, status):
    with background([sys.executable, "-c", STUCK], confined.folder, confined.environment) as running:
        running.wait_for("begun")
        running.signal(number)
        running.wait_for("cleaning up")
        running.signal(number)  # at once: the same one, passed on by whoever started it
        assert running.process.poll() is None
        until(lambda: again(running, number), "it has ended")
        assert running.wait() == status


def again(running: Background, number: signal.Signals) -> bool:
    running.signal(number)
    return running.process.poll() is not None


def test_a_story_that_fails_says_why_and_one_that_ends_returns(confined):
    code = (
        "from scale0.cli.common.signals import stop_on_signal\n"
        "with stop_on_signal() as ending:\n"
        "    print(ending.run(lambda: 42))\n"
        "    ending.run(lambda: {}['missing'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=confined.environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("42\n", 1)
    assert "KeyError: 'missing'" in done.stderr


def test_a_network_that_is_closed_has_ended_its_command_and_starts_nothing_more(tmp_path):
    network = LocalNetwork(tmp_path, ("demo-1",))
    codes: list[int] = []
    words = ["broker", "--data-dir", str(network.data_dir), *ANY_PORTS]
    running = threading.Thread(target=lambda: codes.append(network.run(words, 60.0, subprocess.DEVNULL)[0]))
    running.start()
    until((network.data_dir / "scale0.db").exists, "it runs")
    network.close()
    running.join()
    assert codes == [-signal.SIGKILL]
    with pytest.raises(ChildFailed):
        network.start_broker("demo-1", network.data_dir)
    with pytest.raises(ChildFailed):
        network.run(words, 60.0, subprocess.DEVNULL)
