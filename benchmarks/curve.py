"""What CURVE costs requests: the same broker, worker and client with keys and in the clear, in turn, in one run.

python -m benchmarks.curve [--rounds N] [--requests N]

Both networks stand all the time, and one of them works: whatever else the machine does falls on both. The rates of each
round are compared with each other, and the median of these ratios is what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.networks import end, process, run_client, scale0_broker

IN_FLIGHT = 100
AIM_LOSS = 0.35
"""How much of the rate CURVE may cost, at the most."""
DATA_DIR = "SCALE0_DATA_DIR"


@contextlib.contextmanager
def keys_in(data_dir: str) -> Iterator[None]:
    """Programs that are started now find the keys of this broker."""
    before = os.environ.pop(DATA_DIR, None)
    if data_dir:
        os.environ[DATA_DIR] = data_dir
    try:
        yield
    finally:
        os.environ.pop(DATA_DIR, None)
        if before is not None:
            os.environ[DATA_DIR] = before


@contextlib.contextmanager
def network(data_dir: str) -> Iterator[str]:
    """A broker and a worker; the front."""
    more = {"curve": True, "data_dir": data_dir} if data_dir else {}
    with scale0_broker(**more) as (front, back, _), keys_in(data_dir), process(*end("scale0-worker", back)):
        yield front


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--requests", type=int, default=100_000)
    chosen = words.parse_args()
    plain: list[float] = []
    keyed: list[float] = []
    with tempfile.TemporaryDirectory(prefix="scale0-bench-") as folder:
        data_dir = str(Path(folder) / "data")
        with network("") as clear, network(data_dir) as locked:
            for number in range(-1, chosen.rounds):
                for place, where, rates in ((clear, "", plain), (locked, data_dir, keyed)):
                    with keys_in(where):
                        found = run_client("scale0-client", place, chosen.requests, IN_FLIGHT)["rate"]
                    if number >= 0:  # the first round warms up
                        rates.append(found)
    losses = [1 - with_keys / without for with_keys, without in zip(keyed, plain, strict=True)]
    for with_keys, without, loss in zip(keyed, plain, losses, strict=True):
        print(f"in the clear {without:9,.0f}/s   CURVE {with_keys:9,.0f}/s   loss {loss:6.1%}")
    loss = statistics.median(losses)
    print(
        f"median       {statistics.median(plain):9,.0f}/s   CURVE {statistics.median(keyed):9,.0f}/s   loss {loss:6.1%}"
        f"   (at most {AIM_LOSS:.0%}: {'yes' if loss <= AIM_LOSS else 'NO'})"
    )


if __name__ == "__main__":
    main()
