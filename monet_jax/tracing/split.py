"""Splits a program into stages: which equations each runs, what it reads, and what it hands on."""

import itertools as it
from collections.abc import Collection, Iterable

from ..ir import compat
from ..ir.primitives import Kind, is_random, kind_of
from ..ir.program import Equation, Program
from ..ir.stage import Differentiation, Stage, active_values
from .partition import cut


def split(
    program: Program, derivative: Differentiation, alone: Collection[int] = ()
) -> tuple[Stage, ...]:
    """The program as consecutive stages.

    The equations at the positions `alone` are one each; one that is to be apart begins a stage, to
    which the little that often follows a loss head, a division say, belongs as well.
    """
    free = _free_values(program, {i for p in alone for i in program.equations[p].reads})
    ends = {p for position in alone for p in (position, position + 1)}
    ends.update(p for p, e in enumerate(program.equations) if e.apart)
    positions = sorted({*cut(program, free), *ends, len(program.equations)})
    slices = [
        [i for i in range(lo, hi) if not _is_free(program.equations[i], free)]
        for lo, hi in it.pairwise(positions)
    ]
    return _make_stages(program, derivative, [s for s in slices if s] or [[]], free)


def _free_values(program: Program, handed_on: set[int]) -> frozenset[int]:
    """Values that stages compute anew rather than hand on: masks, tables, casts of parameters.

    They come from arguments and constants alone, by work that XLA fuses into its consumer, and are
    not among those that are to be `handed_on`.
    """
    free: set[int] = set()
    for equation in program.equations:
        cheap = kind_of(equation) in (Kind.VIEW, Kind.FUSED) and not equation.eqn.effects
        keys = any(compat.is_key(program.avals[i]) for i in equation.outputs)
        fresh = not keys and not is_random(equation)
        known = all(i in program.given or i in free for i in equation.reads)
        if cheap and fresh and known and not handed_on.intersection(equation.outputs):
            free.update(equation.outputs)
    return frozenset(free)


def _is_free(equation: Equation, free: frozenset[int]) -> bool:
    return free.issuperset(equation.outputs) and bool(equation.outputs)


def _make_stages(program, derivative, slices: list[list[int]], free) -> tuple[Stage, ...]:
    producer = {i: p for p, e in enumerate(program.equations) for i in e.outputs}
    active = active_values(program, derivative)
    later = {i for i in program.outputs if isinstance(i, int)}
    stages = []
    for n, positions in reversed(list(enumerate(slices))):
        wanted = later if n == len(slices) - 1 else set()
        positions = _with_free(program, producer, free, positions, wanted)
        stage = _make_stage(program, active, positions, later)
        later = (later - free) | set(stage.inputs)  # the last stage returns the free outputs
        stages.append(stage)
    return tuple(reversed(stages))


def _with_free(program, producer, free, positions: list[int], wanted: Iterable[int]) -> list[int]:
    """The positions, and those of the free values that they (or `wanted`) read."""
    found = set(positions)
    queue = [i for p in positions for i in program.equations[p].reads] + list(wanted)
    while queue:
        i = queue.pop()
        if i in free and producer[i] not in found:
            found.add(producer[i])
            queue += program.equations[producer[i]].reads
    return sorted(found)


def _make_stage(program, active, positions: list[int], later: set[int]) -> Stage:
    equations = tuple(program.equations[p] for p in positions)
    written = {i for e in equations for i in e.outputs}
    inputs = tuple(sorted({i for e in equations for i in e.reads} - written))
    outputs = tuple(sorted(written & later))
    return Stage(
        equations,
        inputs,
        outputs,
        tuple(i for i in inputs if i in active),
        tuple(i for i in outputs if i in active),
    )
