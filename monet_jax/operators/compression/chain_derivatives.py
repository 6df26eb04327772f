"""Which elementwise chains of a stage have a slope that may be kept as a code?

A *chain* (`operators._chains`) is a function of one value, element by element: a GELU, a softplus.
Its derivative multiplies the cotangent with one array, the slope. JAX keeps what the slopes of the
single equations are computed from, and no code of that would do: the derivative is not linear in
it. In the slope of the whole it is. So a chain is replaced by one equation that reads its slope,
which `compression/encoding` then treats like any operand: where a plan saves a code of it, the
backward pass reads nothing else of the chain; where none is saved, the slope is computed again from
what the chain reads.

A slope is stored over a range that no slope of the chain leaves, found by computing slopes for all
numbers of float16 and bfloat16. What leaves it all the same is clamped: in float32, peaks between
two of those numbers, which for functions that people use are no higher than rounding errors; in 16
bits, what a compiler rounds otherwise. A slope that is not finite decodes to NaN. Chains of
unlimited slope (`x**3`, `exp`), and of so few slopes that masks do better (`relu`), stay as they
are.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ...ir.program import Equation, flatten, listed, shape_of
from ...ir.stage import Replaced, Stage
from ..elementwise.chains import Block, Blocks, Chain
from ..elementwise.pointwise import Function, is_elementwise_program, numbers

#: Slopes of a wider range are of no use in a few levels.
_WIDEST = 64.0
#: Chains of fewer slopes are piecewise linear: masks and steps.
_FEWEST = 32
#: Ranges are rounded to this part of a power of two that is at most their width.
_PARTS = 256

Range = tuple[float, float]


def with_local_derivatives(
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
    finder = Blocks(stage, is_coded, avals)
    for chain, over in [*_chains(finder)]:
        *inner, last = chain.equations
        replaced |= {id(e): [] for e in inner if not finder.is_uniform(e)}
        new = listed(
            functools.partial(_by_local_derivative, chain),
            [chain.source],
            last,
            avals,
            [chain.result],
        )
        replaced[id(last)] = new
        ranges[id(new[-1])] = over
    return Replaced.of(stage, replaced), ranges


def _by_local_derivative(chain: Chain, x: jax.Array) -> jax.Array:
    """The result of a chain, with a derivative that reads the slope."""

    @jax.custom_jvp
    def joined(local_derivative, x):
        return chain(x)

    @joined.defjvp
    def rule(primals, tangents):
        local_derivative, x = primals
        y = chain(x)
        return y, (local_derivative * tangents[1]).astype(y.dtype)

    return joined(chain.local_derivative(x), x)


def _chains(finder: Blocks) -> Iterator[tuple[Chain, Range]]:
    """The chains of a stage, each as long as it may be, and the ranges of their slopes."""
    seen: set[int] = set()
    for e in reversed(finder.stage.equations):
        value = e.outputs[0] if e.outputs else None
        if value is None or value in seen or not finder.is_end(value):
            continue
        blocks = finder.before(value)
        while blocks:
            count, found = _longest(finder, value, blocks)
            if found is not None:
                yield found
                seen.update(i for e in found[0].equations for i in e.outputs)
            value, blocks = blocks[count - 1].source, blocks[count:]
            seen.update([value] if blocks else [])


def _longest(
    finder: Blocks, result: int, blocks: Sequence[Block]
) -> tuple[int, tuple[Chain, Range] | None]:
    """Of how many of some blocks there is a chain, and that; of the first, if of none."""
    for count in range(len(blocks), 0, -1):
        chain = finder.chain(result, blocks[:count])
        over = range_of(chain, shape_of(finder.avals[chain.source]))
        if over is not None:
            return count, (chain, over)
    return 1, None


def range_of(chain: Chain, aval: jax.ShapeDtypeStruct) -> Range | None:
    """The range of the slopes of a chain; None where it has none that is of use.

    Arguments:
        chain: the chain.
        aval: of what it is a function of.
    """
    program = flatten(jax.make_jaxpr(chain.local_derivative)(aval))
    if not is_elementwise_program(program, aval.shape):
        return None
    return _range_of(Function.of(program, aval.dtype))


@functools.lru_cache(maxsize=1024)
def _range_of(local_derivative: Function) -> Range | None:
    at = numbers(local_derivative.dtype)
    local_derivatives = np.asarray(local_derivative.on(at[np.isfinite(at)])[0], np.float64)
    local_derivatives = np.unique(local_derivatives[np.isfinite(local_derivatives)])
    if len(local_derivatives) < _FEWEST or local_derivatives[-1] - local_derivatives[0] > _WIDEST:
        return None
    part = 2.0 ** math.floor(math.log2(local_derivatives[-1] - local_derivatives[0])) / _PARTS
    return math.floor(local_derivatives[0] / part) * part, math.ceil(
        local_derivatives[-1] / part
    ) * part
