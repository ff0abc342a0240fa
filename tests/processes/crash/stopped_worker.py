"""A worker that a test stops and lets go on: `python stopped_worker.py BACKEND METHOD GO_FILE INTERVAL`.

It takes one task, says so, works until GO_FILE is there, and reports; then it says what it heard of its result. Raw
frames: whatever a worker may do too late, it does.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.wire.scale0.raw import raws
from tests.wire.scale0.rpc import Backend


def main(place: str, method: str, go: str, interval: float) -> None:
    with raws({"backend": place}) as net:
        worker = Backend(net, method, identity="stopped")
        task = worker.tasks(seconds=30)[0]
        worker.running(task)
        os.write(1, f"running {task['id']} {task['attempt']}\n".encode())
        while not Path(go).exists():
            worker.raw.say("HEARTBEAT", {"time": time.time(), "config_version": worker.version})
            worker.raw.hear_or_none(interval / 2)
        row = {"id": task["id"], "attempt": task["attempt"], "result": "late"}
        worker.say("TASKSDONE", [row])
        received = worker.hear("TASKSOK", "FORCENEGOTIATE", "DISCONNECTERROR", seconds=30)
        if received.command != "TASKSOK":
            worker.raw.close()
            worker.connect(services=[], holds=[[task["id"], task["attempt"]]])
            worker.say("TASKSDONE", [row])
            received = worker.hear("TASKSOK", seconds=30)
        os.write(1, f"told {received.body[0][2]}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
