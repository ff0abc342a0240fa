"""What safety costs requests: the same network with and without it, in turn, in one run.

python -m benchmarks.curve [curve] [checks] [--rounds N] [--requests N]

`curve` compares a network in the clear with one that uses keys; `checks` compares one whose keys have permissions with
the same without permissions, rates and accounts of memory (`benchmarks.unchecked`). Both networks stand all the time,
and one of them works: whatever else the machine does falls on both. The rates of each round are compared with each
other, and the median of these ratios is what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.ends import SERVICE
from benchmarks.networks import end, process, run_client, scale0_broker

IN_FLIGHT: Final = 100
DATA_DIR: Final = "SCALE0_DATA_DIR"
RULES: Final = (f"call:{SERVICE}", "call:reports.*", "call:thumbs.*", "submit:reports.*", "discover:*")


class Variant(NamedTuple):
    name: str
    has_keys: bool
    program: str = "scale0"
    rules: tuple[str, ...] = ()


class Comparison(NamedTuple):
    """What the second costs beside the first, and how much it may."""

    without: Variant
    safe: Variant
    aim: float


COMPARISONS: Final = {
    "curve": Comparison(Variant("in the clear", has_keys=False), Variant("CURVE", has_keys=True), 0.15),
    "checks": Comparison(
        Variant("no checks", has_keys=True, program="benchmarks.unchecked"),
        Variant("permissions and quotas", has_keys=True, rules=RULES),
        0.03,
    ),
}


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
def network(variant: Variant, data_dir: str) -> Iterator[str]:
    """A broker and a worker; the front."""
    more = {"curve": True, "data_dir": data_dir} if variant.has_keys else {}
    with scale0_broker(variant.program, **more) as (front, back, _):
        if variant.rules:
            words = ["keys", "permissions", "frontend", "local", "--data-dir", data_dir]
            words += [word for rule in variant.rules for word in ("--add", rule)]
            subprocess.run([sys.executable, "-m", "scale0", *words], check=True, capture_output=True, timeout=60)
        with keys_in(data_dir), process(*end("scale0-worker", back)):
            yield front


def shown(variants: Sequence[Variant], rates: Sequence[float]) -> str:
    return "   ".join(f"{one.name} {rate:9,.0f}/s" for one, rate in zip(variants, rates, strict=True))


def compare(comparison: Comparison, rounds: int, requests: int) -> bool:
    """Measure both in turn, and print their rates; True if the loss is within the aim."""
    rates: tuple[list[float], list[float]] = ([], [])
    variants = (comparison.without, comparison.safe)
    with tempfile.TemporaryDirectory(prefix="scale0-bench-") as folder, ExitStack() as stack:
        folders = [str(Path(folder) / str(number)) if one.has_keys else "" for number, one in enumerate(variants)]
        fronts = [stack.enter_context(network(*pair)) for pair in zip(variants, folders, strict=True)]
        for number in range(-1, rounds):
            order = (0, 1) if number % 2 else (1, 0)
            for index in order:
                with keys_in(folders[index]):
                    found = run_client("scale0-client", fronts[index], requests, IN_FLIGHT)["rate"]
                if number >= 0:  # the first round warms up
                    rates[index].append(found)
    losses = [1 - safe / without for without, safe in zip(*rates, strict=True)]
    for *pair, each in zip(*rates, losses, strict=True):
        print(f"{shown(variants, pair)}   loss {each:6.1%}")
    loss = statistics.median(losses)
    is_reached = loss <= comparison.aim
    verdict = f"at most {comparison.aim:.0%}: {'yes' if is_reached else 'NO'}"
    print(f"median: {shown(variants, [statistics.median(some) for some in rates])}   loss {loss:6.1%}   ({verdict})")
    return is_reached


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("what", nargs="*", choices=[*COMPARISONS, []], help="all, if none is named")
    words.add_argument("--rounds", type=int, default=9)
    words.add_argument("--requests", type=int, default=100_000)
    chosen = words.parse_args()
    for name in chosen.what or COMPARISONS:
        compare(COMPARISONS[name], chosen.rounds, chosen.requests)


if __name__ == "__main__":
    main()
