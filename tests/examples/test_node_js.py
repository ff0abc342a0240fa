"""A node that knows the page of the protocol alone does tasks, is replaced when killed, and survives its broker."""

# Promise: CLI-3
from __future__ import annotations

import json
import signal

import pytest

from tests.examples.readme import commands, free_ports, lone, terminal

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_it_prints_what_its_readme_shows(tmp_path):
    folder = lone("node_js", tmp_path)
    with terminal(folder, tmp_path, free_ports(), npm_config_prefer_offline="true") as user:
        steps = commands((folder / "README.md").read_text())
        user.play(*steps[:-1])
        status = json.loads(user.run("scale0 task status $(cat task) --json --join 127.0.0.1:5700"))
        ready = next(line for line in user.jobs[2].said.splitlines() if line.startswith("ready"))
        assert (status["attempt"], status["node_id"]) == (2, ready.split()[1]), "the first was killed"

        # Of its work when the broker is killed: the id that a node brings is the one that its leases are known by.
        under_way = user.run("scale0 task submit words.read 'a b' seconds=1.5 --join 127.0.0.1:5700").strip()
        failing = user.run("scale0 task submit words.count '' --join 127.0.0.1:5700").strip()
        user.kill(1, signal.SIGKILL)
        user.start(steps[1])
        user.run(f"scale0 task wait {under_way} {failing} --join 127.0.0.1:5700 || true")  # the second has failed
        assert user.run(f"scale0 task result {under_way} --join 127.0.0.1:5700") == "2\n"
        status = json.loads(user.run(f"scale0 task status {under_way} --json --join 127.0.0.1:5700"))
        assert status["attempt"] == 1, "it was not done again"
        status = json.loads(user.run(f"scale0 task status {failing} --json --join 127.0.0.1:5700 || true"))
        assert status["error"]["message"] == "there is nothing to count"

        # Cancelled: a node is not told, but its next word about the task is refused.
        unwanted = user.run("scale0 task submit words.read 'a b c d e f g h i' --join 127.0.0.1:5700").strip()
        user.run(f"scale0 task cancel {unwanted} --join 127.0.0.1:5700")
        user.jobs[2].wait_for(f"gave up {unwanted}")

        user.play(steps[-1])
        assert user.jobs[2].said.endswith("left\n")
