"""Which handshake ends when there are too many.

Promise: ZMTP-2
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scale0.transport.core.handshakes import Handshakes, network_of
from tests.fakes.examples import examples


def filled(*rows: tuple[int, str]) -> Handshakes[int]:
    made = Handshakes[int]()
    for holder, address in rows:
        made.add(holder, address)
    return made


def test_the_address_with_the_most_loses_its_oldest() -> None:
    flood = [(number, "10.0.0.9") for number in range(1, 6)]
    made = filled((0, "10.0.0.1"), *flood, (6, "10.0.0.1"))
    ended = []
    while len(made) > 3:
        holder = made.excess()
        assert holder is not None
        made.remove(holder)
        ended.append(holder)
    assert ended[:3] == [1, 2, 3]
    assert ended[3] in (0, 4), "both have two"


def test_a_client_that_knows_our_key_loses_its_handshake_last() -> None:
    made = filled((1, "10.0.0.9"), (2, "10.0.0.9"), (3, "10.0.0.9"), (4, "10.0.0.1"))
    made.acquaint(1)
    made.acquaint(2)
    made.remove(3)
    assert made.excess() == 4
    made.remove(4)
    assert made.excess() == 1
    made.acquaint(1)
    assert len(made) == 2, "a second HELLO changes nothing"
    made.remove(1)
    made.remove(2)
    assert (made.excess(), len(made), list(made)) == (None, 0, [])


def test_a_host_cannot_choose_its_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")
    assert network_of("10.0.0.1") != network_of("10.0.0.2")


@given(st.lists(st.tuples(st.sampled_from(["add", "acquaint", "remove"]), st.integers(0, 8), st.sampled_from("abc"))))
@examples(300)
def test_it_agrees_with_a_list(steps: list[tuple[str, int, str]]) -> None:
    made = Handshakes[int]()
    model: list[list[tuple[int, str]]] = [[], []]
    for step, holder, address in steps:
        known = [entry for group in model for entry in group if entry[0] == holder]
        if step == "add" and not known:
            made.add(holder, address)
            model[0].append((holder, address))
        elif step == "acquaint":
            made.acquaint(holder)
            model[1] += [entry for entry in model[0] if entry[0] == holder]
            model[0] = [entry for entry in model[0] if entry[0] != holder]
        elif step == "remove":
            made.remove(holder)
            model = [[entry for entry in group if entry[0] != holder] for group in model]
        group = model[0] or model[1]
        counts = {each: sum(entry[1] == each for entry in group) for _, each in group}
        oldest = {next(entry[0] for entry in group if entry[1] == each) for each in counts}
        largest = {entry[0] for entry in group if entry[0] in oldest and counts[entry[1]] == max(counts.values())}
        assert made.excess() in largest if largest else made.excess() is None
        assert sorted(made) == sorted(entry[0] for group in model for entry in group)
