"""Stages of a program, and which of its values are differentiated."""

import dataclasses
from collections.abc import Iterable, Mapping

import jax

from . import compat
from .primitives import STOPS
from .program import Equation, Program, shape_of, with_replacements


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
            before the loop's backward; its own backward is part of each iteration's.
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
        weights: result of a softmax -> an equal value, the only one of the forward pass that its
            derivative reads.
        is_changed: whether any equation was replaced.
    """

    stage: Stage
    weights: Mapping[int, int] = dataclasses.field(default_factory=dict)
    is_changed: bool = False

    @staticmethod
    def of(
        stage: Stage,
        instead: Mapping[int, list[Equation]],
        weights: Mapping[int, int] | None = None,
    ) -> "Replaced":
        """A stage with other equations in the place of some, which `instead` has by position."""
        equations = with_replacements(stage.equations, instead)
        changed = dataclasses.replace(stage, equations=equations)
        return Replaced(changed, weights or {}, bool(instead))

    def then(self, later: "Replaced") -> "Replaced":
        """The same after others of its equations were replaced."""
        weights = {**self.weights, **later.weights}
        return Replaced(later.stage, weights, self.is_changed or later.is_changed)


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


def active_values(program: Program, derivative: Differentiation) -> frozenset[int]:
    """Values that the derivative's inputs influence and that influence its outputs."""
    influenced = set(derivative.inputs)
    for equation in program.equations:
        if equation.primitive not in STOPS and influenced.intersection(equation.reads):
            influenced.update(i for i in equation.outputs if compat.is_float(program.avals[i]))
    outputs = [program.outputs[i] for i in derivative.outputs]
    active = {i for i in outputs if isinstance(i, int) and i in influenced}
    for equation in reversed(program.equations):
        if equation.primitive not in STOPS and active.intersection(equation.outputs):
            active.update(influenced.intersection(equation.reads))
    return frozenset(active)


def active_in(equations: Iterable[Equation], differentiated: Iterable[int]) -> set[int]:
    """The values of these equations through which tangents of some inputs pass."""
    found = set(differentiated)
    for equation in equations:
        if equation.primitive not in STOPS and found.intersection(equation.reads):
            results = zip(equation.outputs, equation.eqn.outvars, strict=True)
            found.update(i for i, var in results if compat.is_float(var.aval))
    return found


def abstract(program: Program, values: Iterable[int]) -> list[jax.ShapeDtypeStruct]:
    """`ShapeDtypeStruct`s of values, for tracing."""
    avals = (program.avals[i] for i in values)
    return [shape_of(a).update(weak_type=getattr(a, "weak_type", False)) for a in avals]
