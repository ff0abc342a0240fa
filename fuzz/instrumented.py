"""One target under atheris, in a process of its own: the modules of Scale0 are imported with instrumentation."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["scale0"]):
    import fuzz.targets  # noqa: F401

from fuzz.main import run_guided

if __name__ == "__main__":
    run_guided(sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
