"""Thinned parameters: each case is there, the named ones run always, and no name is stale."""

import pytest
from thinning import thinned


def named(params):
    """Values of those that run always, and of the others."""
    slow = [any(mark.name == "slow" for mark in param.marks) for param in params]
    return [
        [param.values for param, x in zip(params, slow, strict=True) if x == wanted]
        for wanted in (False, True)
    ]


def test_every_case_is_there_and_those_that_are_named_run_always():
    assert named(thinned([1, True, len, None], "True", "len")) == [
        [(True,), (len,)],
        [(1,), (None,)],
    ]
    wide = pytest.param((2, 3), id="wide", marks=pytest.mark.gpu)
    quick, slow = named(thinned([("a", wide), ("b", wide)], "b-wide"))
    assert (quick, slow) == ([("b", (2, 3))], [("a", (2, 3))])
    assert all("gpu" in {m.name for m in param.marks} for param in thinned([wide, ("a", wide)]))


def test_a_name_of_no_case_is_noticed():
    with pytest.raises(ValueError, match=r"no cases of these names: \['c'\]"):
        thinned(["a", "b"], "a", "c")
