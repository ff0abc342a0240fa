"""The fault part: a broker and workers are killed, suspended and lose their disk while a raw client submits tasks."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from evidence.damage import DATABASE, DATABASE_LOG, cut, flip
from evidence.load import CLIENT, Load, read_each
from evidence.model import HEARTBEAT_SECONDS, LIVENESS, Campaign, FaultRecord, Run, TaskRecord, Violation, read_runs
from evidence.processes import REPOSITORY, STOP_SECONDS, Broker, DidNotStart, Program, command
from evidence.raw import Raw

WORKERS: Final = 3
RATE: Final = 30.0
HEAL_SECONDS: Final = 45.0
STOPPED_SECONDS: Final = HEARTBEAT_SECONDS * LIVENESS + 2.0
"""Longer than the silence that is death."""
DISK_SECONDS: Final = 30.0
"""Within which an injected error must have ended the broker."""
DISKS: Final = {"disk_eio": "fdatasync:error=EIO:when={nth}", "disk_full": "pwrite64:error=ENOSPC:when={nth}+"}
HEARTBEATS: Final[dict[str, Any]] = {"default_heartbeat_interval": HEARTBEAT_SECONDS, "heartbeat_liveness": LIVENESS}
FAKETIME_LIBRARY: Final = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
"""Of Debian's package libfaketime."""
CLOCK_JUMP_SECONDS: Final = 600
"""Longer than any lease and any pause between attempts of the load, shorter than results are kept."""
CLOCK_CACHE_SECONDS: Final = 1
"""How often the broker reads where its clock is meant to be: with every look it would be much slower."""
JUMPED_SECONDS: Final = HEARTBEAT_SECONDS * LIVENESS + 1.0
HUNG_SECONDS: Final = HEARTBEAT_SECONDS
"""Shorter than the silence that is death."""
BUSY_SECONDS: Final = 3.0
"""How long to wait for a worker that runs something."""
POLL_SECONDS: Final = 0.02


Fault = Callable[[Any, FaultRecord], None]


def has_strace() -> bool:
    return shutil.which("strace") is not None


def has_faketime() -> bool:
    return FAKETIME_LIBRARY is not None


NEEDED: Final[dict[str, Callable[[], bool]]] = {
    "disk_eio": has_strace,
    "disk_full": has_strace,
    "clock_jumped": has_faketime,
}
"""What a fault needs of the system."""


