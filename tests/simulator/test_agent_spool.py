"""The simulated spool does what the real one does: the same results are offered in the same order."""

from __future__ import annotations

import random

import msgspec
import pytest

from scale0.monitoring.agent.edge.log_segment import Instant
from scale0.monitoring.agent.edge.spool import Spool
from simulator.monitoring.spool import MAX_PART_RECORDS, SpoolModel

STEPS = 400


class Pair:
    """A real spool and its model, told the same."""

    def __init__(self, folder, dice: random.Random) -> None:
        self.folder = folder
        self.dice = dice
        self.lost: list[str] = []
        self.model = SpoolModel(100_000, self.lost.append)
        self.starts = 0
        self.boot = 1_000.0
        self.offered: list = []
        self.in_a_row = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        # A process that is killed closes nothing: the next one finds the files as they are.
        self.real = Spool(self.folder, f"s{self.starts}", "boot-1")
        self.model.begin(f"s{self.starts}")
        self.offered = []
        self.in_a_row = 0

    def restart(self) -> None:
        for part in self.real._segments:
            part.release()
        self.start()

    def append(self) -> None:
        if self.in_a_row >= MAX_PART_RECORDS:
            return
        self.in_a_row += 1
        self.boot += self.dice.random()
        body = b'{"state":"ok"}'
        self.real.append("c", body, Instant(self.boot, self.boot))
        self.model.append("c", body, self.boot)

    def connect(self) -> None:
        self.real.connected()
        self.model.connected()
        self.in_a_row = 0

    def lose(self) -> None:
        self.real.lost()
        self.model.disconnected()
        self.offered = []

    def offer(self) -> None:
        now = Instant(self.boot, self.boot)
        real, model = self.real.next(now), self.model.next(self.boot, self.boot)
        assert (real is None) == (model is None)
        assert self.real.has_more == self.model.has_more
        if real is not None and model is not None:
            assert msgspec.json.decode(real.body) == msgspec.json.decode(model[2])
            self.offered.append((real.position, model[0]))

    def acknowledge(self) -> None:
        if self.offered:
            real, model = self.offered.pop(0)
            self.real.delivered(real)
            self.model.delivered(model)


@pytest.mark.parametrize("seed", range(6))
def test_the_model_offers_what_the_real_spool_offers(seed, tmp_path):
    dice = random.Random(seed)
    pair = Pair(tmp_path, dice)
    for _ in range(STEPS):
        act = dice.choices(
            (pair.append, pair.offer, pair.acknowledge, pair.lose, pair.connect, pair.restart), (40, 40, 30, 3, 5, 2)
        )[0]
        act()
    pair.real.close()
    assert not pair.lost


def test_of_too_many_the_oldest_go_and_are_told():
    lost: list[str] = []
    model = SpoolModel(16, lost.append)
    model.begin("s")
    for _ in range(40):
        model.append("c", b"{}", 1.0)
    assert model.count <= 16
    assert lost == [f"s:{n}" for n in range(1, len(lost) + 1)]
    assert len(lost) == 40 - model.count


def test_power_takes_what_was_not_synced():
    lost: list[str] = []
    model = SpoolModel(100, lost.append)
    model.begin("s")
    for boot in (1.0, 2.0, 9.5):
        model.append("c", b"{}", boot)
    model.lose_power(10.0)
    assert lost == ["s:3"]
    assert model.count == 2
