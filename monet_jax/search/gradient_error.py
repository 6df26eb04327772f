"""How wrong do lossy codes make a gradient? Measured, on sample arguments.

The error of a code is the expected square of what it adds to the gradient, over the square of the
gradient, both as norms over all that is differentiated. Codes are drawn independently, so that the
errors of several add up, and a plan is held to a sum of them: the form in which ActNN (Chen et al.,
ICML 2021, arXiv 2104.14129) and GACT (Liu et al., ICML 2022, arXiv 2206.11357) choose their bits.
There the terms are estimated from norms; here each value is encoded by itself and gradients are
compared. How the codecs of one value differ is taken from what they do to all values together.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.regions.simple_plans import saving_codes

from ..ir.gradient import cotangent_avals, value_and_gradient
from ..operators import Encoding, LocalDerivative, Stored, is_hook, representations_of, selected
from ..operators.codecs import Codec
from ..tracing.origins import Origins
from ..tracing.trace import Traced
from ..transformer.transform import transform
from .progress import progress

#: What "lossy" means where there is a limit of the error.
GRADED = (*(x.name for x in selected("lossy")), "int4", "int2", "slope4", "slope2")
#: How often the gradient of a plan is drawn.
DRAWS = 8


@dataclasses.dataclass(frozen=True)
class ErrorBound:
    """What lossy codes may do to a gradient.

    Attributes:
        of_codes: the first value of each lossy code -> its error.
        most: errors of a plan may add up to this.
    """

    of_codes: Mapping[int, float]
    most: float


@dataclasses.dataclass(frozen=True)
class _Code:
    """A lossy code.

    Attributes:
        number: the first of the program's values that hold it; those of the iterations of a loop
            are taken for one, that of the first block.
        of: the value that is encoded.
        codec: by which.
    """

    number: int
    of: int
    codec: Codec


class Errors:
    """What the lossy codes of a traced function do to its gradient: on the worst of some samples.

    Arguments:
        traced: the function.
        samples: its arguments, flat, on which errors are measured, once or more.
        graph, origins: of its analysis.
    """

    def __init__(
        self, traced: Traced, samples: Sequence[Sequence[Any]], graph: Graph, origins: Origins
    ):
        self.traced, self.samples = traced, [list(sample) for sample in samples]
        self.graph, self.origins = graph, origins
        self._rng = np.random.default_rng(0)
        self._same = _first_blocks(origins)
        self.codes = self._codes()

    def of_codes(self) -> dict[int, float]:
        """For each value of the program that is the first of a lossy code its error."""
        found: dict[int, float] = {}
        with progress() as say:
            for are_local_derivatives in (False, True):
                codes = [
                    x
                    for x in self.codes
                    if isinstance(x.codec, LocalDerivative) == are_local_derivatives
                ]
                found |= self._of_codes(codes, say) if codes else {}
        return found | {i: found[first] for i, first in self._same.items() if first in found}

    def _of_codes(self, codes: Sequence[_Code], say: Callable[[str], None]) -> dict[int, float]:
        """The same for some of the codes, all of operands or all of slopes."""
        by_name: dict[str, list[_Code]] = collections.defaultdict(list)
        for code in codes:
            by_name[code.codec.name].append(code)
        say("Measuring what codes do to the gradient")
        totals = {name: self.of(some) for name, some in by_name.items()}
        reference = by_name[sorted(totals, key=totals.__getitem__)[len(totals) // 2]]
        known: dict[int, float] = {}
        for n, code in enumerate(reference):
            say(f"Measuring what codes do to the gradient: {n} of {len(reference)}")
            known[code.of] = self.of([code])
        total = sum(known.values()) or 1.0
        blocks = collections.Counter(self._same.values())
        found: dict[int, float] = {}
        for code in codes:
            share = known.get(code.of, total / len(known)) / total
            found[code.number] = totals[code.codec.name] * share / (blocks[code.number] or 1)
        return found

    def of(self, codes: Sequence[_Code]) -> float:
        """The error of some codes together, drawn once."""
        return max(self._of_all(codes))

    @functools.cached_property
    def _of_all(self) -> Callable[[Sequence[_Code]], list[float]]:
        return self._measure(saving_codes(self.graph))

    def of_plan(self, regions: Sequence[Region]) -> float:
        """The root mean square of the relative error of the gradient, as planned."""
        errors = self._measure(regions)
        squares = np.mean([errors(self.codes) for _ in range(DRAWS)], axis=0)
        return math.sqrt(float(np.max(squares)))

    def modelled(self, regions: Sequence[Region], bound: ErrorBound) -> float:
        """What the errors of a plan's codes add up to, one by one."""
        return planners.error_of(with_errors(self.graph, self.origins, bound), regions)

    def _codes(self) -> list[_Code]:
        found: dict[int, _Code] = {}
        for stage in self.origins.stages:
            for e in filter(is_hook, stage.equations):
                for representation, values in representations_of(e):
                    if isinstance(representation, Stored) and representation.codec.kind.is_lossy:
                        number, (base,) = self._same.get(values[0], values[0]), e.reads
                        code = _Code(number, self._same.get(base, base), representation.codec)
                        found.setdefault(number, code)
        return list(found.values())

    def _measure(self, regions: Sequence[Region]) -> Callable[[Sequence[_Code]], list[float]]:
        """A function of codes: on each sample the error of reading just these, once drawn."""
        program, derivative = self.traced.program, self.traced.derivative
        plan = planners.Plan(tuple(regions), 0, 0.0, 0, 0.0, "measured")
        seeds = [
            jnp.asarray(self._rng.standard_normal(x.shape), x.dtype)
            for x in cotangent_avals(program, derivative)
        ]

        @jax.jit
        def gradient(inputs, words, compiled_plan):
            planned = transform(self.origins, plan, Encoding(words, compiled_plan))
            step = value_and_gradient(planned, program, derivative)
            return step(inputs, list(self.traced.constants), seeds)[1]

        def compiled_plan(codes: Sequence[_Code]) -> Mapping[int, Any]:
            chosen = {code.number for code in codes}
            return {code.number: jnp.int32(code.number in chosen) for code in self.codes}

        def words() -> jax.Array:
            return jnp.asarray(self._rng.integers(2**32, size=2, dtype=np.uint32))

        exact = [(sample, gradient(sample, words(), compiled_plan([]))) for sample in self.samples]
        return lambda codes: [
            float(_error(gradient(x, words(), compiled_plan(codes)), y)) for x, y in exact
        ]