class FaultPart:
    """One network under load; each fault is a method of the same name."""

    FIRST_TASK = 0
    FAULTS: Mapping[str, Fault]

    def __init__(self, source: Path, folder: Path, campaign: Campaign) -> None:
        self.source, self.folder, self.campaign = source, folder, campaign
        self.dice = random.Random(f"faults {campaign.seed}")
        self.runs = folder / "runs"
        self.brokers = self.make_brokers()
        self.broker = self.brokers[0]
        self.workers: list[Program] = []
        frontends = [broker.endpoints["frontend"] for broker in self.brokers]
        self.load = Load(frontends, RATE, campaign.seed, self.FIRST_TASK)
        self.began = time.monotonic()
        self.version = 0
        """The newest configuration that was acknowledged."""
        self._starts = 0

    def make_brokers(self) -> list[Broker]:
        return [Broker(self.source, self.folder, **HEARTBEATS)]

    def run(self, seconds: float, only: Sequence[str] = ()) -> None:
        kinds = [kind for kind in self.FAULTS if not only or kind in only]
        self.campaign.faults_known += kinds
        missing = {kind for kind in kinds if (needed := NEEDED.get(kind)) and not needed()}
        if missing:
            print(f"evidence: left out, because a program is not installed: {', '.join(sorted(missing))}", flush=True)
            kinds = [kind for kind in kinds if kind not in missing]
        try:
            for broker in self.brokers:
                broker.start()
            self.workers = [self.start_worker() for _ in range(WORKERS)]
            for worker in self.workers:
                worker.ready()
            self.load.start()
            end = time.monotonic() + seconds
            rest: list[str] = []
            faults = len(self.campaign.faults)
            while kinds and (time.monotonic() < end or len(self.campaign.faults) == faults):
                rest = rest or self.dice.sample(kinds, len(kinds))
                self.change_config()
                self.disturb(rest.pop())
                self.check_processes()
                time.sleep(self.dice.uniform(0.2, 1.0))
            self.load.stop(HEAL_SECONDS)
            self.compare()
        except DidNotStart as error:
            self.found("STORE-4", str(error))
        finally:
            self.load.abandon()
            for program in (*self.workers, *self.brokers):
                program.kill()

    def found(self, promise: str, what: str) -> None:
        self.campaign.extra.append(Violation(promise, what))

    def unjudged(self, promise: str, what: str) -> None:
        self.campaign.extra.append(Violation(promise, what, judged=False))

    def start_worker(self) -> Program:
        self._starts += 1
        name = f"worker-{self._starts}"
        words = ["worker", str(REPOSITORY / "evidence" / "worker.py")]
        words += [word for broker in self.brokers for word in ("--endpoint", broker.endpoints["backend"])]
        variables = {"EVIDENCE_RUNS": str(self.runs), "EVIDENCE_NAME": name}
        program = Program(self.source, self.folder, name, words, **variables)
        program.launch()
        return program

    def disturb(self, kind: str) -> None:
        self.await_active()
        record = FaultRecord(kind, round(time.monotonic() - self.began, 2))
        self.campaign.faults.append(record)
        self.FAULTS[kind](self, record)
        self.check_config()

    def broker_killed(self, record: FaultRecord) -> None:
        """It dies while tasks run; often it hangs before, and what it is sent then, such as their results, is lost."""
        self.busy_worker()
        self.broker.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.choice((0.0, HUNG_SECONDS, HUNG_SECONDS)))
        self.broker.kill()
        time.sleep(self.dice.uniform(0.0, 1.0))
        self.restart_broker(record)

    def broker_killed_twice(self, record: FaultRecord) -> None:
        self.broker.kill()
        self.broker.launch()
        time.sleep(self.dice.uniform(0.0, 1.5))
        self.broker.kill()
        self.restart_broker(record)

    def broker_stopped(self, record: FaultRecord) -> None:
        self.broker.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        self.broker.send_signal(signal.SIGCONT)
        self.await_service(record, time.monotonic())

    def worker_killed(self, record: FaultRecord) -> None:
        at = self.busy_worker()
        victim = self.workers[at]
        self.campaign.lost_workers.add(victim.pid)
        victim.kill()
        self.await_reclaim(record, victim.pid, time.monotonic())
        self.workers[at] = self.start_worker()

    def worker_stopped(self, record: FaultRecord) -> None:
        victim = self.workers[self.busy_worker()]
        self.campaign.lost_workers.add(victim.pid)
        victim.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        self.await_reclaim(record, victim.pid, began)
        time.sleep(max(0.0, began + STOPPED_SECONDS - time.monotonic()))
        victim.send_signal(signal.SIGCONT)

    def busy_worker(self) -> int:
        """The index of a worker that runs a task now, if there is one."""
        end = time.monotonic() + BUSY_SECONDS
        order = self.dice.sample(range(WORKERS), WORKERS)
        while time.monotonic() < end:
            busy = {run.pid for run in current(self.read_runs())}
            for at in order:
                if self.workers[at].pid in busy:
                    return at
            time.sleep(POLL_SECONDS)
        return order[0]

    def disk_fails(self, record: FaultRecord) -> None:
        """A broker whose disk fails must end, acknowledge nothing after that, and find everything when it is back."""
        fault = DISKS[record.kind].format(nth=self.dice.randrange(30, 120))
        self.broker.stop()
        call = fault.partition(":")[0]
        self.broker.prefix = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={fault}"]
        self.broker.launch()
        status = self.broker.wait(DISK_SECONDS)
        record.note = f"{fault}: exit status {status}"
        if status is None:
            self.found("STORE-3", f"{fault} did not end the broker within {DISK_SECONDS:.0f} s")
        elif status == 0:
            self.found("STORE-3", f"after {fault} the broker ended with status 0")
        self.broker.kill()
        self.broker.prefix = []
        self.restart_broker(record)

    def second_broker(self, record: FaultRecord) -> None:
        """A second broker on the same data must refuse to start, and disturb nothing."""
        second = Broker(self.source, self.folder, "second", data_dir=str(self.broker.data_dir))
        second.launch()
        try:
            second.ready()
            self.found("STORE-2", "a second broker started on the data of one that runs")
        except DidNotStart:
            record.note = f"exit status {second.wait(5)}"
        finally:
            second.kill()
        self.await_service(record, time.monotonic())

    def clock_jumped(self, record: FaultRecord) -> None:
        """The wall clock of the broker jumps forwards or backwards, and then back; its monotonic clock goes on."""
        offset = self.folder / "clock"
        offset.write_text("+0\n")
        real = self.broker.environment
        self.broker.stop()
        fake = {"LD_PRELOAD": str(FAKETIME_LIBRARY), "FAKETIME_TIMESTAMP_FILE": str(offset)}
        cached = {"FAKETIME_CACHE_DURATION": str(CLOCK_CACHE_SECONDS), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        self.broker.environment = {**real, **fake, **cached}
        self.broker.start()
        jump = self.dice.choice((CLOCK_JUMP_SECONDS, -CLOCK_JUMP_SECONDS))
        slowest = 0.0
        for seconds in (jump, 0):
            offset.write_text(f"{seconds:+d}\n")
            time.sleep(2 * CLOCK_CACHE_SECONDS)
            self.await_service(record, time.monotonic())
            slowest = max(slowest, record.recovery or 0.0)
            skew = self.broker_clock() - time.time()
            if abs(skew - seconds) > CLOCK_JUMP_SECONDS / 2:
                self.unjudged("NEGO-5", f"the clock of the broker differs by {skew:.0f} s, not by {seconds} s")
            time.sleep(JUMPED_SECONDS)
        record.recovery, record.note = slowest, f"{jump:+d} s and back"
        self.broker.environment = real
        self.broker.stop()
        self.broker.start()

    def broker_clock(self) -> float:
        """The wall clock of the broker; 0: it did not answer."""
        return float(self.manage("status").get("time", 0.0))

    def log_damaged(self, record: FaultRecord) -> None:
        """A broker whose write-ahead log lost commits must refuse to start, and name them; the copy was damaged."""
        self.broker.kill()
        copy = Broker(self.source, self.folder, f"damaged-{len(self.campaign.faults)}", **HEARTBEATS)
        shutil.copytree(self.broker.data_dir, copy.data_dir)
        damage = {"log_cut": cut, "log_flipped": flip}[record.kind]
        record.note = damage(copy.data_dir / DATABASE_LOG, self.dice)
        if record.note:
            copy.launch()
            try:
                copy.ready()
                self.found("STORE-12", f"a broker started although its log was damaged: {record.note}")
            except DidNotStart:
                status = copy.wait(STOP_SECONDS)
                if status != 1 or "lacks" not in copy.tail():
                    self.found("STORE-12", f"{record.note}: exit status {status}: {copy.tail()[-200:]}")
            finally:
                copy.kill()
        self.restart_broker(record)

    def restart_broker(self, record: FaultRecord) -> None:
        began = time.monotonic()
        self.broker.start()
        self.await_service(record, began)

    def await_service(self, record: FaultRecord, since: float) -> None:
        """Until the next acknowledgement."""
        record.recovery = self.load.acknowledged_after(since, HEAL_SECONDS)
        if record.recovery is None:
            self.found("NEGO-5", f"{record.kind}: nothing was acknowledged for {HEAL_SECONDS:.0f} s")

    def await_active(self) -> None:
        """Until every broker serves: one that joins needs its peer, which the next fault may suspend."""
        end = time.monotonic() + HEAL_SECONDS
        for broker in self.brokers:
            while self.manage("status", broker).get("state") != "active":
                if time.monotonic() > end:
                    self.found("NEGO-5", f"{broker.name} was not active again within {HEAL_SECONDS:.0f} s")
                    return
                time.sleep(POLL_SECONDS)

    def await_reclaim(self, record: FaultRecord, pid: int, since: float) -> None:
        """Until each task that ran there has begun elsewhere."""
        time.sleep(POLL_SECONDS)
        begun = {run.number for run in current(self.read_runs()) if run.pid == pid}
        record.note = f"{len(begun)} tasks ran there"
        if not begun:
            return
        end = since + HEAL_SECONDS
        while time.monotonic() < end:
            times = [
                run.begun for run in self.read_runs() if run.number in begun and run.pid != pid and run.begun > since
            ]
            if len(times) >= len(begun):
                record.recovery = max(times) - since
                return
            time.sleep(POLL_SECONDS)
        self.found(
            "TASK-7", f"{record.kind}: tasks of a lost worker did not begin elsewhere within {HEAL_SECONDS:.0f} s"
        )

    def read_runs(self) -> list[Run]:
        return read_runs(self.runs.read_text().splitlines()) if self.runs.exists() else []

    def manage(self, word: str, broker: Broker | None = None, **options: Any) -> dict[str, Any]:
        """The answer of a broker to a command, by default of the first one; empty if there is none."""
        asked = broker or self.broker
        try:
            connection = Raw(asked.endpoints["frontend"])
        except OSError:
            return {}
        try:
            answer = connection.manage(word, auth_token=asked.token, **options)
            return json.loads(answer.bodies[0]) if answer.code == 200 else {}
        except OSError:
            return {}
        finally:
            connection.close()

    def change_config(self) -> None:
        """A configuration that is acknowledged must never be taken back."""
        version = self.manage("patch_config", set={"network": f"network-{self.dice.random()}"}).get("version")
        if isinstance(version, int):
            if version <= self.version:
                self.found("CONF-1", f"version {version} was acknowledged after {self.version}")
            self.version = version

    def check_config(self) -> None:
        version = self.manage("status").get("config_version")
        if isinstance(version, int) and version < self.version:
            self.found("CONF-2", f"configuration {self.version} was acknowledged, and the broker has {version}")

    def check_processes(self) -> None:
        for program in (*self.brokers, *self.workers):
            if not program.running:
                self.found("WIRE-3", f"{program.name} ended by itself with {program.status}: {program.tail()[-200:]}")
            for line in program.bad_lines()[:1]:
                self.found("WIRE-3", f"{program.name} logged: {line}")

    def compare(self) -> None:
        """Ask for every result again, count the stored tasks, and check the audit chain."""
        by_id = self.load.by_id
        for id_, answer in read_each([self.broker.endpoints["frontend"]], list(by_id)):
            task: TaskRecord = by_id[id_]
            if "result" in answer:
                task.results.append(json.dumps(answer["result"], sort_keys=True))
            elif task.ended == "finished":
                task.ended = f"a result, and later {answer['error'].get('code')}"
        self.campaign.tasks += self.load.tasks
        self.load.submit_again()
        self.count_stored()
        self.check_processes()
        for worker in self.workers:
            worker.stop()
        for broker in self.brokers:
            broker.stop()
        self.campaign.runs += self.read_runs()
        for broker in self.brokers:
            if not (broker.data_dir / DATABASE).exists():
                continue  # its store is a database that brokers share
            verified = command(self.source, self.folder, "audit", "verify", "--data-dir", str(broker.data_dir))
            if verified.returncode != 0:
                self.found("AUDIT-1", f"scale0 audit verify: {(verified.stdout + verified.stderr)[-200:]}")

    def count_stored(self) -> None:
        """No more tasks than keys."""
        stored, after = 0, None
        while True:
            page = self.manage("list_tasks", limit=1000, client=CLIENT, **({"after": after} if after else {}))
            items, after = page.get("items", []), page.get("next")
            stored += len(items)
            if not after:
                break
        if stored > len(self.load.tasks):
            self.found("TASK-4", f"{len(self.load.tasks)} keys made {stored} tasks")


def current(runs: Sequence[Run]) -> list[Run]:
    """The runs that have not ended, except old attempts: a worker that was suspended may begin one too late."""
    newest: dict[int, int] = {}
    for run in runs:
        newest[run.number] = max(run.attempt, newest.get(run.number, 0))
    return [run for run in runs if run.ended is None and run.attempt == newest[run.number]]


FaultPart.FAULTS = {
    "broker_killed": FaultPart.broker_killed,
    "broker_killed_twice": FaultPart.broker_killed_twice,
    "broker_stopped": FaultPart.broker_stopped,
    "worker_killed": FaultPart.worker_killed,
    "worker_stopped": FaultPart.worker_stopped,
    "disk_eio": FaultPart.disk_fails,
    "disk_full": FaultPart.disk_fails,
    "second_broker": FaultPart.second_broker,
    "clock_jumped": FaultPart.clock_jumped,
    "log_cut": FaultPart.log_damaged,
    "log_flipped": FaultPart.log_damaged,
}
