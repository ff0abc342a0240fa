"""The tests of plugins and of the Lua pool once more as an ordinary user: no change of user, no cgroup."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NOBODY = "65534"
STORIES = (
    "test_plugins.py::test_check_dummy",
    "test_plugins.py::test_where_the_agent_is_root_its_plugins_run_as_another_user",
    "test_plugins.py::test_a_hostile_plugin_is_bounded_and_the_next_is_on_time",
    "test_plugins.py::test_a_killed_plugin_runner_or_launcher_costs_one_run",
    "test_plugins.py::test_nothing_outlives_an_agent_that_is_killed",
    "test_lua_pool.py::test_where_the_agent_is_root_its_lua_runs_as_another_user",
    "test_lua_pool.py::test_a_hostile_check_is_bounded_and_the_next_is_on_time",
    "test_lua_pool.py::test_a_killed_child_or_launcher_costs_at_most_the_run_that_it_was_busy_with",
)


def as_nobody():
    """The words in front of a command; reading stays allowed, since Python itself may lie in root's own folder."""
    capability = "+dac_read_search"
    return [
        *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"),
        *(f"--inh-caps={capability}", f"--ambient-caps={capability}"),
    ]


# Promise: CHECK-2
@pytest.mark.slow
@pytest.mark.processes
def test_an_ordinary_user_gets_the_same_promises():
    if os.geteuid() != 0:
        return  # the whole suite is this test then
    folder = os.path.dirname(__file__)
    stories = [os.path.join(folder, story) for story in STORIES]
    pytest_words = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--dist=no"]
    ended = subprocess.run(
        [*as_nobody(), *pytest_words, *stories],
        env={"PATH": os.environ["PATH"], "HOME": "/tmp"},
        cwd=os.path.dirname(os.path.dirname(folder)),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout[-5_000:] + ended.stderr[-2_000:]
    assert "passed" in ended.stdout
