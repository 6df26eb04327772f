"""Elementwise chains whose local derivative may be saved as a code.

A *chain* (`elementwise/chains`) is a function of one value, element by element: a GELU, a softplus.
Its derivative multiplies the cotangent by one array, the *local derivative*. JAX saves the values
from which the local derivatives of the single equations are computed. A code of those would bias
the gradient, which is not linear in them; it is linear in the local derivative of the chain. So a
chain is replaced by one equation that reads its local derivative, which `encoding` then treats like
any operand: where a plan saves a code of it, the backward pass reads nothing else of the chain;
where it saves none, the local derivative is computed again from the operand of the chain.

A local derivative is stored over a range that no local derivative of the chain leaves. The range is
found by evaluating all numbers of float16 and bfloat16. Values outside it are clamped: in float32,
peaks between two of those numbers, which for functions that people use are no higher than rounding
errors; in 16 bits, values that a compiler rounds otherwise. A local derivative that is not finite
decodes to NaN. Chains with unlimited local derivatives (`x**3`, `exp`), and chains with so few that
masks do better (`relu`), stay as they are.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ...ir.program import Equation, flatten, listed, shape_of
from ...ir.stage import Replaced, Stage
from ..elementwise.chains import ChainFinder, ElementwiseChain, Link
from ..elementwise.pointwise import ElementwiseFunction, is_elementwise_program, numbers

#: Local derivatives of a wider range are too coarse in a few levels.
_WIDEST = 64.0
#: Chains with fewer distinct local derivatives are piecewise linear: masks and steps.
_FEWEST = 32
#: Ranges are rounded to the largest power of two within their width, over this number.
_PARTS = 256

#: The least and the greatest of some numbers.
Interval = tuple[float, float]


def with_local_derivatives(
    stage: Stage, is_coded: Callable[[int], bool], avals: list[Any]
) -> tuple[Replaced, dict[int, Interval]]:
    """The stage, with chains whose derivatives read their local derivatives.

    Arguments:
        stage: its equations.
        is_coded: whether a value is differentiated, and worth a code.
        avals: of all values; avals of new values are added.

    Returns:
        The stage; and result -> range of the local derivative that is the first operand of the
        equation which writes the result.
    """
    replaced: dict[int, list[Equation]] = {}
    ranges: dict[int, Interval] = {}
    finder = ChainFinder(stage, is_coded, avals)
    for chain, over in [*_chains(finder)]:
        *inner, last = chain.equations
        chained = (e for e in inner if not finder.is_uniform(e))
        replaced |= {finder.position[e.outputs[0]]: [] for e in chained}
        new = listed(
            functools.partial(_by_local_derivative, chain),
            [chain.source],
            last,
            avals,
            [chain.result],
        )
        replaced[finder.position[last.outputs[0]]] = new
        ranges[new[-1].outputs[0]] = over
    return Replaced.of(stage, replaced), ranges


def _by_local_derivative(chain: ElementwiseChain, x: jax.Array) -> jax.Array:
    """The result of a chain, with a derivative that reads the local derivative."""

    @jax.custom_jvp
    def joined(local_derivative, x):
        return chain(x)

    @joined.defjvp
    def rule(primals, tangents):
        local_derivative, x = primals
        y = chain(x)
        return y, (local_derivative * tangents[1]).astype(y.dtype)

    return joined(chain.local_derivative(x), x)


def _chains(finder: ChainFinder) -> Iterator[tuple[ElementwiseChain, Interval]]:
    """The chains of a stage, each as long as possible, with ranges of local derivatives."""
    seen: set[int] = set()
    for e in reversed(finder.stage.equations):
        value = e.outputs[0] if e.outputs else None
        if value is None or value in seen or not finder.is_end(value):
            continue
        links = finder.before(value)
        while links:
            count, found = _longest(finder, value, links)
            if found is not None:
                yield found
                seen.update(i for e in found[0].equations for i in e.outputs)
            value, links = links[count - 1].source, links[count:]
            seen.update([value] if links else [])


def _longest(
    finder: ChainFinder, result: int, links: Sequence[Link]
) -> tuple[int, tuple[ElementwiseChain, Interval] | None]:
    """The number of links in the longest chain, and the chain; one link and None if none is."""
    for count in range(len(links), 0, -1):
        chain = finder.chain(result, links[:count])
        over = range_of(chain, shape_of(finder.avals[chain.source]))
        if over is not None:
            return count, (chain, over)
    return 1, None


def range_of(chain: ElementwiseChain, aval: jax.ShapeDtypeStruct) -> Interval | None:
    """The range of a chain's local derivatives; None where it has no useful one.

    Arguments:
        chain: the chain.
        aval: of the chain's operand.
    """
    program = flatten(jax.make_jaxpr(chain.local_derivative)(aval))
    if not is_elementwise_program(program, aval.shape):
        return None
    return _range_of(ElementwiseFunction.of(program, aval.dtype))


@functools.lru_cache(maxsize=1024)
def _range_of(local_derivative: ElementwiseFunction) -> Interval | None:
    at = numbers(local_derivative.dtype)
    found = np.asarray(local_derivative.on(at[np.isfinite(at)])[0], np.float64)
    distinct = np.unique(found[np.isfinite(found)])
    if len(distinct) < _FEWEST or distinct[-1] - distinct[0] > _WIDEST:
        return None
    part = 2.0 ** math.floor(math.log2(distinct[-1] - distinct[0])) / _PARTS
    return math.floor(distinct[0] / part) * part, math.ceil(distinct[-1] / part) * part
