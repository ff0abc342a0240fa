"""Every kept input of the fuzzer keeps the promise of its parser, and the harness notices parsers that do not.

Promise: WIRE-3, WIRE-5
"""

from __future__ import annotations

import pytest

from fuzz.harness import MAX_BYTES, corpus_of, fault_of
from fuzz.main import run_random
from fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_kept_input_raises_only_the_declared_errors_within_the_limits(name: str) -> None:
    kept = corpus_of(name)
    assert kept, f"{name} has no corpus; run: .venv/bin/python -m fuzz.seeds"
    faults = {path.name: fault_of(TARGETS[name], path.read_bytes(), memory=len(kept) < 20) for path in kept}
    assert {path: fault for path, fault in faults.items() if fault is not None} == {}


def test_every_corpus_has_a_target() -> None:
    assert {path.name for path in corpus_of("zmtp_null")[0].parents[1].iterdir()} == set(TARGETS)


def _undeclared(data: bytes) -> None:
    if b"\xff" in data:
        data.decode()


def _endless(data: bytes) -> None:
    while data:
        pass


def _greedy(data: bytes) -> None:
    bytearray(2 * MAX_BYTES if data else 0)


@pytest.mark.parametrize(
    ("bad", "fault"),
    [(_undeclared, "UnicodeDecodeError"), (_endless, "did not end"), (_greedy, "allocated")],
)
def test_a_planted_bad_parser_is_noticed(bad, fault: str) -> None:
    target = Target("planted", bad)
    assert fault_of(target, b"", memory=True) is None
    assert fault in str(fault_of(target, b"\xff", memory=fault == "allocated"))


def test_a_declared_error_is_no_fault() -> None:
    assert fault_of(Target("planted", _undeclared, (UnicodeDecodeError,)), b"\xff") is None


def test_random_mutations_find_a_planted_bad_parser_and_keep_the_input(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fuzz.harness.CORPORA", tmp_path)
    count, fault = run_random(Target("planted", _undeclared), 20.0, seed=1)
    assert count > 0
    assert "UnicodeDecodeError" in str(fault)
    [kept] = corpus_of("planted")
    assert b"\xff" in kept.read_bytes()
