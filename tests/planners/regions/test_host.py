"""Values in the host's memory: what plans with them take by hand, and what the planner finds."""

import dataclasses
import itertools as it

import pytest
from thinning import thinned

import planners
from planners import Graph, InvalidPlan, Region, Stages, replay, save_nothing
from planners.graph import Link, Loop, Op, Stage, Value
from planners.transfers import keeps_host

EXACT = Stages(gap=0.0, time_limit=60.0)
LINK = Link(out_bytes_per_second=10.0, back_bytes_per_second=20.0, host_bytes=10**9)
STAGES = 4


def chain(link=LINK, hidden=80, handed_on=40, seconds=4.0):
    """Stages that compute a hidden value, and from it the input of the next stage.

    The backward reads both. Stage `s` may move its hidden value `h` and its input `x`.
    """
    values, forward, backward = [], [], []
    for s in range(STAGES):
        more = {"reader": s} if s < STAGES - 1 else {}
        values += [Value(f"h{s}", hidden, savable=True, **more)]
        values += [
            Value(f"x{s + 1}", handed_on, savable=True, **({"reader": s + 1} if more else {}))
        ]
    for s in range(STAGES):
        x, h = 2 * s - 1, 2 * s
        inputs = (x,) if s else ()
        forward.append(
            (Op("up", inputs, (h,), seconds), Op("down", (h, *inputs), (h + 1,), seconds))
        )
    for s in reversed(range(STAGES)):
        n, x, h = len(values), 2 * s - 1, 2 * s
        values += [Value(f"g{s}", handed_on)]
        inputs = (x,) if s else ()
        backward.append(
            (Op("pull", (h, *inputs, *([n - 1] if s < STAGES - 1 else [])), (n,), 2 * seconds),)
        )
    stages = (
        Stage(f"s{s}", f, b) for s, (f, b) in enumerate(zip(forward, backward[::-1], strict=True))
    )
    return Graph(tuple(values), tuple(stages), link=link)


def without(graph):
    """The graph, of which nothing may be moved."""
    values = tuple(dataclasses.replace(value, reader=None) for value in graph.values)
    return dataclasses.replace(graph, values=values, link=None)


def changed(graph, s, **changes):
    """Regions that save nothing, one of them with other decisions."""
    regions = list(save_nothing(graph).regions)
    regions[s] = dataclasses.replace(regions[s], **changes)
    return tuple(regions)


# ------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # Written 4 s before the region ends: 4 of 8 s out are hidden, none of the 4 s back.
        ({"offloaded": ("h1",)}, 4 + 4),
        # Out behind the 8 s of the next forward, back behind 8 s of backward and 4 s again.
        ({"offloaded": ("h1",), "ahead": 1}, 0),
        # There from the region's first second on: 4 s out are hidden, 2 s back are not; and the
        # hidden value is computed again.
        ({"offloaded": ("x1",)}, 2 + 4),
        # 12 s out, of which 8 are hidden behind the next region; 6 s back are hidden.
        ({"offloaded": ("h1", "x1"), "ahead": 1}, 0),
    ],
)
def test_seconds_in_which_the_device_waits(changes, seconds):
    graph = chain()
    plan = replay(graph, changed(graph, 1, **changes))
    again = 4.0 * (STAGES - (1 if "h1" in changes["offloaded"] else 0))
    waits = seconds if changes.get("ahead") or "h1" in changes["offloaded"] else seconds - 4
    assert plan.waiting_seconds == pytest.approx(waits)
    assert plan.seconds == pytest.approx(graph.seconds + again + waits)
    assert plan.host_bytes == sum(80 if name[0] == "h" else 40 for name in changes["offloaded"])


def test_copies_of_one_direction_wait_for_each_other():
    slow = dataclasses.replace(LINK, out_bytes_per_second=5.0)  # 16 s for each hidden value
    graph = chain(slow)
    regions = [
        dataclasses.replace(x, offloaded=(f"h{x.first}",), ahead=1) if x.first < 2 else x
        for x in save_nothing(graph).regions
    ]
    # The first goes out from 4 to 20 s; the second, written at 12 s, from 20 to 36. The first is
    # due at 16 s, so that the forward stands still for 4; the second 8 s later, at 28.
    assert replay(graph, regions).waiting_seconds == pytest.approx(4 + 8)


def test_what_is_moved_takes_no_memory_until_it_comes_back():
    graph = chain()
    nothing = replay(graph, save_nothing(graph).regions)
    for name, saved in (("h1", ("h1",)), ("x1", ())):
        moved = replay(graph, changed(graph, 1, offloaded=(name,)))
        early = replay(graph, changed(graph, 1, offloaded=(name,), ahead=1))
        kept = replay(graph, changed(graph, 1, saved=saved))
        assert moved.peak_bytes <= min(kept.peak_bytes, nothing.peak_bytes)
        assert moved.peak_bytes <= early.peak_bytes
    every = [
        dataclasses.replace(x, offloaded=(f"x{x.first}",)) if 0 < x.first < STAGES - 1 else x
        for x in save_nothing(graph).regions
    ]
    # Three inputs wait at the peak, and the one in use has come back.
    assert replay(graph, every).peak_bytes == nothing.peak_bytes - 40


