"""Orders of ops, from the values kept of the forward pass, and the fastest of some orders.

An order of ops expresses all that the planners of published heuristics decide: `with_frees` holds a
value from the run that writes it to its last read before it is written again, so a value is dropped
by running its op again, and kept by not doing so. Outputs of an op that must run once are kept for
as long as anything reads them.
"""

from collections.abc import Collection, Iterable, Sequence, Set

from ..graph import Graph
from .steps import Schedule, certified_steps, infeasible, with_frees


def needed_ops(graph: Graph, values: Iterable[int], available: Collection[int]) -> list[int]:
    """Forward ops, in order, that make some values again from available ones.

    Outputs of an op that must run once are in memory: the op is left out. Gradients are, too.
    """
    pending, seen, found = list(values), set(available), set()
    while pending:
        i = pending.pop()
        if i in seen or i not in graph.forward_writer_number:
            continue
        seen.add(i)
        o = graph.forward_writer_number[i]
        if graph.may_rerun(o) and o not in found:
            found.add(o)
            pending += graph.ops[o].inputs
    return sorted(found)


def order_keeping(graph: Graph, kept: Set[int]) -> list[int]:
    """The step in which only `kept` forward values outlast the forward pass.

    Each op that the backward pass needs besides runs again once, just before the first backward op
    that needs it; what it writes then stays until its last read.
    """
    first = graph.forward_count
    order, available = list(range(first)), set(kept)
    for b in range(first, len(graph.ops)):
        again = needed_ops(graph, graph.ops[b].inputs, available)
        available |= {i for o in again for i in graph.ops[o].outputs}
        order += [*again, b]
    return order


def without_useless_runs(graph: Graph, order: Sequence[int]) -> list[int]:
    """The order without repeated runs of which nothing is read before it is written again.

    No value is held for longer without them.
    """
    first_run = {o: k for k, o in reversed(list(enumerate(order)))}
    read_later: set[int] = set()
    found = []
    for k in range(len(order) - 1, -1, -1):
        op = graph.ops[order[k]]
        if first_run[order[k]] < k and read_later.isdisjoint(op.outputs):
            continue
        read_later.difference_update(op.outputs)
        read_later.update(op.inputs)
        found.append(order[k])
    return found[::-1]


def schedule_of(
    graph: Graph, order: Sequence[int], *, planner: str, bound_seconds: float = 0.0
) -> Schedule:
    """The schedule that runs ops in an order and holds nothing for longer than it is read."""
    steps = with_frees(graph, order)
    return certified_steps(graph, steps, bound_seconds=bound_seconds, planner=planner)


def fastest_within(
    graph: Graph,
    orders: Iterable[Sequence[int]],
    budget_bytes: int,
    *,
    planner: str,
    bound_seconds: float = 0.0,
) -> Schedule:
    """The schedule of the fastest order whose replayed peak keeps a budget.

    Of equally fast ones the smallest.

    Arguments:
        orders: at least one.

    Raises:
        InfeasibleBudget: none does; `minimum_bytes` is the least peak among them.
    """
    schedules = [
        schedule_of(graph, order, planner=planner, bound_seconds=bound_seconds)
        for order in dict.fromkeys(map(tuple, orders))
    ]
    fitting = [schedule for schedule in schedules if schedule.peak_bytes <= budget_bytes]
    if not fitting:
        raise infeasible(graph, min(schedules, key=lambda x: x.peak_bytes), budget_bytes)
    return min(fitting, key=lambda x: (x.seconds, x.peak_bytes))
