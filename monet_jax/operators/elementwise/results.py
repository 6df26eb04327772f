"""Which elementwise functions have a derivative that follows from their result?

Those whose result says what JAX reads of their operand: `elu`, `selu`, `celu`, softplus and
`log_sigmoid`, scaled or moved, whoever wrote them. The product behind them keeps the result for its
own derivative, so that nothing of the operand need be kept. (JAX's derivatives of `tanh`,
`logistic` and `exp` read results by themselves; those of `relu` are for `masks`.)

A function is known by what it computes: what its derivative reads is evaluated on all numbers of 16
bits, and once more by candidates that read the result. Where slopes agree, candidates are forms of
taps, and all else of the derivative is JAX's, equation by equation. Between those numbers nothing
can hide, since functions that are not analytic on both sides of zero are left alone (`analytic`).

Slopes that follow from results are right within 4 units in the last place of the greatest slope,
those of softplus and `log_sigmoid` in their own last place, where they do not underflow. Nearer to
zero than 1e-30, operands may count as zero. In 16 bits, only slopes of softplus and `log_sigmoid`
follow from results: they are nearer to the exact ones than JAX's, all others are farther off.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...ir import compat
from ...ir.primitives import Kind, kind_of
from ...ir.program import (
    Equation,
    Program,
    dependents,
    flatten,
    listed,
    shape_of,
    without_dead_code,
)
from ...ir.stage import Replaced, Stage, active_in
from ..context import Context
from ..derivative import Derivative, joined
from ..hooks import hook, is_hook
from ..representations import Derived
from .analytic import is_smooth_beside_zero
from .chains import Blocks, Chain
from .pointwise import Function, computed, is_elementwise_program, numbers

#: Elements below which nothing is gained.
_LEAST = 64
#: Functions that have what it takes call one of them.
_EXPONENTIALS = frozenset(("exp", "expm1"))
#: Nearer to zero, numbers may count as zero: results of some round to that of zero.
_NEAREST = 1e-30
#: How far apart what follows from a result may be from what JAX reads, in units of the last place.
_UNITS = 4


def rewrite(stage: Stage, avals: list[Any], context: Context) -> Replaced:
    """A stage whose functions have derivatives that may read their results.

    Not where products compute what they read: then nothing keeps the results, and one thing to keep
    is as good as another.

    Arguments:
        stage: its equations.
        avals: of all values; those of new ones are added.
        context: what the function is planned for.
    """
    if context.backend.fuses_into_products:
        return Replaced(stage)
    active = active_in(stage.equations, stage.differentiated_inputs)
    blocks = Blocks(stage, functools.partial(_may_end, avals, active), avals)
    instead: dict[int, list[Equation]] = {}
    for value in _kept(stage):
        found = _function(blocks, value) if blocks.is_end(value) else None
        if found is not None:
            last = blocks.writer[value]
            operands = [found.chain.source, *last.inputs]
            replaced = functools.partial(found.replaced, last)
            instead[id(last)] = listed(replaced, operands, last, avals, last.outputs)
    return Replaced.of(stage, instead)


def _may_end(avals: Sequence[Any], active: set[int], value: int) -> bool:
    """Whether a value is differentiated, of some size, and not sharded by explicit axes."""
    is_large = value in active and math.prod(avals[value].shape) >= _LEAST
    return is_large and not compat.is_placed(avals[value])


def _kept(stage: Stage) -> list[int]:
    """The values that are in memory: those that are handed on, or that products read."""
    writer = {i: e for e in stage.equations for i in e.outputs}
    solid = (e for e in stage.equations if kind_of(e) is Kind.SOLID)
    found: dict[int, None] = {}
    for i in (*stage.outputs, *(i for e in solid for i in e.reads)):
        while i in writer and _is_view(writer[i]):
            (i,) = writer[i].reads
        found[i] = None
    return [*found]


def _is_view(equation: Equation) -> bool:
    """Whether an equation shows what it reads in another shape, and has no rule of its own."""
    own = equation.primitive == "custom_jvp_call" or is_hook(equation)
    return kind_of(equation) is Kind.VIEW and len(equation.reads) == 1 and not own


# --------------------------------------------------------------------- functions and their forms


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function whose derivative follows from its result.

    Attributes:
        chain: the function.
        derivative: as JAX has it.
        representations: how each of its residuals follows from the result.
    """

    chain: Chain
    derivative: Derivative
    representations: tuple[Derived, ...]

    def replaced(self, last: Equation, source: jax.Array, *inputs: jax.Array) -> jax.Array:
        """The last equation of the chain, with the derivative of the whole."""
        (result,) = compat.bind_here(last.eqn, inputs)
        residuals = self.derivative.residuals_of([source])
        pairs = zip(residuals, self.representations, strict=True)
        read = [hook(x, result, representations=[representation]) for x, representation in pairs]
        return joined(self.derivative.pushed, result, read, [source])


