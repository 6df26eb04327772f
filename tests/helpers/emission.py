"""Planned programs without a planner: random cuts and regions, emitted and differentiated.

Cuts and regions are drawn at random: every position is a legal cut, and every region that replay
accepts must be emitted with the same value and gradient.
"""

import contextlib
import dataclasses
import itertools as it
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import Case

from monet_jax import operators
from monet_jax.analyzer.analyze import analyze
from monet_jax.compiler.backend import Backend
from monet_jax.ir import compat, costs, gradient
from monet_jax.ir import program as program_module
from monet_jax.ir import stage as stage_module
from monet_jax.seconds.prices import ByRoofline
from monet_jax.seconds.roofline import Roofline
from monet_jax.tracing.passes import partition
from monet_jax.tracing.pipeline import stage
from monet_jax.tracing.staged import StagedProgram
from monet_jax.transformer import transform
from planners.errors import InvalidPlan
from planners.graph import Graph
from planners.plan import Plan, Region
from planners.replay import Replay, replay

PRICES = ByRoofline(Roofline({"float32": 1e12}, 1e12, 1e11))
PLAIN = Backend()


@dataclasses.dataclass(frozen=True)
class Flat:
    """A case as a function of its leaves.

    Attributes:
        function: `(*leaves) -> list of result leaves`.
        leaves: the arguments.
        places: positions of the leaves that are differentiated.
        program: the flat program.
        forward_mode: whether plans of it must be fit for that.
    """

    function: Callable[..., list[Any]]
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    program: program_module.Program
    forward_mode: bool = False

    @property
    def derivative(self) -> stage_module.Differentiation:
        """With respect to all float arguments."""
        chosen = [n in self.places for n in range(len(self.leaves))]
        return gradient.derivative_of(self.program, chosen, self.forward_mode)


#: Every exact operator, on a backend that wants all of them.
EXACT = operators.rewriter(
    operators.selected("exact"),
    operators.Context(
        Backend(
            fuses_gradients=True,
            makes_zeros_early=True,
            writes_for_each_view=True,
            casts_before_loops=True,
            tile=(1, 2),
        )
    ),
)


def flat(case: Case, rewrite: program_module.Rewrite = EXACT) -> Flat:
    """The case with its pytrees flattened."""
    leaves, tree = jax.tree.flatten(case.args)

    def function(*leaves):
        return jax.tree.leaves(case.function(*jax.tree.unflatten(tree, leaves)))

    places = tuple(n for n, leaf in enumerate(leaves) if is_float(leaf))
    program = program_module.flatten(jax.make_jaxpr(function)(*leaves), rewrite=rewrite)
    return Flat(function, tuple(leaves), places, program)


def is_float(x: Any) -> bool:
    """Whether an array has a float or complex dtype."""
    return not is_key(x) and jnp.issubdtype(x.dtype, jnp.inexact)


