"""Many whole agents in one process: session, check schedule, spool, running checks and TLS as in `scale0 agent`.

    python -m tests.processes.helen.many_agents FOLDER PORT NAME...

FOLDER holds ca.pem and each agent's certificate. Their one check, `probe`, counts its runs and answers with the count;
on SIGTERM the process prints how often each ran, as JSON, and ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import signal
import sys
from pathlib import Path

from scale0.history.events.columns import EventMetric
from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.monitoring.agent.core.check_schedule import CheckSchedule
from scale0.monitoring.agent.core.session import AgentSession
from scale0.monitoring.agent.edge.agent import AgentFacts, AgentRuntime, ScheduleFile, read_boot_id
from scale0.monitoring.agent.edge.running_checks import Inline, RunningChecks
from scale0.monitoring.agent.edge.spool import Spool
from scale0.monitoring.agent.edge.tls_client import TlsClient, client_context
from scale0.monitoring.protocol.results import OK, CheckFinding

SPOOL_BYTES = 16 * 1024 * 1024


class Member:
    """One agent of the crowd."""

    def __init__(self, folder: Path, port: int, name: str, shared: ThreadPool) -> None:
        loop = asyncio.get_running_loop()
        home = folder / f"{name}-data"
        home.mkdir()
        self.name = name
        self.ran = 0
        self.spool = Spool(home / "spool", secrets.token_hex(8), read_boot_id(), SPOOL_BYTES, 86_400.0)
        session = AgentSession([("localhost", port)], "crowd", random.Random(name))
        facts = AgentFacts({}, lambda: ["probe"], 10.0, "crowd")
        runs = RunningChecks(lambda check: Inline(self.probe) if check == "probe" else None, loop, 8)
        self.agent = AgentRuntime(
            session, CheckSchedule(name), self.spool, ScheduleFile(home), runs, facts, shared, loop
        )
        files = folder / f"{name}.pem", folder / f"{name}-key.pem", folder / "ca.pem"
        self.agent.start(TlsClient(lambda: client_context(*map(str, files)), self.agent, shared, loop))

    def probe(self, _args: bytes, _timeout: float) -> CheckFinding:
        self.ran += 1
        return CheckFinding(OK, f"run {self.ran}", (EventMetric("run", float(self.ran)),))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main() -> None:
    folder, port, *names = sys.argv[1:]
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    shared = ThreadPool(4, loop)
    members = [Member(Path(folder), int(port), name, shared) for name in names]
    say("ready")
    await ended.wait()
    for member in members:
        member.agent.stop()
        member.spool.close()
    say(json.dumps({member.name: member.ran for member in members}))


if __name__ == "__main__":
    asyncio.run(main())
