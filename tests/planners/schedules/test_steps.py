"""Schedules of single steps mean what plans of regions mean; broken ones are refused."""

import json

import graphs
import pytest

import planners
from planners import Execute, Free, InvalidPlan, Region, cost_of, steps_of


def plain(seed):
    """A random graph in which nothing but values takes memory."""
    graph = graphs.random_graph(seed)
    return graphs.without_extras(graph)


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_and_its_steps_cost_the_same(seed):
    graph = plain(seed)
    for plan in (planners.save_all(graph), planners.save_nothing(graph)):
        cost, replayed = cost_of(graph, steps_of(graph, plan)), planners.replay(graph, plan)
        assert (cost.peak_bytes, cost.seconds, cost.flops) == (
            replayed.peak_bytes,
            replayed.seconds,
            replayed.flops,
        )
        assert cost.live_bytes == replayed.live_bytes


def checked_by_hand(data):
    """Peak and seconds of a stored schedule, by nothing but its JSON."""
    live, peak, seconds = 0, 0, 0.0
    for step in data["steps"]:
        if "free" in step:
            live -= data["values"][step["free"]]["nbytes"]
            continue
        op = data["ops"][step["run"]]
        implementation = op["implementations"][step["implementation"]]
        live += sum(data["values"][i]["nbytes"] for i in op["writes"])
        peak, seconds = (
            max(peak, live + implementation["workspace_bytes"]),
            seconds + implementation["seconds"],
        )
        live -= sum(data["values"][i]["nbytes"] for i in implementation["overwrites"])
    return peak, seconds


def test_anyone_can_check_what_is_stored():
    graph = graphs.chain()
    regions = [Region(0, 0, saved=("b",)), Region(1, 1)]
    steps = steps_of(graph, regions)
    schedule = planners.certified_steps(graph, steps, bound_seconds=0.0, planner="test")
    data = json.loads(json.dumps(planners.steps_to_json(graph, schedule)))
    assert checked_by_hand(data) == (schedule.peak_bytes, schedule.seconds)
    assert schedule.peak_bytes == planners.replay(graph, regions).peak_bytes
    assert data["peak_bytes"] == schedule.peak_bytes


def _frees(graph, step):
    """What makes room for an op to run again."""
    return [Free(i) for i in graph.ops[step.op].outputs]


def test_steps_that_do_not_run_are_refused():
    graph = graphs.chain()
    steps = list(steps_of(graph, planners.save_all(graph)))
    freed = next(n for n, step in enumerate(steps) if isinstance(step, Free))
    last = max(n for n, step in enumerate(steps) if isinstance(step, Execute))
    again = [Execute(len(graph.ops) - 1), *steps[last + 1 :]]
    twice = [*steps[: last + 1], *_frees(graph, steps[last]), *again]
    for wrong, message in [
        (steps[1:], "is read by op"),
        ([*steps, steps[freed]], "not in memory"),
        ([steps[0], *steps], "still in memory"),
        (steps[:last], "runs 0 times"),
        (twice, "runs 2 times"),
    ]:
        with pytest.raises(InvalidPlan, match=message):
            cost_of(graph, wrong)
