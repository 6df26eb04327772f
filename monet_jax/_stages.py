"""The stages of a program: which equations each runs, what it reads, and what it hands on."""

import dataclasses
import itertools as it
from collections.abc import Collection, Iterable, Mapping

import jax

from . import _compat
from ._cut import cut
from ._fusion import STOPS, Kind, is_random, kind_of
from ._program import Equation, Program, shape_of


@dataclasses.dataclass(frozen=True)
class Stage:
    """A slice of a program.

    Attributes:
        equations: in order; cheap producers that several stages read are in each of them.
        inputs: values that it reads and does not compute, in order of their numbers.
        outputs: values that later stages read or the program returns.
        differentiated_inputs: the inputs that receive a cotangent.
        differentiated_outputs: the outputs that pass one on.
        repeats: how many iterations of a loop it stands for.
        hoisted: whether it runs once before the loop whose iterations it belongs to, and once more
            before the loop's backward; its own backward is that of an iteration.
    """

    equations: tuple[Equation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    differentiated_inputs: tuple[int, ...]
    differentiated_outputs: tuple[int, ...]
    repeats: int = 1
    hoisted: bool = False


@dataclasses.dataclass(frozen=True)
class Replaced:
    """A stage, some of whose equations were replaced.

    Attributes:
        stage: as it is now.
        instead: for each equation (its id) that is no longer there what stands in its place.
        weights: what a softmax computes -> the value that is equal to it, which alone its
            derivative reads of the forward pass.
    """

    stage: Stage
    instead: Mapping[int, list[Equation]] = dataclasses.field(default_factory=dict)
    weights: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(
        stage: Stage,
        instead: Mapping[int, list[Equation]],
        weights: Mapping[int, int] | None = None,
    ) -> "Replaced":
        """A stage with other equations in the place of some."""
        equations = tuple(_expanded(stage.equations, instead))
        return Replaced(dataclasses.replace(stage, equations=equations), instead, weights or {})

    def then(self, later: "Replaced") -> "Replaced":
        """The same after others of its equations were replaced."""
        instead = {n: _expanded(new, later.instead) for n, new in self.instead.items()}
        return Replaced(
            later.stage, {**later.instead, **instead}, {**self.weights, **later.weights}
        )


def _expanded(
    equations: Iterable[Equation], instead: Mapping[int, list[Equation]]
) -> list[Equation]:
    """The equations, or what stands in their place."""
    return [x for e in equations for x in instead.get(id(e), [e])]


@dataclasses.dataclass(frozen=True)
class Differentiation:
    """Which derivative of a program is planned for.

    Attributes:
        inputs: values with respect to which it is differentiated.
        outputs: positions among the program's outputs that receive a cotangent.
        forward_mode: whether tangents must pass a plan forward as well, `jax.jit` round it or not.
    """

    inputs: frozenset[int]
    outputs: tuple[int, ...]
    forward_mode: bool = False


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


def active_values(program: Program, derivative: Differentiation) -> frozenset[int]:
    """Values that the derivative's inputs influence and that influence its outputs."""
    influenced = set(derivative.inputs)
    for equation in program.equations:
        if equation.primitive not in STOPS and influenced.intersection(equation.reads):
            influenced.update(i for i in equation.outputs if _compat.is_float(program.avals[i]))
    wanted = [program.outputs[i] for i in derivative.outputs]
    wanted = {i for i in wanted if isinstance(i, int) and i in influenced}
    for equation in reversed(program.equations):
        if equation.primitive not in STOPS and wanted.intersection(equation.outputs):
            wanted.update(influenced.intersection(equation.reads))
    return frozenset(wanted)


def active_in(equations: Iterable[Equation], differentiated: Iterable[int]) -> set[int]:
    """The values of these equations through which tangents of some inputs pass."""
    found = set(differentiated)
    for equation in equations:
        if equation.primitive not in STOPS and found.intersection(equation.reads):
            results = zip(equation.outputs, equation.eqn.outvars, strict=True)
            found.update(i for i, var in results if _compat.is_float(var.aval))
    return found


def _free_values(program: Program, handed_on: set[int]) -> frozenset[int]:
    """Values that stages compute anew rather than hand on: masks, tables, casts of parameters.

    They come from arguments and constants alone, by work that XLA fuses into its consumer, and are
    not among those that are to be `handed_on`.
    """
    free: set[int] = set()
    for equation in program.equations:
        cheap = kind_of(equation) in (Kind.VIEW, Kind.FUSED) and not equation.eqn.effects
        keys = any(_compat.is_key(program.avals[i]) for i in equation.outputs)
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


def abstract(program: Program, values: Iterable[int]) -> list[jax.ShapeDtypeStruct]:
    """`ShapeDtypeStruct`s of values, for tracing."""
    avals = (program.avals[i] for i in values)
    return [shape_of(a).update(weak_type=getattr(a, "weak_type", False)) for a in avals]
