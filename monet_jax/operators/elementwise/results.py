"""Elementwise functions whose derivative can read their result: `elu`, `selu`, `celu`, softplus.

The results of these functions, and of `log_sigmoid`, determine the residuals that JAX computes
from their operands, also where they are scaled or shifted, whoever wrote them. The product behind
them saves the result for its own derivative, so that nothing of the operand need be saved. (JAX's
derivatives of `tanh`, `logistic` and `exp` read results already; `masks` treats `relu`.)

A function is known by what it computes: the residuals of its derivative are evaluated on all
numbers of 16 bits, and once more by candidates that read the result (`fitting`). Where the local
derivatives agree, the candidates are representations of residual hooks, and the rest of the
derivative is JAX's, equation by equation. Functions that are not analytic on both sides of zero are
left alone (`analytic`), so that no jump or spike lies between those numbers.

Local derivatives computed from results are right within 4 units in the last place of the greatest
one; for softplus and `log_sigmoid` in their own last place, where they do not underflow. Nearer to
zero than 1e-30, operands may count as zero. In 16 bits, the local derivatives of softplus and
`log_sigmoid` alone are computed from results: they are nearer to the exact ones than JAX's, all
others are farther off.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...ir import compat
from ...ir.primitives import Kind, kind_of
from ...ir.program import (
    Equation,
    Program,
    dependents,
    flatten,
    listed,
    positions_of,
    shape_of,
    without_dead_code,
)
from ...ir.stage import Replaced, Stage, active_in
from ..context import Context
from ..derivative import Derivative, joined
from ..hooks import hook, is_hook
from ..representations import Derived
from .analytic import is_smooth_beside_zero
from .chains import ChainFinder, ElementwiseChain
from .fitting import representations
from .pointwise import ElementwiseFunction, is_elementwise_program

#: Elements below which nothing is gained.
_LEAST = 64
#: Functions whose residuals may follow from the result call one of these.
_EXPONENTIALS = frozenset(("exp", "expm1"))


def rewrite(stage: Stage, avals: list[Any], context: Context) -> Replaced:
    """A stage whose functions have derivatives that may read their results.

    Where products compute their elementwise operands, no stage is changed: nothing saves the
    results there, and the operand is as good a value to save.

    Arguments:
        stage: its equations.
        avals: of all values; avals of new values are added.
        context: the target of the function.
    """
    if context.backend.fuses_into_products:
        return Replaced(stage)
    active = active_in(stage.equations, stage.differentiated_inputs)
    finder = ChainFinder(stage, functools.partial(_may_end, avals, active), avals)
    instead: dict[int, list[Equation]] = {}
    position = positions_of(stage.equations)
    for value in _kept(stage):
        found = _function(finder, value) if finder.is_end(value) else None
        if found is not None:
            last = finder.writer[value]
            operands = [found.chain.source, *last.inputs]
            replaced = functools.partial(found.replaced, last)
            instead[position[value]] = listed(replaced, operands, last, avals, last.outputs)
    return Replaced.of(stage, instead)


def _may_end(avals: Sequence[Any], active: set[int], value: int) -> bool:
    """Whether a value is differentiated, of some size, and not sharded by explicit axes."""
    is_large = value in active and math.prod(avals[value].shape) >= _LEAST
    return is_large and not compat.is_placed(avals[value])


def _kept(stage: Stage) -> list[int]:
    """The values that are in memory: the outputs of the stage, and what products read."""
    writer = {i: e for e in stage.equations for i in e.outputs}
    solid = (e for e in stage.equations if kind_of(e) is Kind.SOLID)
    found: dict[int, None] = {}
    for i in (*stage.outputs, *(i for e in solid for i in e.reads)):
        while i in writer and _is_view(writer[i]):
            (i,) = writer[i].reads
        found[i] = None
    return [*found]


def _is_view(equation: Equation) -> bool:
    """Whether an equation reshapes its operand, and has no derivative rule of its own."""
    own = equation.primitive == "custom_jvp_call" or is_hook(equation)
    return kind_of(equation) is Kind.VIEW and len(equation.reads) == 1 and not own


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function whose derivative can be computed from its result.

    Attributes:
        chain: the function.
        derivative: JAX's own.
        representations: how each residual of the derivative follows from the result.
    """

    chain: ElementwiseChain
    derivative: Derivative
    representations: tuple[Derived, ...]

    def replaced(self, last: Equation, source: jax.Array, *inputs: jax.Array) -> jax.Array:
        """The last equation of the chain, with the derivative of the whole."""
        (result,) = compat.bind_here(last.eqn, inputs)
        residuals = self.derivative.residuals_of([source])
        pairs = zip(residuals, self.representations, strict=True)
        read = [hook(x, result, representations=[derived]) for x, derived in pairs]
        return joined(self.derivative.pushed, result, read, [source])


