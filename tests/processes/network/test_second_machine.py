"""A second machine is on the encrypted network by one command, pasted as it was printed.

Promise: CURVE-9
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.processes import background, environment
from tests.processes.network.lan import Lan, lan

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MOST_SECONDS = 60.0
WORKER = """
import scale0
worker = scale0.Worker()

@worker.service("hello")
def hello(name):
    return f"hello {name}"
"""


class Machine:
    """A host of its own, with a home that holds nothing, and `scale0` on its path."""

    def __init__(self, net: Lan, name: str, folder: Path) -> None:
        self.home = folder / name
        (self.home / "bin").mkdir(parents=True)
        program = self.home / "bin" / "scale0"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m scale0 "$@"\n')
        program.chmod(0o755)
        self._prefix = net.inside(name)
        self.commands = 0
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": environment()["PYTHONPATH"],
        }

    def type(self, line: str, **more: str) -> subprocess.CompletedProcess[str]:
        """One command, to its end."""
        self.commands += 1
        return subprocess.run(
            [*self._prefix, "sh", "-c", f"exec {line}"],
            cwd=self.home,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=True,
        )

    @contextmanager
    def start(self, line: str) -> Iterator[int]:
        """One command that stays, once it is ready; the process."""
        self.commands += 1
        command = (
            re.sub(r"^(\w+=\S+) ", r"export \1; exec ", line) if "=" in line.split(maxsplit=1)[0] else f"exec {line}"
        )
        with background([*self._prefix, "sh", "-c", command], self.home, self.environment) as program:
            program.wait_until(lambda: re.search(r"^ready", program.output, re.MULTILINE) is not None)
            yield program.process.pid
            program.signal(signal.SIGTERM)
            program.wait()


def test_one_pasted_command_puts_a_second_machine_on_the_network_within_a_minute(tmp_path: Path) -> None:
    with lan("one", "two") as net:
        one, two = Machine(net, "one", tmp_path), Machine(net, "two", tmp_path)
        (two.home / "hello.py").write_text(WORKER)
        began = time.monotonic()
        with one.start(f"scale0 broker --bind {net.address('one')} --curve"):
            issued = one.type("scale0 token backend")
            token, pasted = issued.stdout.strip(), issued.stderr.splitlines()[-1].strip()
            command = f"scale0 worker hello.py:worker --join {net.address('one')}:5701"
            assert pasted == f"SCALE0_JOIN_TOKEN={token} {command}"
            with two.start(pasted) as worker:
                assert token.encode() not in Path(f"/proc/{worker}/cmdline").read_bytes()
                here = {"SCALE0_DATA_DIR": "var", "SCALE0_JOIN": net.address("one")}
                task = one.type("scale0 task submit hello world", **here).stdout.strip()
                done = one.type(f"scale0 task wait {task}", **here)
                seconds = time.monotonic() - began
                assert "hello world" in done.stdout + one.type(f"scale0 task result {task}", **here).stdout
    sys.stdout.write(f"a task ran on the second machine after {seconds:.1f} s and {two.commands} command there\n")
    assert two.commands <= 2
    assert seconds < MOST_SECONDS
    assert [path.name for path in two.home.rglob("*.key_secret")] == [f"backend-{net.address('one')}-5701.key_secret"]
