"""The monitoring part: Helen is killed and suspended while an agent sends the results of a check to her.

The check is a plugin: each run notes a new id in a file, then prints it. Helen must store each id exactly once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from evidence.faults import HEARTBEATS, STOPPED_SECONDS
from evidence.model import Campaign, FaultRecord, Violation
from evidence.processes import Broker, DidNotStart, Program, command, free_ports

CHECK: Final = "evidence"
INTERVAL_SECONDS: Final = 0.2
HEAL_SECONDS: Final = 60.0
"""Longer than any recovery may take."""
CALM_SECONDS: Final = (1.0, 3.0)
"""Between two faults."""
DOWN_SECONDS: Final = 2.0
SPOOLED_SECONDS: Final = 1.0
"""After this, a result must be on the agent's disk, on a busy machine, too."""
QUIET_SECONDS: Final = 3.0
"""After the check is removed, its last run ends within this."""
POLL_SECONDS: Final = 0.2
PLUGIN: Final = """#!/bin/sh
read -r id < /proc/sys/kernel/random/uuid
echo "$id" >> '{runs}'
echo "OK - $id"
"""


class MonitoringPart:
    """A broker, Helen and one agent, set up by the commands that an administrator uses."""

    FAULTS: Mapping[str, Callable[[MonitoringPart, FaultRecord], None]]

    def __init__(self, source: Path, folder: Path, campaign: Campaign) -> None:
        self.source, self.folder, self.campaign = source, folder, campaign
        self.dice = random.Random(f"monitoring {campaign.seed}")
        self.runs = folder / "check_runs"
        self.broker = Broker(source, folder, **HEARTBEATS)
        self.helen = Program(source, folder, "helen", ["helen", "--config", str(folder / "helen" / "helen.zpl")])
        self.agent = Program(source, folder, "agent", ["agent", "--config", str(folder / "agent" / "agent.zpl")])
        self.began = time.monotonic()

    def run(self, seconds: float, only: Sequence[str] = ()) -> None:
        kinds = [kind for kind in self.FAULTS if not only or kind in only]
        self.campaign.faults_known += kinds
        rest: list[str] = []
        try:
            self.set_up()
            end = time.monotonic() + seconds
            while True:
                time.sleep(self.dice.uniform(*CALM_SECONDS))
                rest = rest or self.dice.sample(kinds, len(kinds))
                kind = rest.pop()
                record = FaultRecord(kind, round(time.monotonic() - self.began, 2))
                self.campaign.faults.append(record)
                self.FAULTS[kind](self, record)
                if time.monotonic() >= end:
                    break
            self.compare()
        except DidNotStart as error:
            self.campaign.extra.append(Violation("STORE-4", str(error)))
        finally:
            for program in (self.agent, self.helen, self.broker):
                program.kill()

    def set_up(self) -> None:
        self.broker.start()
        (port,) = free_ports(1)
        words = ["--name", "127.0.0.1", "--identity", "helen-1", "--port", str(port)]
        self.command("helen", "init", "helen", *words, "--broker", address(self.broker, "backend"))
        self.helen.start()
        token = self.command("helen", "token", "--data-dir", "helen", "--name", "web-1").strip()
        self.command("agent", "enrol", "--token", token, "--dir", "agent")
        plugin = self.folder / "plugin"
        plugin.write_text(PLUGIN.format(runs=self.runs))
        plugin.chmod(0o755)
        with (self.folder / "agent" / "agent.zpl").open("a") as file:
            file.write(f"plugins\n    name = {CHECK}\n    command = '{plugin}'\n")
            if os.geteuid() == 0:
                file.write("plugin_user = root\n")  # who may read the folder of the campaign
        self.agent.start()
        where = ("--join", address(self.broker, "frontend"), "--data-dir", str(self.broker.data_dir))
        self.command("check", "add", CHECK, "--check", CHECK, "--interval", str(INTERVAL_SECONDS), *where)
        self.await_results(FaultRecord("", 0.0), time.monotonic())

    def command(self, *words: str) -> str:
        done = command(self.source, self.folder, *words)
        if done.returncode != 0:
            raise DidNotStart(f"scale0 {' '.join(words[:2])} ended with {done.returncode}: {done.stderr[-200:]}")
        return done.stdout

    def helen_killed(self, record: FaultRecord) -> None:
        self.helen.kill()
        time.sleep(self.dice.uniform(0.0, DOWN_SECONDS))
        self.helen.start()
        self.await_results(record, time.monotonic())

    def helen_stopped(self, record: FaultRecord) -> None:
        self.helen.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        self.helen.send_signal(signal.SIGCONT)
        self.await_results(record, time.monotonic())

    def agent_killed(self, record: FaultRecord) -> None:
        """Helen hangs, so that she reads old results after the agent, which starts again, has sent them again."""
        self.helen.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.0, SPOOLED_SECONDS))
        known = set(self.read_runs())
        time.sleep(SPOOLED_SECONDS)
        self.agent.kill()
        self.campaign.checks_unsure |= set(self.read_runs()) - known
        self.helen.send_signal(signal.SIGCONT)
        self.agent.start()
        self.await_results(record, time.monotonic())

    def await_results(self, record: FaultRecord, since: float) -> None:
        """Until a check that runs from now on is stored."""
        known = set(self.read_runs())
        while time.monotonic() - since < HEAL_SECONDS:
            if set(self.read_stored()) - known:
                record.recovery = time.monotonic() - since
                return
            time.sleep(POLL_SECONDS)
        self.campaign.extra.append(Violation("AGENT-7", f"{record.kind}: no result for {HEAL_SECONDS:.0f} s"))

    def read_runs(self) -> list[str]:
        return self.runs.read_text().splitlines() if self.runs.exists() else []

    def read_stored(self) -> list[str]:
        """The id in each result that Helen has."""
        to = self.folder / "results.jsonl"
        self.command("events", "export", "--to", str(to), "--force", "--kind", "check.answered", "--data-dir", "helen")
        events = [json.loads(line) for line in to.read_text().splitlines()]
        return [event["data"]["message"].removeprefix("OK - ") for event in events if event["service"] == CHECK]

    def compare(self) -> None:
        where = ("--join", address(self.broker, "frontend"), "--data-dir", str(self.broker.data_dir))
        self.command("check", "remove", CHECK, *where)
        time.sleep(QUIET_SECONDS)
        runs, stored = self.read_runs(), self.read_stored()
        end = time.monotonic() + HEAL_SECONDS
        while set(runs) - set(stored) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            stored = self.read_stored()
        self.campaign.checks_run += runs
        self.campaign.results_stored += stored
        for program in (self.broker, self.helen, self.agent):
            if not program.running:
                self.campaign.extra.append(
                    Violation("WIRE-3", f"{program.name} ended by itself: {program.tail()[-200:]}")
                )
            for line in program.bad_lines()[:1]:
                self.campaign.extra.append(Violation("WIRE-3", f"{program.name} logged: {line}"))


def address(broker: Broker, socket: str) -> str:
    return broker.endpoints[socket].removeprefix("tcp://")


MonitoringPart.FAULTS = {
    "helen_killed": MonitoringPart.helen_killed,
    "agent_killed": MonitoringPart.agent_killed,
    "helen_stopped": MonitoringPart.helen_stopped,
}
