"""The gradient errors of lossy codes, measured on sample arguments.

The error of a code is the expected squared norm of its noise in the gradient, over the squared norm
of the gradient, both over all differentiated inputs. Codes are drawn independently, so the errors
of several add up, and a plan is held to a bound on the sum, as ActNN (Chen et al., ICML 2021, arXiv
2104.14129) and GACT (Liu et al., ICML 2022, arXiv 2206.11357) choose their bits. They estimate the
terms from norms; here each value is encoded by itself and gradients are compared. The ratio between
codecs is measured once, with all values encoded.
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
from ..tracing.staged import StagedProgram
from ..tracing.traced import Traced
from ..transformer.transform import transform
from .progress import progress

#: The operators of "lossy" where the error is limited.
GRADED = (*(x.name for x in selected("lossy")), "int4", "int2", "slope4", "slope2")
#: Draws of a plan's gradient, for the mean of its squared error.
DRAWS = 8


@dataclasses.dataclass(frozen=True)
class ErrorBound:
    """A bound on the gradient error of a plan's lossy codes.

    Attributes:
        of_codes: the first value of each lossy code -> its error.
        most: the errors of a plan may add up to this.
    """

    of_codes: Mapping[int, float]
    most: float


@dataclasses.dataclass(frozen=True)
class _Code:
    """A lossy code.

    Attributes:
        number: the first of the program's values that hold it; the iterations of a loop count as
            one, by the value of the first block.
        of: the encoded value.
        codec: its codec.
    """

    number: int
    of: int
    codec: Codec


class Errors:
    """The gradient errors of a traced function's lossy codes, on the worst of some samples.

    Arguments:
        traced: the function.
        samples: one or more flat lists of its arguments.
        graph: of its staged program, as it was analyzed.
    """

    def __init__(self, traced: Traced, samples: Sequence[Sequence[Any]], graph: Graph):
        self.traced, self.samples = traced, [list(sample) for sample in samples]
        self.graph, self.staged = graph, traced.staged()
        self._rng = np.random.default_rng(0)
        self._same = _first_blocks(self.staged)
        self.codes = self._codes()

    def of_codes(self) -> dict[int, float]:
        """The first value of each lossy code -> its error."""
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
        """The same for some of the codes: all of operands, or all of local derivatives."""
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
        """The sum of the errors of a plan's codes."""
        return planners.error_of(with_errors(self.graph, self.staged, bound), regions)

    def _codes(self) -> list[_Code]:
        found: dict[int, _Code] = {}
        for stage in self.staged.stages:
            for e in filter(is_hook, stage.equations):
                for representation, values in representations_of(e):
                    if isinstance(representation, Stored) and representation.codec.kind.is_lossy:
                        number, (encoded,) = self._same.get(values[0], values[0]), e.reads
                        encoded = self._same.get(encoded, encoded)
                        code = _Code(number, encoded, representation.codec)
                        found.setdefault(number, code)
        return list(found.values())

    def _measure(self, regions: Sequence[Region]) -> Callable[[Sequence[_Code]], list[float]]:
        """A function: codes -> on each sample, the error of one draw that reads just these."""
        program, derivative = self.traced.program, self.traced.derivative
        plan = planners.Plan(tuple(regions), 0, 0.0, 0, 0.0, "measured")
        seeds = [
            jnp.asarray(self._rng.standard_normal(x.shape), x.dtype)
            for x in cotangent_avals(program, derivative)
        ]

        @jax.jit
        def gradient(inputs, words, chosen):
            planned = transform(self.staged, plan, Encoding(words, chosen))
            step = value_and_gradient(planned, program, derivative)
            return step(inputs, list(self.traced.constants), seeds)[1]

        def selector(codes: Sequence[_Code]) -> Mapping[int, Any]:
            chosen = {code.number for code in codes}
            return {code.number: jnp.int32(code.number in chosen) for code in self.codes}

        def words() -> jax.Array:
            return jnp.asarray(self._rng.integers(2**32, size=2, dtype=np.uint32))

        exact = [(sample, gradient(sample, words(), selector([]))) for sample in self.samples]
        return lambda codes: [
            float(_error(gradient(x, words(), selector(codes)), y)) for x, y in exact
        ]


def with_errors(graph: Graph, staged: StagedProgram, bound: ErrorBound) -> Graph:
    """A graph whose plans keep a bound on the error."""
    error_of = {name: bound.of_codes.get(i, 0.0) for name, i in staged.values.items()}

    def known(op: planners.Op) -> planners.Op:
        error = sum(error_of.get(graph.values[i].name, 0.0) for i in op.outputs)
        return dataclasses.replace(op, error=error) if op.optional and error else op

    stages = tuple(
        dataclasses.replace(stage, forward=tuple(map(known, stage.forward)))
        for stage in graph.stages
    )
    return dataclasses.replace(graph, stages=stages, most_error=bound.most)


def _first_blocks(staged: StagedProgram) -> dict[int, int]:
    """Values of a loop's iterations -> the same value in the loop's first block."""
    found = {}
    for loop in staged.loops:
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
