"""Which elementwise chains of a stage have a slope that may be kept as a code?

A *chain* is a function of one value, element by element: a GELU, a `tanh`, a softplus, with what is
scaled and added on the way. Its derivative multiplies the cotangent with one array, the slope. JAX
keeps what the slopes of the single equations are computed from, and no code of that would do: the
derivative is not linear in it. In the slope of the whole it is. So a chain is replaced by one
equation that reads its slope, which `_codes` then treats like any operand: where a plan saves a
code of it, the backward pass reads nothing else of the chain; where none is saved, the slope is
computed again from what the chain reads.

A slope is stored over a range that no slope of the chain leaves, found by computing slopes for all
numbers of float16 and bfloat16. What leaves it all the same is clamped: in float32, peaks between
two of those numbers, which for functions that people use are no higher than rounding errors; in 16
bits, what a compiler rounds otherwise. A slope that is not finite decodes to NaN. Chains of
unlimited slope (`x**3`, `exp`), and of so few slopes that masks do better (`relu`), stay as they
are.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _compat
from ._program import (
    Equation,
    Program,
    flatten,
    listed,
    parameters_of,
    run,
    shape_of,
    values_of,
)
from ._stages import Replaced, Stage
from .operators import is_tap
from .operators.codecs import FLOATS

#: Functions of numbers; applied to arrays, element by element.
_ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp
    convert_element_type copy copy_p cos cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt
    integer_pow is_finite le log log1p log2 logistic lt max min mul ne neg not one_minus_square or
    polynomial pow reduce_precision rem round rsqrt select_n shift_left shift_right_logical sign sin
    sinh sqrt square stop_gradient sub tan tanh xor
    """.split()
)
#: Chains have as many parts, so that few of their parts are asked about.
_LONGEST = 16
#: Slopes of a wider range are of no use in a few levels.
_WIDEST = 64.0
#: Chains of fewer slopes are piecewise linear: masks and steps.
_FEWEST = 32
#: Ranges are rounded to this part of a power of two that is at most their width.
_PARTS = 256

