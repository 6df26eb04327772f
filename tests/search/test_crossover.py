"""A plan that fits is crossed over with the one that gains most a byte, of those that do not."""

from graphs import blocks
from synthetic_judge import SyntheticJudge, exact

import planners
from monet_jax.candidates.cap import Cap
from monet_jax.candidates.compiled_plans import CompiledPlans
from monet_jax.search.crossover import FAR, compile_crossovers
from planners.regions.simple_plans import minimal_region, saving_all
from planners.regions.uniform import with_regions


class WithOneTooLarge(SyntheticJudge):
    """One plan compiles to more than is predicted."""

    regions, nbytes = (), 0

    def bytes_of(self, regions):
        return self.nbytes if regions == self.regions else super().bytes_of(regions)


def test_it_is_not_crossed_with_the_smallest_that_does_not_fit():
    graph = blocks(8, n_forward=4, seed=1)
    nothing = planners.save_nothing(graph)
    every = with_regions(graph, nothing, planners.save_all(graph).regions)
    least = [minimal_region(graph, s) for s in range(len(graph.stages))]
    saving_one = (
        with_regions(graph, nothing, (*least[:s], saving_all(graph, x), *least[s + 1 :]))
        for s, x in enumerate(least)
    )
    one = max((x for x in saving_one if x.seconds < nothing.seconds), key=lambda x: x.seconds)
    assert nothing.seconds - one.seconds < FAR * graph.seconds
    assert nothing.seconds - every.seconds > FAR * graph.seconds

    judge = WithOneTooLarge(graph, exact)
    limit = (judge.bytes_of(nothing.regions) + judge.bytes_of(every.regions)) // 2
    judge.regions, judge.nbytes = one.regions, limit + 1
    plans = CompiledPlans(judge, Cap(20))
    for decisions in (nothing, one, every):
        plans.of(decisions)
    assert plans.fastest_within(limit).decisions.seconds >= nothing.seconds
    compile_crossovers(plans, limit)
    best = plans.fastest_within(limit)
    assert best.decisions.seconds < one.seconds and plans.temp_bytes(best) <= limit
