"""What a broker does with its disk, seen by strace: nothing is acknowledged before its sync, or after a failed one."""

# Promise: TASK-11
# Promise: STORE-3
from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes.crash.brokers import crashing_broker
from tests.wire.scale0.raw import raws
from tests.wire.scale0.rpc import Client, Rpc, client

pytestmark = [pytest.mark.processes, pytest.mark.slow]

TASKS = 20
MOST = 200
"""Submissions before a disk that should fail has failed."""
CALLS = "fdatasync,sendto,sendmsg,recvfrom,recvmsg,read,write"


class Call(NamedTuple):
    """One system call that has returned."""

    name: str
    words: str
    status: int
    began: int
    ended: int
    """Lines of the trace: their order is that of the events, over all threads."""


def read_calls(log: Path) -> list[Call]:
    """The calls of all threads."""
    begun: dict[str, tuple[int, str]] = {}
    calls: list[Call] = []
    for number, line in enumerate(log.read_text(errors="replace").splitlines()):
        pid, _time, rest = line.split(maxsplit=2)
        if rest.endswith("<unfinished ...>"):
            begun[pid] = number, rest.removesuffix("<unfinished ...>")
            continue
        start = number
        resumed = re.match(r"<\.\.\. \w+ resumed>(.*)", rest)
        if resumed:
            start, head = begun.pop(pid)
            rest = head + resumed[1]
        found = re.match(r"(\w+)\((.*)\) += (-?\d+)", rest)
        if found:
            calls.append(Call(found[1], found[2], int(found[3]), start, number))
    return calls


def test_every_acknowledgement_follows_a_sync_that_began_after_its_submission_came(tmp_path):
    log = tmp_path / "trace"
    tool = ["strace", "-f", "-ttt", "-yy", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(log)]
    with crashing_broker(tmp_path, tool) as broker, raws(broker.endpoints) as net:
        owner = client(net)
        ids = [f"proof.{number:012x}" for number in range(TASKS)]
        for id_ in ids:
            assert owner.submit("m", [id_], id_) == id_
        port = broker.endpoints["frontend"].rpartition(":")[2]
        assert broker.end() == 0
    calls = read_calls(log)
    calls_of_port = [call for call in calls if re.match(rf"\d+<TCP\w*:\[\S+:{port}->", call.words)]
    syncs = [call for call in calls if call.name == "fdatasync" and "scale0.db-wal" in call.words and not call.status]
    for id_ in ids:
        (came,) = [call for call in calls_of_port if id_ in call.words and "client_new_task" in call.words]
        (left,) = [call for call in calls_of_port if f'result\\":\\"{id_}' in call.words]
        assert (came.name, left.name) == ("recvfrom", "sendto")
        between = [sync for sync in syncs if came.ended < sync.began and sync.ended < left.began]
        assert between, f"{id_} was answered without a sync"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("fdatasync:error=EIO:when=30", "disk I/O error"),
        ("fdatasync:error=EIO:when=30+", "disk I/O error"),
        ("pwrite64:error=ENOSPC:when=300+", "full"),
        ("pwrite64:error=EIO:when=300", "disk I/O error"),
    ],
)
def test_a_disk_that_fails_ends_the_broker_loudly_and_nothing_acknowledged_is_lost(tmp_path, fault, reason):
    taken: list[str] = []
    tool = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={fault.partition(':')[0]}", "-e", f"inject={fault}"]
    with crashing_broker(tmp_path, tool) as broker, raws(broker.endpoints) as net:
        owner = client(net, "owner")
        for number in range(MOST):
            asked = owner.rpc.ask("client_new_task", **owner.new("m", [number], f"t{number}"))
            while not (received := owner.rpc.hear_bytes(0.1)) and broker.running:
                pass
            if received is None:
                break
            assert f'"id":{asked},"result":"t{number}"'.encode() in received
            taken.append(f"t{number}")
        assert broker.wait() not in (0, None), "it ended, and says that it failed"
        assert owner.rpc.silent(0.2), "nothing is said after the failure"
    assert 0 < len(taken) < MOST
    assert "the store failed" in broker.log_text()
    assert reason in broker.log_text()
    assert "Traceback" not in broker.log_text()
    with crashing_broker(tmp_path) as broker, raws(broker.endpoints) as net:
        owner = Client(Rpc(net.frontend()), "owner", connect=False)
        assert [owner.code(id_) for id_ in taken] == [1000] * len(taken)
        # The one that was under way may have been stored, or not: it was not acknowledged.
        answer = owner.rpc.answer(owner.rpc.ask("client_new_task", **owner.new("m", [], f"t{len(taken)}")))
        assert "result" in answer or answer["error"]["code"] == -32020
        assert broker.end() == 0