def _function(blocks: Blocks, result: int) -> _Function | None:
    """The shortest function of which a value is the result, if its derivative follows from that."""
    found = blocks.before(result)
    for count in range(1, len(found) + 1):
        chain = blocks.chain(result, found[:count])
        if not any(_calls_exponentials(e.eqn) for e in chain.equations):
            continue
        pushed = _Pushed.of(chain, shape_of(blocks.avals[chain.source]))
        if pushed.reads_more_than_the_result:
            representations = pushed.representations
            return (
                None
                if representations is None
                else _Function(chain, pushed.derivative, representations)
            )
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
        residuals: what the tangent is multiplied with or selected by.
    """

    program: Program
    residuals: tuple[int, ...]

    @staticmethod
    def of(chain: Chain, aval: jax.ShapeDtypeStruct) -> "_Pushed":
        """That of a chain."""

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
        """Whether the derivative reads what does not follow from the result by itself."""
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
        """How each residual follows from the result; None where one is not known to."""
        program, aval = self.forward, self.program.avals[self.program.inputs[0]]
        if not is_elementwise_program(program, aval.shape):
            return None
        dtypes = {program.avals[i].dtype for i in program.outputs}
        if not dtypes <= {aval.dtype, jnp.dtype(bool)} or not is_smooth_beside_zero(program):
            return None
        return _representations(*(Function.of(x, aval.dtype) for x in (program, self.late)))


@functools.lru_cache(maxsize=1024)
def _representations(forward: Function, late: Function) -> tuple[Derived, ...] | None:
    """How each residual of a function follows from its result, on all numbers of 16 bits.

    Arguments:
        forward: `source -> (result, *residuals)`.
        late: `(tangent, *residuals) -> tangent`.
    """
    at = numbers(forward.dtype)
    result, *residuals = forward.on(at[(np.abs(at) >= _NEAREST) | (at == 0) | np.isnan(at)])
    places, *values = forward.on(_places(result.dtype))
    rest = next((y for y in map(float, (places[3], places[5])) if math.isfinite(y)), 0.0)
    found = []
    for value, residual in zip(values, residuals, strict=True):
        candidates = [_Pieces.through(places, value), _Sigmoid(rest)]
        errors = [_error(x, result, residual) for x in candidates]
        found.append(candidates[errors.index(min(errors))])
    is_narrow = jnp.finfo(result.dtype).bits < 32
    if is_narrow and not any(isinstance(x, _Sigmoid) for x in found):
        return None  # one and a result is off by the rounding of that, where a slope is small
    one = np.ones_like(result)
    (wanted,) = late.on(one, *residuals)
    (local_derivatives,) = late.on(one, *(computed(x, result) for x in found))
    is_relative = _Sigmoid(0.0) in found
    return (
        tuple(map(Derived, found))
        if _agree(local_derivatives, wanted, result, is_relative)
        else None
    )


def _error(candidate: Callable[..., Any], result: np.ndarray, residual: np.ndarray) -> float:
    """How far what a candidate computes from results is from a residual, at most."""
    found = computed(candidate, result)
    if found.dtype != residual.dtype:
        return math.inf
    with np.errstate(invalid="ignore"):
        wrong = np.abs(found.astype(np.float64) - residual.astype(np.float64))
    return float(np.max(wrong, where=np.isfinite(wrong), initial=0))


def _agree(
    local_derivatives: np.ndarray, wanted: np.ndarray, result: np.ndarray, is_relative: bool
) -> bool:
    """Whether slopes that follow from results are as near to those of JAX as they should be.

    Arguments:
        local_derivatives, wanted: the slopes.
        result: the results.
        is_relative: whether small slopes are as exact as large ones. Those of JAX are `exp(x - y)`
            then, and off by the rounding of `x - y`.
    """
    info = jnp.finfo(wanted.dtype)
    least = max(float(jnp.finfo(jnp.float32).tiny), 4 * float(info.smallest_subnormal))
    local_derivatives, wanted, result = (
        np.asarray(x, np.float64) for x in (local_derivatives, wanted, result)
    )
    scale = np.abs(wanted)
    with np.errstate(invalid="ignore"):
        if is_relative:
            scale = scale * (1 + np.clip(np.abs(result), 0, 100) - np.log(np.clip(scale, least, 1)))
        else:
            scale = np.max(scale, where=np.isfinite(scale), initial=0)
        near = np.abs(local_derivatives - wanted) <= _UNITS * float(info.eps) * scale + least
    return bool(
        np.all(
            near | (local_derivatives == wanted) | (np.isnan(local_derivatives) & np.isnan(wanted))
        )
    )


def _places(dtype: Any) -> np.ndarray:
    """Where functions are looked at: nowhere, at zero, and on both sides near and far from it."""
    tiny = float(jnp.finfo(dtype).tiny)
    return np.asarray((np.nan, 0.0, -tiny, -np.inf, tiny, np.inf), dtype)


@dataclasses.dataclass(frozen=True)
class _Sigmoid:
    """A sigmoid that follows from the softplus of the same, whatever was added to that.

    Attributes:
        rest: what softplus comes to where the sigmoid is zero; its result may fall away from that.
    """

    rest: float

    def __call__(self, result: jax.Array) -> jax.Array:
        """The sigmoid."""
        return -jnp.expm1(-jnp.abs(result - self.rest if self.rest else result))


@dataclasses.dataclass(frozen=True)
class _Side:
    """How a residual follows from results on one side of that of zero.

    Attributes:
        limit: the last result; the others are on the near side of it.
        value: of the residual there.
        rise: of the residual with the result.
    """

    limit: float
    value: Any
    rise: float

    @staticmethod
    def through(near: tuple[Any, Any], far: tuple[Any, Any]) -> "_Side":
        """By results and residuals near zero and far away."""
        (y, r), (limit, value) = near, far
        run = limit - y
        is_line = math.isfinite(run) and run and not isinstance(value, bool)
        return _Side(limit, value, (value - r) / run if is_line else 0.0)

    def __call__(self, result: jax.Array) -> Any:
        """The residuals."""
        return self.value + (result - self.limit) * self.rise if self.rise else self.value


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """A residual that follows from the result by pieces: each is constant, or a line.

    Attributes:
        nowhere: where the result is no number.
        kink: the result of zero.
        at_kink: the residual there.
        low, high: on both sides.
    """

    nowhere: Any
    kink: float
    at_kink: Any
    low: _Side
    high: _Side

    @staticmethod
    def through(results: np.ndarray, residuals: np.ndarray) -> "_Pieces":
        """By what they are at `_places`."""
        pairs = list(zip(results.astype(float).tolist(), residuals.tolist(), strict=True))
        (_, nowhere), (kink, at_kink), *beside = pairs
        sides = _Side.through(*beside[:2]), _Side.through(*beside[2:])
        low, high = sorted(sides, key=lambda x: x.limit)
        return _Pieces(nowhere, kink, at_kink, low, high)

    def __call__(self, result: jax.Array) -> jax.Array:
        """The residuals."""
        found = jnp.where(result > self.kink, self.high(result), self.low(result))
        found = jnp.where(result == self.kink, self.at_kink, found)
        found = jnp.where(jnp.isnan(result), self.nowhere, found)
        return found if found.dtype == jnp.bool else found.astype(result.dtype)
