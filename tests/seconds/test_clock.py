"""Medians, spreads and paired intervals, by hand-made times; nothing here reads a clock."""

import math
import random

import pytest

from monet_jax.seconds import clock
from monet_jax.seconds.clock import Timing, in_turns, ratio, timed


def test_the_spread_is_that_of_the_middle_half():
    assert Timing((1.0, 1.0, 1.0, 1.0, 9.0)).spread == 0.0  # one that was disturbed
    assert Timing((1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(2 / 3)
    assert Timing((3.0,)).spread == 0.0


def test_functions_are_timed_in_turns_and_the_first_turn_is_left_out(monkeypatch):
    order = []
    monkeypatch.setattr(clock, "_seconds", lambda run: run() or float(len(order)))
    runs = [lambda n=n: order.append(n) for n in range(3)]
    found = in_turns(runs, 3)
    assert order == 3 * [0, 1, 2]
    assert [x.runs for x in found] == [(4.0, 7.0), (5.0, 8.0), (6.0, 9.0)]


def test_a_function_runs_so_often_at_least_however_long_it_takes(monkeypatch):
    monkeypatch.setattr(clock, "_seconds", lambda run: run() or 1.0)
    runs = []
    timed(lambda: runs.append(None), 4, 0.0)
    assert len(runs) == 4


@pytest.mark.parametrize("turns", [6, 9, 20])
def test_the_interval_of_a_ratio_holds_its_median_in_95_of_100_cases(turns):
    """Ratios are drawn from a skewed distribution with median 1, by a fixed seed."""
    draws, held = random.Random(turns), 0
    for _ in range(2000):
        pairs = [(math.exp(draws.expovariate(1) - math.log(2)), 1.0) for _ in range(turns)]
        found = ratio(*(Timing(runs) for runs in zip(*pairs, strict=True)))
        held += found.low <= 1.0 <= found.high
    assert held / 2000 >= 0.94
    assert held / 2000 <= 0.995  # or it would say nothing


def test_what_both_functions_wait_for_does_not_hide_which_is_slower():
    load = (1.0, 5.0, 1.2, 3.0, 8.0, 1.1, 2.0, 4.0)
    found = ratio(Timing(tuple(1.1 * x for x in load)), Timing(load))
    assert found.is_slower and not found.is_faster
    assert str(found) == "1.100 (1.100 to 1.100)"