def is_key(x: Any) -> bool:
    """Whether an array holds typed PRNG keys."""
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A program as some plan emits it, and what the plan promises.

    Attributes:
        function: `(*leaves) -> list of result leaves`.
        graph: the planning graph.
        staged: the program that was emitted.
        regions: of the plan.
        replayed: the plan on paper.
    """

    function: Callable[..., list[Any]]
    graph: Graph
    staged: StagedProgram
    regions: tuple[Region, ...]
    replayed: Replay

    @property
    def recomputes(self) -> bool:
        """Whether some forward op runs twice."""
        forward = [(r.stage, r.op) for r in self.replayed.schedule if r.phase == "forward"]
        return len(set(forward)) < len(forward)


def graph_and_stages(flat: Any, backend: Backend = PLAIN) -> tuple[Graph, StagedProgram]:
    """The planning graph of a flat program with its derivative, and the stages that it is of."""
    staged = stage(flat.program, flat.derivative)
    return analyze(staged, PRICES, backend)[0], staged


def analyzed(flat: Flat, rng: random.Random, cuts: int = 4) -> tuple[Graph, StagedProgram]:
    """The graph of a program cut at random positions."""

    def random_cut(program, *_):
        positions = range(1, len(program.equations))
        chosen = rng.sample(positions, min(cuts, len(positions)))
        return tuple(sorted({0, *chosen, *partition._forced_cuts(program)}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "cut", random_cut)
        return graph_and_stages(flat)


def emitted(flat: Flat, graph: Graph, staged: StagedProgram, regions: Sequence[Region]) -> Emitted:
    """The program as these regions say."""
    plan = Plan(tuple(regions), 0, 0.0, 0, 0.0, "test")
    planned = transform.transform(staged, plan)
    constants = list(flat.program.constants.values())

    def function(*leaves):
        return planned(leaves, constants)

    return Emitted(function, graph, staged, plan.regions, replay(graph, plan))


def random_emissions(flat: Flat, seed: int, count: int, cuts: int = 4) -> Iterator[Emitted]:
    """Random plans of one program, each with its own cuts."""
    for n in range(count):
        rng = random.Random(f"{seed}:{n}")
        graph, staged = analyzed(flat, rng, rng.randint(1, cuts))
        regions = random_regions(graph, rng)
        for _ in range(4):
            made = emitted(flat, graph, staged, regions)
            if made.recomputes:
                break
            regions = random_regions(graph, rng)
        yield made


def random_regions(graph: Graph, rng: random.Random) -> tuple[Region, ...]:
    """Regions that replay accepts; where it does not, a region is left alone.

    Inner regions save what the outer one does: it is in memory anyway.
    """
    starts = [*dict.fromkeys(graph.units), len(graph.stages)]
    spans = [(first, end - 1) for first, end in it.pairwise(starts)]
    regions = [r for span in spans for r in _intervals(graph, rng, *span, 0, frozenset())]
    for n, region in enumerate(regions):
        others = [Region(r.first, r.last, alone=True) if r is not region else r for r in regions]
        try:
            replay(graph, others)
        except InvalidPlan:
            regions[n] = Region(region.first, region.last, alone=True)
    return tuple(regions)


def _intervals(graph, rng, first, last, depth, kept) -> list[Region]:
    regions = []
    begin = first
    while begin <= last:
        end = min(last, begin + rng.choice((0, 0, 1, 2, 3)))
        if depth and (begin, end) == (first, last) and end > begin:
            end -= 1  # an inner region is smaller than the outer one
        regions.append(_region(graph, rng, begin, end, depth, kept))
        begin = end + 1
    return regions


def _region(graph, rng, first, last, depth, kept) -> Region:
    if rng.random() < 0.15:
        return Region(first, last, alone=True)
    share = rng.choice((0.0, 0.2, 0.5, 0.8))
    names = savable(graph, first, last)
    saved = tuple(n for n in names if n in kept or rng.random() < share)
    inner = ()
    if depth < 2 and last > first and rng.random() < 0.6:
        inner = tuple(_intervals(graph, rng, first, last, depth + 1, kept | {*saved}))
    return Region(first, last, saved, inner=inner)


def savable(graph: Graph, first: int, last: int) -> list[str]:
    """Names of what a region of these stages may save and its own backward reads."""
    stages = graph.stages[first : last + 1]
    read = {i for stage in stages for op in stage.backward for i in op.inputs}
    return [
        graph.values[i].name
        for stage in stages
        for op in stage.forward
        for i in op.outputs
        if graph.values[i].savable and i in read
    ]


@contextlib.contextmanager
def planted(primitive: str, function: Callable) -> Iterator[None]:
    """Emits another function in the place of a primitive, as a fault that a test must notice."""
    bind = compat.bind

    def other(eqn, inputs, name_stack):
        if compat.primitive_name(eqn) == primitive:
            return [function(*inputs)]
        return bind(eqn, inputs, name_stack)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compat, "bind", other)
        yield


# ------------------------------------------------------------------------------ comparison


def pulled(flat: Flat, function: Callable, seed: int = 0) -> Callable:
    """`(*leaves) -> (results, gradients)` of a function, for random cotangents of all floats."""

    def run(*leaves):
        def differentiated(chosen):
            filled = list(leaves)
            for n, value in zip(flat.places, chosen, strict=True):
                filled[n] = value
            results = function(*filled)
            return [r for r in results if is_float(r)], results

        chosen = [leaves[n] for n in flat.places]
        floats, pull, results = jax.vjp(differentiated, chosen, has_aux=True)
        return results, pull([_cotangent(r, seed + n) for n, r in enumerate(floats)])[0]

    return run


def _cotangent(like: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    value = rng.standard_normal(like.shape)
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        value = value + 1j * rng.standard_normal(like.shape)
    return jnp.asarray(value.astype("f4") if value.dtype.kind == "f" else value, like.dtype)


def in_double(run: Callable, leaves: Sequence[Any]) -> Any:
    """`run` on the leaves widened to float64."""
    with jax.enable_x64(True):
        wide = [
            jnp.asarray(np.asarray(leaf).astype(np.float64)) if is_float(leaf) else leaf
            for leaf in leaves
        ]
        return jax.tree.map(numpy_of, run(*wide))


def reference(run: Callable, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """What a plain program returns, compiled as a whole, and the same in float64."""
    compiled = jax.jit(run)
    return compiled(*leaves), in_double(compiled, leaves)


def numpy_of(x: Any) -> np.ndarray:
    """An array as numpy; keys as their words, narrow floats widened."""
    x = np.asarray(jax.random.key_data(x) if is_key(x) else x)
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def assert_same(ours: Any, plain: Any, reference: Any, factor: float = 4) -> None:
    """Ours must be as near to the reference, in float64, as plain JAX is, up to a factor.

    The allowance is per array: the plain program's worst error, and a few units in the last
    place of the dtype, times the factor. Integers, bools and keys must be equal.
    """
    got, want, exact = map(jax.tree.leaves, (ours, plain, reference))
    assert len(got) == len(want) == len(exact)
    for a, b, c in zip(got, want, exact, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        epsilon = float(jnp.finfo(b.dtype).eps) if is_float(b) else 0
        a, b = numpy_of(a), numpy_of(b)
        if not epsilon:
            np.testing.assert_array_equal(a, b)
        elif b.size:
            error = factor * (np.max(np.abs(b - c)) + 4 * epsilon * max(np.max(np.abs(c)), 1e-3))
            np.testing.assert_allclose(a, b, rtol=0, atol=error)


# ------------------------------------------------------------------------------ counting


def gradient_jaxpr(flat: Flat, function: Callable) -> Any:
    """The jaxpr of the value and gradient that a budget is about, without dead code."""
    from jax._src.interpreters import partial_eval  # no public way to remove dead code

    step = gradient.value_and_gradient(
        lambda inputs, constants: function(*inputs), flat.program, flat.derivative
    )
    constants = list(flat.program.constants.values())
    cotangents = gradient.cotangent_avals(flat.program, flat.derivative)
    closed = jax.make_jaxpr(lambda leaves, cts: step(leaves, constants, cts))(
        list(flat.leaves), cotangents
    )
    return partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[0]


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation, those of nested jaxprs included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in compat.subjaxprs(eqn):
            yield from equations(inner.jaxpr)


def flops(jaxpr: Any) -> int:
    """FLOPs of all products of a jaxpr."""
    return sum(costs._eqn_work(eqn).flops for eqn in jaxpr.eqns)
