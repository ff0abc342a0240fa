"""Start and end of our agent: several Helens, signals, and no process that survives it (PROTOCOL 10, 12)."""

from __future__ import annotations

import os
import socket
import time

import pytest

from tests.fakes.waiting import until
from tests.wire.monitoring.agent_under_test import agent_under_test

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
    with agent_under_test() as (agent, [helen]):
        agent.disconnect()
        agent.close()
        agent.config["helen"] = [f"127.0.0.1:{refusing}", f"127.0.0.1:{helen.port}"]
        agent.start()
        connection = helen.welcome()
        while connection.is_closed():  # the process before had knocked, too
            connection.close()
            connection = helen.welcome()
        agent.connection = connection
        connection.check("sleepy", {"seconds": "1.234"})
        until(lambda: children_of("/bin/sleep 1.234"))
        began = time.monotonic()
        assert agent.end() == 0
        assert time.monotonic() - began < 10
        until(lambda: not children_of("/bin/sleep 1.234"), seconds=3)


def test_nothing_survives_an_agent_that_was_killed() -> None:
    with agent_under_test(check_timeout=60) as (agent, [helen]):
        connection = agent.connected_to(helen)
        connection.check("sleepy", {"seconds": "54.321"})
        until(lambda: children_of("/bin/sleep 54.321"))
        agent.close()  # kill -9
        until(lambda: not children_of("/bin/sleep 54.321"), seconds=5)
        assert connection.read_to_end(5) == b""
