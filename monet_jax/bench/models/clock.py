"""Median step times on this device; all programs of a model run in turns."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from ... import zoo
from ...planning.step import step_to_compile
from ...tracing.signature import make_options, take_apart
from .cells import Program

#: Turns in which every program runs once; the first is not counted.
TURNS = 6


def step_seconds(
    model: str, scale: Any, dtype: str, programs: Iterable[Program]
) -> dict[Any, float]:
    """Median seconds of a step of each program, by its key."""
    problem = zoo.build(model, scale=scale, dtype=dtype)
    args = problem.make_args(0)
    leaves = list(take_apart(make_options(problem.loss, 0, (), ()), args, {}).leaves)
    distinct = {p.key: p for p in programs if p.traced is not None}
    steps = {key: _compiled(program, leaves) for key, program in distinct.items()}
    return dict(zip(steps, median_seconds(list(steps.values()), TURNS), strict=True))


def median_seconds(runs: Sequence[Callable[[], Any]], turns: int) -> list[float]:
    """Median seconds of each function, run in turns; the first turn is not counted."""
    taken: list[list[float]] = [[] for _ in runs]
    for turn in range(turns):
        for run, seconds in zip(runs, taken, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run())
            if turn:
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in taken]


def _compiled(program: Program, leaves: list[Any]) -> Callable[[], Any]:
    step, (inputs, constants, cotangents) = step_to_compile(program.traced, program.function)
    compiled = jax.jit(step).lower(inputs, constants, cotangents).compile()
    del cotangents  # a loss takes none
    return lambda: compiled(leaves, list(program.traced.constants), [])
