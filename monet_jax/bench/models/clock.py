"""Step times on this device; all programs of a model run in turns."""

from collections.abc import Iterable
from typing import Any

from ... import zoo
from ...planning.step import step_on
from ...seconds.clock import Timing, in_turns
from ...tracing.signature import make_options, take_apart
from .cells import Program

#: Turns in which every program runs once; the first is not counted.
TURNS = 8


def step_timings(
    model: str, scale: Any, dtype: str, programs: Iterable[Program]
) -> dict[Any, Timing]:
    """Seconds of a step of each program, by its key."""
    problem = zoo.build(model, scale=scale, dtype=dtype)
    args = problem.make_args(0)
    leaves = take_apart(make_options(problem.loss, 0, (), ()), args, {}).leaves
    distinct = {p.key: p for p in programs if p.traced is not None}
    steps = [step_on(p.traced, p.function, lambda: leaves) for p in distinct.values()]
    return dict(zip(distinct, in_turns(steps, TURNS), strict=True))