def with_errors(graph: Graph, origins: Origins, bound: ErrorBound) -> Graph:
    """A graph whose plans keep a bound."""
    error_of = {name: bound.of_codes.get(i, 0.0) for name, i in origins.values.items()}

    def known(op: planners.Op) -> planners.Op:
        error = sum(error_of.get(graph.values[i].name, 0.0) for i in op.outputs)
        return dataclasses.replace(op, error=error) if op.optional and error else op

    stages = tuple(
        dataclasses.replace(stage, forward=tuple(map(known, stage.forward)))
        for stage in graph.stages
    )
    return dataclasses.replace(graph, stages=stages, most_error=bound.most)


def _first_blocks(origins: Origins) -> dict[int, int]:
    """Value of an iteration of a loop -> the same value in the loop's first block."""
    found = {}
    for loop in origins.loops:
        for stage in loop.stages:
            for v in (i for e in stage.equations for i in e.outputs):
                found |= {loop.atom(k, v): loop.atom(0, v) for k in range(loop.blocks)}
    return found


@jax.jit
def _error(found: Sequence[jax.Array], exact: Sequence[jax.Array]) -> jax.Array:
    """The square of the relative error of a gradient."""
    return _square(jax.tree.map(jnp.subtract, found, exact)) / _square(exact)


def _square(arrays: Sequence[jax.Array]) -> jax.Array:
    """The square of the norm of some arrays together."""
    squares = (jnp.sum(jnp.square(jnp.abs(x).astype(jnp.float32))) for x in arrays)
    return sum(squares, jnp.float32(0))
