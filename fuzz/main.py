"""Runs the targets for a time, and keeps the inputs that break a promise: `python -m fuzz.main --seconds 60`.

With atheris (scripts/fuzz-engine installs it into .venv-fuzz) inputs are chosen by the code that they reach; without it
they are mutations of the corpus by `random.Random(seed)`. Exit status 1: a fault was found.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from fuzz.harness import MAX_INPUT_BYTES, chosen, corpus_of, fault_of, keep
from fuzz.targets import TARGETS, Target

ENGINE: Final = Path(__file__).parent.parent / ".venv-fuzz"
FOUND: Final = 77
"""The exit status of a process that found a fault."""


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """An input that resembles one of the corpus."""
    data = bytearray(rng.choice(corpus) if corpus else b"")
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 3:
                data[at:at] = rng.choice((b"\xff" * 8, bytes(8), b"\xed\xa0\x80", b"9" * 25, b"1e999", b"[" * 70))
            case 4:
                other = rng.choice(corpus) if corpus else b""
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                data[at:at] = data[at : at + rng.randrange(1, 64)]
    return bytes(data[:MAX_INPUT_BYTES])


def run_random(target: Target, seconds: float, seed: int) -> tuple[int, str | None]:
    """Without atheris: the number of inputs, and the first fault."""
    rng = random.Random(f"{target.name} {seed}")
    corpus = [path.read_bytes() for path in corpus_of(target.name)]
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        data = mutated(rng, corpus)
        count += 1
        if (fault := fault_of(target, data)) is not None:
            return count, f"{fault} ({keep(target.name, data, 'crash')})"
    return count, None


def run_guided(name: str, seconds: float, folder: str, seed: int) -> None:
    """In a process of its own: atheris, which does not return."""
    import atheris  # noqa: PLC0415  # only here: it is not installed for anything else

    target = TARGETS[name]

    def one(data: bytes) -> None:
        if (fault := fault_of(target, data)) is not None:
            print(f"{fault} ({keep(name, data, 'crash')})", flush=True)
            os._exit(FOUND)

    engine: Any = atheris
    options = [f"-max_total_time={int(seconds)}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", "-rss_limit_mb=2048"]
    corpus = str(Path(__file__).parent / "corpora" / name)
    engine.Setup([sys.argv[0], *options, "-timeout=20", "-verbosity=0", "-print_final_stats=1", folder, corpus], one)
    engine.Fuzz()


def guided(target: Target, seconds: float, seed: int) -> tuple[int, str | None]:
    """One target under atheris: the number of inputs, and the fault if there is one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ENGINE), str(ENGINE.parent)))}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fuzz.instrumented", target.name, str(seconds), folder, str(seed)]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds + 120, check=False
        )
    said = ended.stdout + ended.stderr
    executed = [line for line in said.splitlines() if "number_of_executed_units" in line]
    count = int(executed[0].split()[-1]) if executed else 0
    if ended.returncode == 0:
        return count, None
    return count, ended.stdout.strip() or said.strip()[-500:]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("targets", nargs="*", help="their names; all of them if none is given")
    given = parser.parse_args(arguments)
    has_engine = (ENGINE / "atheris").is_dir()
    print("engine: atheris" if has_engine else "engine: random mutations (scripts/fuzz-engine installs atheris)")
    faults = 0
    for target in chosen(given.targets):
        count, fault = (guided if has_engine else run_random)(target, given.seconds, given.seed)
        faults += fault is not None
        print(f"{target.name:20} {count:>10,} inputs  {fault or 'no fault'}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
