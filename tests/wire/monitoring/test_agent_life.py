"""Start and end of our agent: several Helens, signals, and no process that survives it (PROTOCOL 10, 12)."""

from __future__ import annotations

import os
import socket
import time

import pytest

from tests.fakes.waiting import until
from tests.wire.monitoring.agent_process import house
from tests.wire.monitoring.helen_1 import Helen1

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def children_of(words: str) -> list[int]:
    """Processes that run exactly this."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if file.read().replace(b"\0", b" ").decode(errors="replace").strip() == words:
                    found.append(int(entry))
        except OSError:
            continue
    return found


# Promise: AGENT-13
def test_the_next_helen_of_its_file_is_tried_and_the_end_is_in_order() -> None:
    """The first place refuses; SIGTERM then ends the agent and the check that it runs."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusing = taken.getsockname()[1]
    with house(Helen1) as (agent, [helen]):
        agent.hang_up()
        agent.process.close()
        agent.process.config["helen"] = [f"127.0.0.1:{refusing}", f"127.0.0.1:{helen.port}"]
        agent.process.start()
        line = helen.welcome()
        while line.is_over():  # the process before had knocked, too
            line.close()
            line = helen.welcome()
        agent.line = line
        line.check("sleepy", {"seconds": "1.234"})
        until(lambda: children_of("/bin/sleep 1.234"))
        began = time.monotonic()
        assert agent.process.terminate() == 0
        assert time.monotonic() - began < 10
        until(lambda: not children_of("/bin/sleep 1.234"), seconds=3)


def test_nothing_survives_an_agent_that_was_killed() -> None:
    with house(Helen1, check_timeout=60) as (agent, [helen]):
        line = agent.on_line(helen)
        line.check("sleepy", {"seconds": "54.321"})
        until(lambda: children_of("/bin/sleep 54.321"))
        agent.process.close()  # kill -9
        until(lambda: not children_of("/bin/sleep 54.321"), seconds=5)
        assert line.rest(5) == b""
