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
from planners.stages import saving_codes

from ._gradient import cotangent_avals, value_and_gradient
from ._origins import Origins
from ._plan import Plan
from ._progress import progress
from ._signature import Call, abstract_leaf
from ._trace import Terms, Traced
from ._transform import transform
from .operators import Encoding, Slope, Stored, forms_of, is_tap, selected
from .operators.codecs import Codec

#: What "lossy" means where there is a limit of the error.
GRADED = (*(x.name for x in selected("lossy")), "int4", "int2", "slope4", "slope2")
#: How often the gradient of a plan is drawn.
DRAWS = 8
#: Of the error that is asked for what may be measured: on other data it is larger. On one sample,
#: which tells nothing of how it differs between batches and grows in training, and on several.
OF_ONE, OF_SEVERAL = 0.7, 0.8
#: Of that what the errors of codes, one by one, may add up to at first: they do so roughly.
AIM = 6 / 7
#: A plan that brings in less than the first share of what is asked for, and takes more than the
#: second of the step's time, is made anew with more: together, codes may do less than one by one,
#: or only the next ones be of use.
LITTLE, FAST = 0.5, 0.005
#: How much of what it may add up to a modelled error takes that was in the way.
IN_THE_WAY = 0.8
#: How often a plan is made anew whose measured error is more, or less, than it may be.
ROUNDS = 3


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
class ErrorLimit:
    """What a user allows.

    Attributes:
        error: the relative error of the gradient.
        samples: arguments on which it is measured, flat, once or more.
    """

    error: float
    samples: tuple[tuple[Any, ...], ...]

    @property
    def measured(self) -> float:
        """What may be measured on the samples, so that it is kept on other data."""
        return self.error * (OF_SEVERAL if len(self.samples) > 1 else OF_ONE)


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
            for are_slopes in (False, True):
                codes = [x for x in self.codes if isinstance(x.codec, Slope) == are_slopes]
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
            for e in filter(is_tap, stage.equations):
                for form, values in forms_of(e):
                    if isinstance(form, Stored) and form.codec.kind.is_lossy:
                        number, (base,) = self._same.get(values[0], values[0]), e.reads
                        code = _Code(number, self._same.get(base, base), form.codec)
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
        def gradient(inputs, words, trial):
            planned = transform(self.origins, plan, Encoding(words, trial))
            step = value_and_gradient(planned, program, derivative)
            return step(inputs, list(self.traced.constants), seeds)[1]

        def trial(codes: Sequence[_Code]) -> Mapping[int, Any]:
            chosen = {code.number for code in codes}
            return {code.number: jnp.int32(code.number in chosen) for code in self.codes}

        def words() -> jax.Array:
            return jnp.asarray(self._rng.integers(2**32, size=2, dtype=np.uint32))

        exact = [(sample, gradient(sample, words(), trial([]))) for sample in self.samples]
        return lambda codes: [
            float(_error(gradient(x, words(), trial(codes)), y)) for x, y in exact
        ]


def samples_of(args: Sequence[Any], sample: Sequence[Any] | None) -> list[Sequence[Any]]:
    """What is given as a sample, one after the other: a list of tuples is several."""
    if sample and isinstance(sample, list) and all(isinstance(x, tuple) for x in sample):
        return sample
    return [args if sample is None else sample]


def limit_of(error: float, terms: Terms, call: Call, samples: Sequence[Call]) -> ErrorLimit:
    """The limit that the arguments of `plan` mean.

    Raises:
        ValueError: they mean none, nothing is lossy, or a sample is not one of such a call.
    """
    if not 0 < error < 1:
        raise ValueError(f"`error` must be between 0 and 1; got {error!r}.")
    if not any(x.kind.is_lossy for x in selected(terms.operators)):
        raise ValueError('`error` is about lossy operators; give `operators="lossy"` as well.')
    wanted, *given = (
        [(x.shape, x.dtype) for x in map(abstract_leaf, some.leaves)] for some in (call, *samples)
    )
    if any(shapes != wanted for shapes in given):
        raise ValueError(
            "`sample` must be a tuple of arguments of the same shapes and dtypes as `args`, or a "
            "list of such tuples."
        )
    if any(isinstance(x, jax.ShapeDtypeStruct) for sample in samples for x in sample.leaves):
        raise ValueError("`error` is measured on arrays: give some as `sample`.")
    return ErrorLimit(float(error), tuple(tuple(sample.leaves) for sample in samples))


def settled_within(limit: ErrorLimit, errors: Errors, settle: Callable[[ErrorBound], Plan]) -> Plan:
    """The plan whose gradient is as right as a limit asks for, as measured on its samples.

    It is no slower than the one without lossy codes, or takes next to nothing.

    Arguments:
        limit: the limit.
        errors: measures them.
        settle: the plan for a bound of the modelled errors.
    """
    of_codes, best, most = errors.of_codes(), None, (AIM * limit.measured) ** 2
    for _ in range(ROUNDS):
        bound = ErrorBound(of_codes, most)
        made = settle(bound)
        regions = made.decisions.regions if made.decisions else ()
        error = errors.of_plan(regions) if made.decisions else 0.0
        is_right = error <= limit.measured
        # A higher bound allows what a lower one does, but its search may find less.
        if is_right and (best is None or made.overhead < best.overhead):
            best = dataclasses.replace(made, error=error, error_limit=limit.error)
        is_enough = error >= LITTLE * limit.error or made.overhead <= FAST
        if is_enough if is_right else best is not None:
            break
        wanted = _next_bound(limit, error, most, errors.modelled(regions, bound))
        if is_right and wanted <= most:
            break
        most = wanted
    if best is None or best.overhead > FAST:
        # Among fewer plans a search may find a faster one.
        made = settle(ErrorBound(of_codes, 0.0))
        if best is None or made.overhead < best.overhead:
            best = dataclasses.replace(made, error=0.0, error_limit=limit.error)
    return best


def _next_bound(limit: ErrorLimit, error: float, most: float, modelled: float) -> float:
    """What errors of a plan may add up to next.

    Arguments:
        limit: the limit.
        error: of the last plan, as measured.
        most: what its errors could add up to.
        modelled: what they do.
    """
    is_in_the_way = error > 0 and modelled >= IN_THE_WAY * most
    if error > limit.measured or is_in_the_way:
        return most * (AIM * limit.measured / error) ** 2
    return limit.measured**2


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
