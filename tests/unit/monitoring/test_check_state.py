"""Soft and hard states, compared with an oracle that keeps every result."""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.helen.core.check_state import CheckState, from_row, to_row
from scale0.monitoring.helen.core.flapping import FlapRule
from tests.unit.monitoring.test_flapping import naive_flaps, naive_percent

STATES = ["ok", "warning", "critical", "unknown"]
RULES = [None, FlapRule("icinga", 3000, 2500), FlapRule("nagios", 3000, 2000), FlapRule("sensu", 2000, 500)]


class Oracle:
    """Everything from the list of (state, max_attempts) alone."""

    def __init__(self, rule: FlapRule | None) -> None:
        self.rule = rule
        self.results: list[tuple[str, int]] = []

    def hardness(self, upto: int) -> list[tuple[bool, int]]:
        """Hard or not, and the attempt, after each result."""
        out: list[tuple[bool, int]] = []
        for index in range(upto):
            state, _ = self.results[index]
            if state == "ok":
                out.append((True, 0))
                continue
            first = max((i + 1 for i in range(index) if self.results[i][0] == "ok"), default=0)
            row = range(first, index + 1)
            # Hard once any result of this run was at least as far in it as it had to be.
            hard = any(i - first + 1 >= self.results[i][1] for i in row)
            out.append((hard, 0 if hard else len(row)))
        return out

    def flapping(self) -> list[bool]:
        if self.rule is None:
            return [False] * len(self.results)
        formula = self.rule.formula
        hard = self.hardness(len(self.results))
        seen: list[str] = []
        flaps, out = False, []
        for (state, _), (is_hard, _attempt) in zip(self.results, hard, strict=True):
            if formula != "nagios" or is_hard:
                seen.append(state)
                changes = [one != other for one, other in itertools.pairwise(seen)]
                percent = naive_percent(formula, changes, len(seen))
                flaps = naive_flaps(
                    formula, percent, Fraction(self.rule.start, 100), Fraction(self.rule.end, 100), flaps
                )
            out.append(flaps)
        return out


results = st.lists(st.tuples(st.sampled_from(["ok", *STATES]), st.integers(1, 4)), max_size=70)
steady = st.lists(st.tuples(st.sampled_from(STATES), st.integers(1, 12)), max_size=8).map(
    lambda runs: [(state, 3) for state, times in runs for _ in range(times)]
)


# Promise: CHECK-8
@given(st.sampled_from(RULES), results | steady)
def test_a_state_is_what_the_whole_list_of_results_says(rule, given_results):
    oracle, state = Oracle(rule), CheckState()
    before: tuple[str, bool, bool] = ("", False, False)
    for result, max_attempts in given_results:
        oracle.results.append((result, max_attempts))
        changed = state.advance(result, max_attempts, rule)
        after = (state.state, state.hard, state.flapping)
        assert changed is (after != before)
        before = after
        assert state.state == result
        assert (state.hard, state.attempt) == oracle.hardness(len(oracle.results))[-1]
        assert from_row(to_row(state)) == state
    assert not given_results or state.flapping is oracle.flapping()[-1]


def run(*states: str, max_attempts: int = 3) -> CheckState:
    state = CheckState()
    for one in states:
        state.advance(one, max_attempts, RULES[1])
    return state


# Promise: CHECK-8
def test_a_problem_is_hard_from_the_third_in_a_row_whatever_they_are():
    assert (run("ok", "warning", "critical").hard, run("ok", "warning", "critical").attempt) == (False, 2)
    third = run("ok", "warning", "critical", "unknown")
    assert (third.state, third.hard, third.attempt, third.down) == ("unknown", True, 0, True)


def test_a_hard_problem_stays_hard_with_its_own_state_until_ok():
    state = run("critical", "critical", "critical", "warning")
    assert (state.state, state.hard, state.down, state.problem) == ("warning", True, False, True)
    state.advance("critical", 100, None)
    assert state.down
    state.advance("ok", 3, None)
    assert (state.state, state.hard, state.problem) == ("ok", True, False)


def test_a_soft_recovery_is_hard_at_once_and_restarts_the_count():
    state = run("critical", "critical", "ok", "critical", "critical")
    assert (state.hard, state.attempt) == (False, 2)


def test_one_attempt_makes_the_first_problem_hard():
    assert run("warning", max_attempts=1).problem


def test_a_check_that_never_changed_does_not_flap_and_has_no_history():
    state = run(*["ok"] * 50)
    assert (state.history, state.known, state.flapping) == (0, 21, False)


def test_turning_the_rule_off_ends_flapping():
    state = run(*["ok", "critical"] * 12)
    assert state.flapping
    assert state.advance("ok", 3, None)
    assert not state.flapping
