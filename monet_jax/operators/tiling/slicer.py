"""Finds the equations of a program that run on slices, from one such equation on.

A `Slicer` follows a sliced value through the equations that read it. It also slices the other
operands of these equations where a slice is best computed from slices. A call whose derivative has
a rule of its own is sliced together with the rule.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ...ir import compat
from ...ir.places import filled
from ...ir.program import Equation, Program, flatten, shape_of
from .division import Division
from .rules import Cut, Function, cuts_of, whole

#: The message where a second derivative cannot be taken.
NOT_TWICE = (
    "a chunked loss, or attention in tiles, calls a function whose second derivative mixes several "
    'chunks or tiles. Plan without the operators "head" and "attention".'
)


@dataclasses.dataclass(frozen=True)
class Sliced:
    """Equations that run on slices.

    Attributes:
        steps: in execution order, each with its cut.
        operands: values that are computed elsewhere, and the axis along which each is read.
    """

    steps: tuple[tuple[Equation, Cut], ...]
    operands: tuple[tuple[int, int | None], ...]

    def run(self, values: Sequence[Any]) -> dict[tuple[int, int | None], Any]:
        """All values computed from slices of the operands, by value and axis."""
        env = dict(zip(self.operands, values, strict=True))
        for equation, cut in self.steps:
            pairs = zip(equation.inputs, cut.inputs, strict=True)
            inputs = [env[i, axis] if isinstance(i, int) else i.val for i, axis in pairs]
            keys = zip(equation.outputs, cut.outputs, strict=True)
            env.update(zip(keys, cut.run(equation, inputs), strict=True))
        return env


class Slicer:
    """The equations of a program that run on slices, as far as they were followed.

    Arguments:
        program: the program.
        division: how axes are divided into slices.
        takes_in: `(equation, axis)` -> whether the equation that writes an operand, to be read
            along an axis, is sliced as well, instead of the operand.
        follows: `(equation, cut)` -> whether an equation that reads a slice may be sliced so.
        in_rule: whether the program is the derivative of a call with a rule of its own. Such a rule
            mostly calls the same function again; whether the rule can be sliced there is found out
            when a second derivative is taken.
    """

    def __init__(
        self,
        program: Program,
        division: Division,
        takes_in: Callable[[Equation, int | None], bool] = lambda equation, axis: True,
        follows: Callable[[Equation, Cut], bool] = lambda equation, cut: True,
        in_rule: bool = False,
    ):
        self.program, self.division, self.in_rule = program, division, in_rule
        self.takes_in, self.follows = takes_in, follows
        self.axes: dict[int, int] = {}  # values that follow from the first ones
        self.sums: set[int] = set()
        self._operands: dict[tuple[int, int | None], None] = {}
        self._steps: dict[tuple[int, tuple[int | None, ...]], Cut] = {}  # position, axes of results
        self._writer = {i: p for p, e in enumerate(program.equations) for i in e.outputs}
        self._dependents: set[int] = set()

    def start(self, value: int, axis: int) -> None:
        """Read an operand, and the values that follow from it, along an axis."""
        self.axes[value] = axis
        self._operands[value, axis] = None
        self._dependents.add(value)

    def start_with(self, position: int, axis: int) -> bool:
        """Slice an equation, and read its result along an axis, as `start` does for an operand."""
        (value,) = self.program.equations[position].outputs
        if not self._take(position, axis):
            return False
        self.axes[value] = axis
        self._dependents.add(value)
        return True

    def follow(self, positions: Sequence[int]) -> None:
        """Slice all equations that read slices, as far as possible."""
        for p in positions:
            equation = self.program.equations[p]
            if self._dependents.isdisjoint(equation.reads):
                continue
            self._dependents.update(equation.outputs)
            if self._dependents.intersection(equation.reads) <= self.axes.keys():
                self._follow(p)

    def sliced(self) -> Sliced:
        """The sliced equations, and their operands."""
        steps = sorted(self._steps.items(), key=lambda item: item[0][0])
        return Sliced(
            tuple((self.program.equations[p], cut) for (p, _), cut in steps), tuple(self._operands)
        )

    @property
    def positions(self) -> set[int]:
        """The equations that are sliced."""
        return {p for p, _ in self._steps}

    def _cuts(self, eqn: Any) -> Iterator[Cut]:
        if compat.primitive_name(eqn) == "custom_jvp_call" and not compat.has_effects(eqn):
            return _call(eqn, self.division, self.in_rule)
        return cuts_of(eqn, self.division)

    def _follow(self, position: int) -> None:
        equation = self.program.equations[position]
        for cut in self._cuts(equation.eqn):
            pairs = [*zip(equation.inputs, cut.inputs, strict=True)]
            own = [(i, d) for i, d in pairs if isinstance(i, int) and i in self.axes]
            if any(self.axes[i] != d for i, d in own) or not self.follows(equation, cut):
                continue
            if not self._all_there(pairs):
                continue
            self._steps[position, cut.outputs] = cut
            if cut.is_sum:
                self.sums.update(equation.outputs)
            else:
                found = zip(equation.outputs, cut.outputs, strict=True)
                self.axes.update((i, d) for i, d in found if d is not None)
            return

    def _take(self, position: int, axis: int | None) -> bool:
        """Slice an equation so that its result is sliced along an axis."""
        equation = self.program.equations[position]
        known = [whole(equation.eqn)] if axis is None else None
        for cut in known or self._cuts(equation.eqn):
            pairs = [*zip(equation.inputs, cut.inputs, strict=True)]
            if cut.outputs == (axis,) and not cut.is_sum and self._all_there(pairs):
                self._steps[position, cut.outputs] = cut
                return True
        return False

    def _all_there(self, pairs: Sequence[tuple[Any, int | None]]) -> bool:
        """Whether operands can be read along these axes; missing operands are added."""
        before = dict(self._operands), dict(self._steps)
        if all(self._is_there(i, axis) for i, axis in pairs if isinstance(i, int)):
            return True
        self._operands, self._steps = before
        return False

    def _is_there(self, value: int, axis: int | None) -> bool:
        if value in self._dependents:
            return value in self.axes and self.axes[value] == axis
        if (value, axis) in self._operands:
            return True
        position = self._writer.get(value)
        if position is not None:
            if (position, (axis,)) in self._steps:
                return True
            equation = self.program.equations[position]
            single = len(equation.outputs) == 1 and not compat.has_effects(equation.eqn)
            if single and self.takes_in(equation, axis) and self._take(position, axis):
                return True
        self._operands[value, axis] = None
        return True


def _call(eqn: Any, division: Division, in_rule: bool) -> Iterator[Cut]:
    """The cuts of a call whose derivative has a rule of its own, which is sliced as its body is."""
    if eqn.params["num_consts"]:
        return
    shapes = [v.aval.shape for v in eqn.invars]
    lead = max(range(len(shapes)), key=lambda n: len(shapes[n]), default=0)
    for axis, size in enumerate(shapes[lead] if shapes else ()):
        primal = None
        if division.divides(size):
            primal = _in_slices(flatten(eqn.params["call_jaxpr"]), {lead: axis}, division)
        if primal is not None:
            pushed = functools.cache(functools.partial(_pushed, eqn, primal, division))
            if in_rule or pushed() is not None:
                yield Cut(
                    primal.inputs, primal.outputs, function=_with_rule(primal, pushed, _floats(eqn))
                )


@dataclasses.dataclass(frozen=True)
class _SlicedProgram:
    """A program that runs on slices: the axes of its inputs and outputs, and its function."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    function: Function