def _function(finder: ChainFinder, result: int) -> _Function | None:
    """The shortest function with this result, if its derivative can be computed from the result."""
    before = finder.before(result)
    for count in range(1, len(before) + 1):
        chain = finder.chain(result, before[:count])
        if not any(_calls_exponentials(e.eqn) for e in chain.equations):
            continue
        pushed = _Pushed.of(chain, shape_of(finder.avals[chain.source]))
        if pushed.reads_more_than_the_result:
            found = pushed.representations
            return None if found is None else _Function(chain, pushed.derivative, found)
    return None


def _calls_exponentials(eqn: Any) -> bool:
    """Whether an equation is an exponential, or has one in it."""
    bodies = compat.subjaxprs(eqn)
    inner = any(_calls_exponentials(e) for body in bodies for e in body.jaxpr.eqns)
    return inner or eqn.primitive.name in _EXPONENTIALS


@dataclasses.dataclass(frozen=True)
class _Pushed:
    """A function and its derivative as JAX computes them.

    Attributes:
        program: `(source, tangent) -> (result, tangent)`.
        residuals: the values by which the tangent is multiplied or selected.
    """

    program: Program
    residuals: tuple[int, ...]

    @staticmethod
    def of(chain: ElementwiseChain, aval: jax.ShapeDtypeStruct) -> "_Pushed":
        """The function of a chain, and its derivative."""

        def pushed(x, tangent):
            return jax.jvp(chain, (x,), (tangent,))

        program = flatten(jax.make_jaxpr(pushed)(aval, aval))
        equations = without_dead_code(program.equations, program.outputs[1:])
        primal, tangents = (dependents(equations, [i]) for i in program.inputs)
        linear = [e for e in equations if tangents.intersection(e.outputs)]
        read = {i for e in linear for i in e.reads} & (primal - tangents)
        return _Pushed(program, tuple(sorted(read)))

    @property
    def reads_more_than_the_result(self) -> bool:
        """Whether the derivative reads values that JAX does not compute from the result."""
        others = [e for e in self.program.equations if self.program.outputs[0] not in e.outputs]
        beyond = dependents(others, self.program.inputs[:1])
        return not beyond.isdisjoint(self.residuals)

    @property
    def derivative(self) -> Derivative:
        """The derivative alone."""
        program = dataclasses.replace(self.program, outputs=self.program.outputs[1:])
        return Derivative(program, [0], self.residuals)

    @property
    def forward(self) -> Program:
        """`source -> (result, *residuals)`."""
        outputs = (self.program.outputs[0], *self.residuals)
        return dataclasses.replace(
            self.program,
            inputs=self.program.inputs[:1],
            outputs=outputs,
            equations=without_dead_code(self.program.equations, outputs),
        )

    @property
    def late(self) -> Program:
        """`(tangent, *residuals) -> tangent`."""
        derivative = self.derivative
        return dataclasses.replace(
            derivative.program,
            inputs=(self.program.inputs[1], *derivative.residuals),
            equations=derivative.late,
        )

    @property
    def representations(self) -> tuple[Derived, ...] | None:
        """How each residual follows from the result; None where no formula for one is known."""
        program, aval = self.forward, self.program.avals[self.program.inputs[0]]
        if not is_elementwise_program(program, aval.shape):
            return None
        dtypes = {program.avals[i].dtype for i in program.outputs}
        if not dtypes <= {aval.dtype, jnp.dtype(bool)} or not is_smooth_beside_zero(program):
            return None
        return representations(
            *(ElementwiseFunction.of(x, aval.dtype) for x in (program, self.late))
        )
