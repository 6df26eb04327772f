"""Where memory takes seconds to be touched, the search looks below the budget."""

import itertools

import pytest
from graphs import blocks
from synthetic_judge import FIXED_BYTES, Enumeration, SyntheticJudge, exact, plans_of
from thinning import thinned

import planners
from monet_jax.candidates.cap import Cap
from monet_jax.candidates.compiled_plans import CompiledPlans
from monet_jax.candidates.first_touch import SHARES
from monet_jax.candidates.programs import Programs
from monet_jax.search.search import find

GRAPHS = [blocks(4, n_forward=4, seed=seed) for seed in range(6)]
GAP = max(a - b for a, b in itertools.pairwise(SHARES))


def searched(graph, rate):
    """The judge, the plan for nine tenths of what saving all takes, and that limit."""
    judge = SyntheticJudge(graph, exact)
    judge.touch_seconds_per_byte = rate
    limit = int(0.9 * judge.bytes_of(planners.save_all(graph).regions))
    programs = Programs(CompiledPlans(judge, Cap(20)), None, lambda: None, Enumeration())
    found = find(programs, FIXED_BYTES + limit)
    assert found.fits and found.plan is not None
    return judge, found.plan.decisions, limit


@pytest.mark.parametrize(
    ("touching", "smaller"), thinned([(0.0, 0), (0.3, 1), (3.0, 6)], "0.3-1", "3.0-6")
)
def test_the_sum_of_ops_and_touched_memory_is_near_the_least_of_all_plans(touching, smaller):
    """`touching` all that is saved takes so many times what the ops take."""
    found_smaller = 0
    for graph in GRAPHS:
        total = SyntheticJudge(graph, exact).bytes_of(planners.save_all(graph).regions)
        rate = touching * graph.seconds / total
        judge, plan, limit = searched(graph, rate)
        within = [x for x in plans_of(graph) if judge.bytes_of(x.regions) <= limit]
        least = min(x.seconds + rate * judge.bytes_of(x.regions) for x in within)
        taken = judge.bytes_of(plan.regions)
        assert taken <= limit and plan.seconds + rate * taken <= least + GAP * rate * limit + 1e-9
        found_smaller += taken < judge.bytes_of(searched(graph, 0.0)[1].regions)
    assert found_smaller == smaller