@pytest.mark.parametrize(
    ("s", "changes", "says"),
    [
        (1, {"offloaded": ("nothing",)}, "no value"),
        (1, {"offloaded": ("g1",)}, "no value"),
        (1, {"offloaded": ("x2",)}, "stage 2 reads"),
        (1, {"offloaded": ("h1",), "saved": ("h1",)}, "save it besides"),
        (1, {"offloaded": ("h1",), "alone": True}, "must be a checkpoint"),
        (1, {"offloaded": ("h1",), "inner": (Region(1, 1),)}, "must be a checkpoint"),
        (1, {"inner": (Region(1, 1, offloaded=("h1",)),)}, "must move nothing"),
    ],
)
def test_what_must_not_be_moved(s, changes, says):
    graph = chain()
    with pytest.raises(InvalidPlan, match=says):
        replay(graph, changed(graph, s, **changes))


def test_nothing_moves_without_a_link():
    graph = dataclasses.replace(chain(), link=None)
    with pytest.raises(InvalidPlan, match="no link"):
        replay(graph, changed(graph, 1, offloaded=("h1",)))


def looped(**changes):
    """The chain, of which the first three stages are the iterations of a loop."""
    return dataclasses.replace(chain(**changes), loops=(Loop(0, 1, 3),))


def test_the_last_iteration_of_a_loop_keeps_what_would_be_fetched_ahead():
    graph = looped()
    ahead = replay(graph, changed(graph, 2, offloaded=("h2",), ahead=1))
    saved = replay(graph, changed(graph, 2, saved=("h2",)))
    assert (ahead.live_bytes, ahead.seconds) == (saved.live_bytes, saved.seconds)
    assert ahead.host_bytes == 80  # its slot of the stack
    own = replay(graph, changed(graph, 2, offloaded=("h2",)))
    assert own.peak_bytes < saved.peak_bytes and own.waiting_seconds > 0


def test_the_iteration_behind_hides_copies():
    slow = dataclasses.replace(LINK, out_bytes_per_second=5.0, back_bytes_per_second=5.0)
    graph = looped(link=slow)
    plan = replay(graph, changed(graph, 0, offloaded=("h0",), ahead=1))
    # 16 s each way: out from 4 s, due when the next iteration ends, at 16 s; back behind the 12 s
    # that the next iteration's backward takes, with what it computes again.
    assert plan.waiting_seconds == pytest.approx((4 + 16 - 16) + (16 - 12))


def test_stacks_have_a_slot_for_each_iteration():
    graph = looped()
    regions = [
        dataclasses.replace(x, offloaded=(f"x{x.first}",), ahead=1) if x.first in (1, 2) else x
        for x in save_nothing(graph).regions
    ]
    assert replay(graph, regions).host_bytes == 3 * 40  # the first one's is for an argument
    for limit, keeps in ((120, True), (119, False)):
        link = dataclasses.replace(LINK, host_bytes=limit)
        assert keeps_host(dataclasses.replace(graph, link=link), regions) == keeps


# ------------------------------------------------------------------------------ the planner


def every_plan(graph):
    """All plans of single stages that save, move and recompute hidden values and inputs."""
    options = []
    for region in save_nothing(graph).regions:
        s, some = region.first, []
        movable = [v.name for v in graph.values if v.reader == s]
        for saved in ((), (f"h{s}",)):
            for size in range(len(movable) + 1):
                for moved in it.combinations(movable, size):
                    if not {*saved} & {*moved}:
                        more = {"saved": saved, "offloaded": moved}
                        some += [
                            dataclasses.replace(region, **more, ahead=ahead)
                            for ahead in ((0, 1) if moved else (0,))
                        ]
        options.append(some)
    return it.product(*options)


@pytest.mark.parametrize(
    "link",
    thinned(
        [
            pytest.param(LINK, id="even"),
            pytest.param(Link(4.0, 40.0, 10**9), id="slow out"),
            pytest.param(Link(40.0, 4.0, 10**9), id="slow back"),
            pytest.param(Link(10.0, 20.0, 120), id="little memory"),
        ],
        *("even", "little memory"),
    ),
)
def test_the_planner_finds_what_exhaustive_search_does(link):
    graph = chain(link)
    plans = [replay(graph, regions) for regions in every_plan(graph)]
    plans = [plan for plan in plans if plan.host_bytes <= link.host_bytes]
    least = min(plan.peak_bytes for plan in plans)
    prepared, moved = EXACT.prepare(graph), 0
    for budget in range(least, save_nothing(graph).peak_bytes + 200, 40):
        best = min(plan.seconds for plan in plans if plan.peak_bytes <= budget)
        found = prepared.fastest(budget)
        assert found.peak_bytes <= budget and found.host_bytes <= link.host_bytes
        assert found.seconds == pytest.approx(replay(graph, found).seconds)
        # Waits are bounded by what the stage behind computes, without what it recomputes.
        assert found.seconds <= best + 1e-6 + 4.0 * STAGES * (found.seconds > best)
        moved += found.host_bytes > 0
    assert moved


@pytest.mark.parametrize("link", [LINK, Link(1e-3, 1e-3, 10**9)], ids=["quick", "dead"])
def test_a_link_never_makes_a_plan_slower(link):
    graph = chain(link)
    alone, gained = EXACT.prepare(without(graph)), False
    allowed = EXACT.prepare(graph)
    smallest = alone.smallest().peak_bytes
    for budget in range(smallest, smallest + 400, 40):
        ours, theirs = allowed.fastest(budget), alone.fastest(budget)
        assert ours.seconds <= theirs.seconds + 1e-9
        gained |= ours.seconds < theirs.seconds
    assert gained == (link is LINK)
    assert allowed.smallest().peak_bytes <= smallest


def test_plans_that_move_survive_json():
    graph = chain()
    plan = planners.Plan(
        changed(graph, 1, offloaded=("h1", "x1"), ahead=1), 1, 2.0, 3, 1.0, "x", 120, 0.5
    )
    assert planners.plan_from_json(plan.to_json()) == plan
