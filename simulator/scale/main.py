"""`python -m simulator.scale.main`: simulates a network of very many brokers and clients in virtual time. It prints
progress on stderr and the result as JSON on stdout; `docs/scale.md` has the findings."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from simulator.scale.world import ScaleWorld, Size, group_name


def simulate(
    size: Size, seconds: float, silent: bool = False, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """One run: start, idle, a configuration change, the loss of a group."""
    began = time.process_time()
    world = ScaleWorld(size)
    out: dict[str, Any] = {"brokers": size.brokers, "groups": size.groups, "clients": size.clients, "seed": size.seed}
    out["all_served_seconds"] = round(world.begin(progress), 2)
    out["calm"] = world.calm(seconds, progress)
    out["change"] = world.change(progress)
    if size.groups > 1:
        out["loss"] = world.lose_group(group_name(size.groups // 2), silent, progress)
    world.end_calls()
    out["calls"] = world.calls()
    out["virtual_seconds"] = round(world.agenda.now, 1)
    out["messages"] = world.diary.messages
    out["processor_seconds"] = round(time.process_time() - began, 1)
    out["memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulator.scale.main", description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, default=200)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--clients", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=120.0, help="of calm, in which traffic is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--join", action="store_true", help="brokers know the first one's address, and learn the rest")
    parser.add_argument("--silent", action="store_true", help="the machines fail, too: no connection is reset")
    given = parser.parse_args(arguments)
    if not 1 <= given.groups <= given.brokers <= given.clients:
        parser.error("there are at least as many brokers as groups, and as many clients as brokers")
    size = Size(brokers=given.brokers, groups=given.groups, clients=given.clients, seed=given.seed, join=given.join)
    began = time.monotonic()

    def progress(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:8.1f} s  {text}\n")
        sys.stderr.flush()

    result = simulate(size, given.seconds, given.silent, progress)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
