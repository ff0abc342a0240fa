"""Networks of two sizes in virtual time, by the real machines: what must not grow does not.

`python -m simulator.scale.main` runs large ones; `docs/scale.md` has what was found.

Promise: SCALE-1, SCALE-2, SCALE-3
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from simulator.scale.main import main, simulate
from simulator.scale.world import Size

pytestmark = [pytest.mark.slow, pytest.mark.extended]

SMALL = (12, 4, 240)
LARGE = (30, 10, 600)
"""Brokers, groups and clients: three brokers in a group, and twenty clients at each."""


CALM_SECONDS = 60.0
"""Every table is told whole once in this time."""


@cache
def run(size: tuple[int, int, int], silent: bool) -> dict[str, Any]:
    brokers, groups, clients = size
    return simulate(Size(brokers=brokers, groups=groups, clients=clients), 1.0 if silent else CALM_SECONDS, silent)


def test_what_a_broker_says_to_others_does_not_grow_with_the_network():
    small, large = run(SMALL, silent=False)["calm"], run(LARGE, silent=False)["calm"]
    one, other = (calm["per_broker_and_second"]["all"] for calm in (small, large))
    # An eleventh neighbour across the circle is what a larger network costs.
    assert other["messages"] <= one["messages"] * 1.3
    assert other["bytes"] <= one["bytes"] * 1.3
    assert other["most_told_messages"] <= one["most_told_messages"] * 1.6
    assert large["peers"]["most"] <= 2 + 3 + 3 + 2 + 3  # its group, its fallback, whose fallback it is, across


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_change_reaches_all_within_two_heartbeats_and_a_pull(size: tuple[int, int, int]):
    change = run(size, silent=False)["change"]
    assert (change["brokers_on_it"], change["clients_on_it"]) == (size[0], size[2])
    assert change["last_broker_seconds"] <= 2.1
    assert change["last_client_seconds"] <= 2.2
    assert change["document_copies_per_broker"] <= 1.5


@pytest.mark.parametrize("silent", [False, True])
def test_the_loss_of_a_group_moves_its_clients_without_a_herd(silent: bool):
    found = run(LARGE, silent=silent)
    loss, calls = found["loss"], found["calls"]
    assert loss["served_again"] == loss["clients"]
    assert loss["groups_that_serve_them"] == ["g06"]
    assert loss["half_seconds"] <= (10 if silent else 3)
    # Each one negotiates once, and nobody is sent to and fro.
    assert loss["CHECKCONFIG"]["in_all"] <= 1.2 * loss["clients"]
    assert loss["NEEDBROKER"]["in_all"] <= 4 * loss["clients"]
    assert loss["CHECKCONFIG"]["most_per_broker_and_second"] <= loss["clients"] / 3
    assert loss["most_taken_by_one_broker"] <= loss["clients"] * 0.6
    assert calls["open"] == 0
    assert calls["answered"] == calls["made"]


def test_brokers_with_one_address_find_their_places(capsys: pytest.CaptureFixture[str]):
    assert main(["--brokers", "8", "--groups", "4", "--clients", "40", "--seconds", "2", "--join"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["change"]["brokers_on_it"] == 8
    assert found["calls"]["answered"] == found["calls"]["made"]


def test_a_network_without_enough_brokers_is_wrong_usage():
    with pytest.raises(SystemExit) as ended:
        main(["--brokers", "2", "--groups", "4", "--clients", "40"])
    assert ended.value.code == 2
