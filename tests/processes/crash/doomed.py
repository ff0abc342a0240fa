"""A broker that kills itself within a commit: `python doomed.py CONFIG POINT NTH`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from scale0.broker.main import process
from scale0.cli.broker.command import say_ready
from scale0.config import BrokerConfig
from scale0.config.edge.files import read_config
from scale0.kernel.edge.log_setup import log_to_stderr
from scale0.storage.interface import Store
from scale0.storage.sqlite.store import SqliteStore


def main(file: str, point: str, nth: int) -> int:
    hits = 0

    def die(name: str) -> None:
        nonlocal hits
        hits += name == point
        if hits == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    config = read_config(Path(file), BrokerConfig)
    log_to_stderr(config.identity)
    # The same composition as an ordinary broker's, but for the store's failpoint.
    store: Store = SqliteStore(Path(config.data_dir), failpoint=die)
    process.choose_store = lambda config: store
    return process.run_broker(config, Path(file), say_ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