def _in_slices(
    program: Program, start: Mapping[int, int], division: Division, in_rule: bool = False
) -> _SlicedProgram | None:
    """The program on slices of the inputs at the places of `start`; None if it cannot be."""
    slicer = Slicer(program, division, in_rule=in_rule)
    for n, axis in start.items():
        slicer.start(program.inputs[n], axis)
    slicer.follow(range(len(program.equations)))
    if any(i not in slicer.axes for i in program.outputs):
        return None
    sliced = slicer.sliced()
    read = [i for i, _ in sliced.operands]
    constants = [axis for i, axis in sliced.operands if i in program.constants]
    if len({*read}) < len(read) or any(axis is not None for axis in constants):
        return None
    axes = dict(sliced.operands)

    def function(inputs: Sequence[Any]) -> list[Any]:
        values = {**dict(zip(program.inputs, inputs, strict=True)), **program.constants}
        env = sliced.run([values[i] for i in read])
        return [env[i, slicer.axes[i]] for i in program.outputs]

    inputs = tuple(axes.get(i) for i in program.inputs)
    return _SlicedProgram(inputs, tuple(slicer.axes[i] for i in program.outputs), function)


def _pushed(eqn: Any, primal: _SlicedProgram, division: Division) -> Function | None:
    """`(*operands, *tangents of floats) -> (*results, *tangents)` of a call, on slices."""
    avals = [shape_of(v.aval) for v in eqn.invars]
    floats = _floats(eqn)

    def push(*arrays):
        primals, tangents = arrays[: len(avals)], arrays[len(avals) :]

        def function(*chosen):
            return compat.bind_here(eqn, filled(primals, floats, chosen))

        results, pushed = jax.jvp(function, tuple(primals[n] for n in floats), tangents)
        return [*results, *(t for t in pushed if t.dtype != jax.dtypes.float0)]

    program = flatten(jax.make_jaxpr(push)(*avals, *(avals[n] for n in floats)))
    axes = (*primal.inputs, *(primal.inputs[n] for n in floats))
    start = {n: axis for n, axis in enumerate(axes) if axis is not None}
    found = _in_slices(program, start, division, in_rule=True)
    if found is None or found.outputs != 2 * primal.outputs:
        return None
    return found.function


def _floats(eqn: Any) -> list[int]:
    """The places of the operands that have tangents."""
    return [n for n, v in enumerate(eqn.invars) if compat.is_float(v.aval)]


def _with_rule(
    primal: _SlicedProgram, pushed: Callable[[], Function | None], floats: list[int]
) -> Function:
    """The function on slices of operands, with a derivative that another function computes."""
    sliced = jax.custom_jvp(lambda *inputs: primal.function(inputs))

    @sliced.defjvp
    def rule(primals, tangents):
        function = pushed()
        if function is None:
            raise TypeError(NOT_TWICE)
        results = function([*primals, *(tangents[n] for n in floats)])
        return results[: len(results) // 2], results[len(results) // 2 :]

    return lambda inputs: sliced(*inputs)