Range = tuple[float, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """An elementwise function of one value; to be called with an array.

    Attributes:
        equations: in order. What they read beside the source is one number.
        source, result: values.
    """

    equations: tuple[Equation, ...]
    source: int
    result: int

    def __call__(self, x: jax.Array) -> jax.Array:
        """The result."""
        env: dict[int, Any] = {self.source: x}
        for e in self.equations:
            if is_tap(e):
                env[e.outputs[0]] = env[e.reads[0]]
            else:
                run([e], env, {})
        return env[self.result]

    def slope(self, x: jax.Array) -> jax.Array:
        """The derivative, element by element."""
        return jax.jvp(self, (x,), (jnp.ones_like(x),))[1]


def with_slopes(
    stage: Stage, is_coded: Callable[[int], bool], avals: list[Any]
) -> tuple[Replaced, dict[int, Range]]:
    """A stage whose chains read their slopes.

    Arguments:
        stage: its equations.
        is_coded: whether a value is differentiated, and worth a code.
        avals: of all values; those of new ones are added.

    Returns:
        The stage, and for each equation (its id) whose first operand is a slope the range of that.
    """
    replaced: dict[int, list[Equation]] = {}
    ranges: dict[int, Range] = {}
    finder = _Finder(stage, is_coded, avals)
    for chain, over in [*finder.chains()]:
        *inner, last = chain.equations
        replaced |= {id(e): [] for e in inner if not finder.is_uniform(e)}
        new = listed(
            functools.partial(_by_slope, chain), [chain.source], last, avals, [chain.result]
        )
        replaced[id(last)] = new
        ranges[id(new[-1])] = over
    return Replaced.of(stage, replaced), ranges


def _by_slope(chain: Chain, x: jax.Array) -> jax.Array:
    """The result of a chain, with a derivative that reads the slope."""

    @jax.custom_jvp
    def joined(slope, x):
        return chain(x)

    @joined.defjvp
    def rule(primals, tangents):
        slope, x = primals
        y = chain(x)
        return y, (slope * tangents[1]).astype(y.dtype)

    return joined(chain.slope(x), x)


@dataclasses.dataclass(frozen=True)
class _Block:
    """How a value follows, element by element, from the nearest one that alone decides on it.

    Attributes:
        equations: all between them, by their ids.
        source: that value.
    """

    equations: Mapping[int, Equation]
    source: int


class _Finder:
    """The chains of a stage."""

    def __init__(self, stage: Stage, is_coded: Callable[[int], bool], avals: Sequence[Any]):
        self.stage, self.is_coded, self.avals = stage, is_coded, avals
        self.writer = {i: e for e in stage.equations for i in e.outputs}
        self.order = {id(e): n for n, e in enumerate(stage.equations)}
        self.readers: dict[int, list[Equation]] = {}
        for e in stage.equations:
            for i in e.reads:
                self.readers.setdefault(i, []).append(e)
        self.uniform: set[int] = set()
        for e in stage.equations:
            if _is_uniform(e, self.uniform):
                self.uniform.update(e.outputs)

    def is_uniform(self, equation: Equation) -> bool:
        """Whether the results of an equation are one number each."""
        return self.uniform.issuperset(equation.outputs)

    def chains(self) -> Iterator[tuple[Chain, Range]]:
        """The chains, each as long as it may be, and the ranges of their slopes."""
        seen: set[int] = set()
        for e in reversed(self.stage.equations):
            value = e.outputs[0] if e.outputs else None
            if value is None or value in seen or not self._is_end(value):
                continue
            blocks = self._blocks(value)
            while blocks:
                count, found = self._longest(value, blocks)
                if found is not None:
                    yield found
                    seen.update(i for e in found[0].equations for i in e.outputs)
                value, blocks = blocks[count - 1].source, blocks[count:]
                seen.update([value] if blocks else [])

    def _longest(
        self, result: int, blocks: Sequence[_Block]
    ) -> tuple[int, tuple[Chain, Range] | None]:
        """Of how many of some blocks there is a chain, and that; of the first, if of none."""
        for count in range(len(blocks), 0, -1):
            chain = self._chain(result, blocks[:count])
            aval = self.avals[chain.source]
            over = range_of(chain, shape_of(aval))
            if over is not None:
                return count, (chain, over)
        return 1, None

    def _chain(self, result: int, blocks: Sequence[_Block]) -> Chain:
        """The chain of consecutive blocks, with what computes the numbers that it reads."""
        equations = {n: e for block in blocks for n, e in block.equations.items()}
        pending = [i for e in equations.values() for i in e.reads]
        while pending:
            i = pending.pop()
            if i in self.uniform and id(self.writer[i]) not in equations:
                equations[id(self.writer[i])] = self.writer[i]
                pending += self.writer[i].reads
        ordered = sorted(equations.values(), key=lambda e: self.order[id(e)])
        return Chain(tuple(ordered), blocks[-1].source, result)

    def _blocks(self, value: int) -> list[_Block]:
        """How a value follows from others, back to one that is read elsewhere too."""
        blocks: list[_Block] = []
        while len(blocks) < _LONGEST:
            block = self._block(value)
            if block is None or not self._is_end(block.source):
                break
            blocks.append(block)
            value = block.source
            if self._is_read_outside(value, block):
                break
        return blocks

    def _is_end(self, value: int) -> bool:
        """Whether a chain may begin or end with a value."""
        return self.is_coded(value) and self.avals[value].dtype in FLOATS

    def _block(self, value: int) -> _Block | None:
        """How a value follows from one; None where it does not, or others read what is between."""
        shape, found, pending = self.avals[value].shape, dict[int, Equation](), {value}
        while not found or len(pending) > 1 or not all(map(self._is_float, pending)):
            last = max(pending, key=self._position)
            equation = self.writer.get(last)
            if equation is None or not _is_elementwise(equation, self.uniform, shape):
                return None
            found[id(equation)] = equation
            pending.remove(last)
            pending.update(i for i in _operands(equation) if i not in self.uniform)
        if not pending:
            return None
        block = _Block(found, pending.pop())
        between = {e.outputs[0] for e in found.values()} - {value}
        return None if any(self._is_read_outside(i, block) for i in between) else block

    def _position(self, value: int) -> int:
        return self.order[id(self.writer[value])] if value in self.writer else -1

    def _is_float(self, value: int) -> bool:
        return _compat.is_float(self.avals[value])

    def _is_read_outside(self, value: int, block: _Block) -> bool:
        readers = self.readers.get(value, [])
        return value in self.stage.outputs or any(id(e) not in block.equations for e in readers)


# ------------------------------------------------------------------------- what is elementwise


def _operands(equation: Equation) -> tuple[int, ...]:
    """What a result depends on: of a tap, what passes it."""
    return equation.reads[:1] if is_tap(equation) else equation.reads


def _is_number(atom: Any, uniform: set[int]) -> bool:
    return atom in uniform if isinstance(atom, int) else np.ndim(atom.val) == 0


def _is_uniform(equation: Equation, uniform: set[int]) -> bool:
    """Whether all elements of what an equation writes are one number, known while tracing."""
    numbers = [_is_number(i, uniform) for i in equation.inputs]
    known = equation.primitive in _ELEMENTWISE or equation.primitive == "broadcast_in_dim"
    return known and bool(numbers) and all(numbers) and not equation.eqn.effects


def _is_elementwise(equation: Equation, uniform: set[int], shape: tuple[int, ...]) -> bool:
    """Whether an equation computes each element of an array from the same one of others.

    Arguments:
        equation: the equation.
        uniform: values that are one number.
        shape: of the arrays.
    """
    if is_tap(equation):
        return equation.eqn.invars[0].aval.shape == shape
    if len(equation.outputs) != 1 or equation.eqn.effects:
        return False
    if equation.eqn.outvars[0].aval.shape != shape:
        return False
    pairs = zip(equation.inputs, equation.eqn.invars, strict=True)
    if any(not _is_number(i, uniform) and var.aval.shape != shape for i, var in pairs):
        return False
    if equation.primitive == "custom_jvp_call":
        return _is_elementwise_program(flatten(equation.eqn.params["call_jaxpr"]), shape)
    return equation.primitive in _ELEMENTWISE


def _is_elementwise_program(program: Program, shape: tuple[int, ...]) -> bool:
    """Whether all equations of a program are elementwise, for arrays of a shape."""
    if program.constants:
        return False
    uniform = {i for i in program.inputs if program.avals[i].shape == ()}
    for e in program.equations:
        if _is_uniform(e, uniform):
            uniform.update(e.outputs)
        elif not _is_elementwise(e, uniform, shape):
            return False
    return True


# ------------------------------------------------------------------------------ ranges of slopes


def range_of(chain: Chain, aval: jax.ShapeDtypeStruct) -> Range | None:
    """The range of the slopes of a chain; None where it has none that is of use.

    Arguments:
        chain: the chain.
        aval: of what it is a function of.
    """
    program = flatten(jax.make_jaxpr(chain.slope)(aval))
    if not _is_elementwise_program(program, aval.shape):
        return None
    return _range_of(_Slope(_text(program), jnp.dtype(aval.dtype).name, program))


@dataclasses.dataclass(frozen=True)
class _Slope:
    """A slope as a function of numbers; the same for the same text and dtype."""

    text: str
    dtype: str
    program: Program = dataclasses.field(compare=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The slopes at some numbers, whatever shapes the program was traced with."""
        (found,) = _evaluated(self.program, [x])
        return jnp.broadcast_to(found, x.shape)


@functools.lru_cache(maxsize=1024)
def _range_of(slope: _Slope) -> Range | None:
    with jax.ensure_compile_time_eval(), jax.debug_nans(False), jax.debug_infs(False):
        found = jax.device_get(jax.jit(slope.__call__)(jnp.asarray(_numbers(slope.dtype))))
    slopes = np.asarray(found, np.float64)
    slopes = np.unique(slopes[np.isfinite(slopes)])
    if len(slopes) < _FEWEST or slopes[-1] - slopes[0] > _WIDEST:
        return None
    part = 2.0 ** math.floor(math.log2(slopes[-1] - slopes[0])) / _PARTS
    return math.floor(slopes[0] / part) * part, math.ceil(slopes[-1] / part) * part


def _numbers(dtype: str) -> np.ndarray:
    """All finite numbers of a narrow dtype; of both of them, as float32."""
    patterns = np.arange(2**16, dtype=np.uint16)
    narrow = [np.dtype(jnp.float16), np.dtype(jnp.bfloat16)]
    chosen = [x for x in narrow if x.name == dtype] or narrow
    numbers = np.concatenate([patterns.view(x).astype(np.float32) for x in chosen])
    return numbers[np.isfinite(numbers)].astype(jnp.dtype(dtype))


def _evaluated(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """The results of an elementwise program for arrays of another shape."""
    env: dict[int, Any] = dict(zip(program.inputs, inputs, strict=True))
    for e in program.equations:
        operands = values_of(env, e.inputs)
        if e.primitive == "broadcast_in_dim":
            results = operands
        elif e.primitive == "custom_jvp_call":
            results = _evaluated(flatten(e.eqn.params["call_jaxpr"]), operands)
        else:
            results = _compat.bind_here(e.eqn, jnp.broadcast_arrays(*operands))
        env.update(zip(e.outputs, results, strict=True))
    return values_of(env, program.outputs)


def _text(program: Program) -> str:
    """The same for programs that differ in nothing but the shapes of arrays."""

    def text(atom: Any) -> str:
        return str(atom) if isinstance(atom, int) else repr(np.asarray(atom.val).tolist())

    parts = [text(x) for x in (*program.inputs, *program.outputs)]
    for e in program.equations:
        shapes = e.primitive == "broadcast_in_dim"
        dtypes = [program.avals[i].dtype for i in e.outputs]
        given = "" if shapes else parameters_of(e.eqn)
        parts.append(f"{e.primitive}{[text(x) for x in e.inputs]}{e.outputs}{dtypes}{given}")
    return ";".join(parts)
