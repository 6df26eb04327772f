"""Runs a loop whose iterations have different plans, with its own derivative.

Iterations with one plan are a `lax.scan`. Where there are several plans, runs of iterations follow
each other, and the loop has its own derivative: to differentiate a scan over part of a stacked
array, JAX would copy that part and its gradient. Here every run indexes the whole array, and its
backward, another loop, writes into one gradient. Loop-invariant residuals of a run (a mask, say)
are computed once, before the run (`invariants`).

What is hoisted out of the body (`tracing/passes/hoist`) is computed before the loop, and anew
before the loop's backward. Its own backward is part of each iteration's: gradients of constants are
added up in the constants' precision, and in the memory of the results.

| index | means |
|---|---|
| `k` | an iteration, in order of execution |
| `at` | its place in what is stacked: the same, or counted from the end |
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from ..ir import compat
from ..ir.places import filled
from .host import whole
from .invariants import joined, without_invariants
from .scan_host import Away, moved_residuals, stacked
from .scan_operands import Active, Body, Hoisted, Shape

#: What JAX is told to say of `jax.jvp(jax.jit(planned))`.
NO_FORWARD_MODE = (
    "jax.jvp cannot push tangents through a planned loop whose iterations have different plans, or "
    "share what is computed before it: it has a derivative of its own, which only goes backward. "
    'Plan with operators="none", which gives all iterations of a loop one plan, or take jax.jvp '
    "inside jax.jit."
)


@dataclasses.dataclass(frozen=True)
class Run:
    """Iterations `first` up to `stop`, which all run one body.

    Attributes:
        body: that runs.
        first, stop: which iterations.
        marked: by how many iterations ahead it is fetched, 0 or 1: a body whose residuals are on
            the host where those of `body` are to be moved there.
    """

    body: Body
    first: int
    stop: int
    marked: Mapping[int, Body] = dataclasses.field(default_factory=dict)


def run_loop(
    eqn: Any, operands: Sequence[Any], runs: Sequence[Run], hoisted: Hoisted | None = None
) -> list[Any]:
    """The results of a `scan`, its iterations run as planned.

    Where there are several runs, or something is hoisted or moved to the host, the loop cannot be
    differentiated in forward mode. Where that is seen to be done, all iterations run as the first
    ones, and nothing is hoisted or moved; where it is seen only later, as in
    `jax.jvp(jax.jit(planned), ...)`, a `TypeError` says how to plan for it.

    Arguments:
        eqn: the scan.
        operands: its operands.
        runs: cover the iterations in order.
        hoisted: what runs before the loop, if anything does.
    """
    shape = Shape(
        *compat.scan_counts(eqn)[:2],
        eqn.params["length"],
        eqn.params["reverse"],
        tuple(var.aval for var in eqn.outvars),
        eqn.params["jaxpr"],
    )
    is_plain = len(runs) == 1 and hoisted is None and not runs[0].marked
    if is_plain or any(map(compat.is_pushed_forward, operands)):
        consts, carry, xs = shape.split(operands)
        carry, ys = lax.scan(
            lambda carry, x: runs[0].body(_with_hoisted(hoisted, consts), carry, x),
            carry,
            xs,
            shape.trips,
            reverse=shape.reverse,
            unroll=eqn.params["unroll"],
        )
        return [*carry, *ys]
    return _Runs(shape, tuple(runs), hoisted).differentiable()(*_backward_only(*operands))


def _with_hoisted(hoisted: Hoisted | None, consts: Sequence[Any]) -> list[Any]:
    return [*consts, *(hoisted.values(consts) if hoisted else ())]


@jax.custom_jvp
def _backward_only(*operands):
    """The operands; their tangents may be transposed, and not be pushed forward."""
    return operands


def _refusing(primals, tangents):
    def refuse(t):
        if isinstance(t, SymbolicZero):
            return t
        return compat.backward_only_p.bind(t, message=NO_FORWARD_MODE)

    return primals, tuple(map(refuse, tangents))


_backward_only.defjvp(_refusing, symbolic_zeros=True)


def _index(stacked: Sequence[Any], at: Any) -> list[Any]:
    return [lax.dynamic_index_in_dim(x, at, 0, keepdims=False) for x in stacked]


def _update(stacked: Sequence[Any], slices: Sequence[Any], at: Any) -> list[Any]:
    pairs = zip(stacked, slices, strict=True)
    return [lax.dynamic_update_index_in_dim(x, new, at, 0) for x, new in pairs]


@dataclasses.dataclass(frozen=True)
class _Runs:
    """A scan in runs, and its derivative."""

    shape: Shape
    runs: tuple[Run, ...]
    hoisted: Hoisted | None

    def differentiable(self) -> Callable[..., list[Any]]:
        """The scan as a function of its operands that has a derivative of its own."""
        function = jax.custom_vjp(lambda *operands: self._forward(operands, None)[0])

        def forward(*primals):
            operands = [x.value for x in primals]
            perturbed = [x.perturbed for x in primals]
            active = Active(self.shape, operands, perturbed, self.hoisted)
            results, pulls = self._forward(operands, active)
            return results, (operands, active, pulls)

        function.defvjp(forward, self._backward, symbolic_zeros=True)
        return function

    def _forward(
        self, operands: Sequence[Any], active: "Active | None"
    ) -> tuple[list[Any], list[Any]]:
        """The results; and where there is an `active`, the residuals of each run."""
        consts, carry, xs = self.shape.split(operands)
        consts = _with_hoisted(self.hoisted, consts)
        ys = [compat.zeros(a) for a in self.shape.results[self.shape.carry :]]
        pulls = []
        for run in self.runs:
            kept: dict[str, Any] = {}

            def step(state, k, run=run, kept=kept):
                carry, ys = state
                at = self.shape.at(k)
                slices = _index(xs, at)
                if active is None:
                    carry, new = run.body(consts, carry, slices)
                    leaves = []
                else:
                    moved = moved_residuals(active, run.marked, consts, carry, slices)
                    carry, new, pull = active.pulled(run.body, consts, carry, slices)
                    leaves, kept["rebuild"], kept["away"] = _stripped(pull, consts, slices, moved)
                return (carry, _update(ys, new, at)), leaves

            ks = jnp.arange(run.first, run.stop)
            differing, invariant_values = without_invariants(step, (carry, ys), ks[0])
            away = Away.among(kept.get("away", {}), invariant_values)
            (carry, ys), last, leaves = stacked(differing, (carry, ys), ks, away)
            if active is not None:
                args = leaves, invariant_values, last, away
                pulls.append(jax.tree_util.Partial(kept["rebuild"], *args))
        return [*carry, *ys], pulls

    def _backward(self, residuals: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        operands, active, pulls = residuals
        consts, _, xs = self.shape.split(operands)
        carry = [whole(cotangents[n]) for n in active.carry]
        given = list(cotangents[self.shape.carry :])
        shared, carry, given, link = self._hoisted_anew(active, consts, carry, given)
        carry, of_consts, of_xs = _with_late_zeros(
            carry, [consts[n] for n in active.consts], [xs[n] for n in active.xs]
        )
        gradients = of_consts, carry, of_xs
        for run, pull in zip(reversed(self.runs), reversed(pulls), strict=True):
            rebuild, (leaves, invariant_values, last, away) = pull.func, pull.args

            def step(state, item, rebuild=rebuild, invariant_values=invariant_values, away=away):
                k, leaves = item
                at = self.shape.at(k)
                (of_consts, of_carry, of_xs), fetched = state
                slices = _index(xs, at)
                of_ys = [_slice_of(given[n], at) for n in active.ys]
                leaves, fetched = away.next_fetched(leaves, fetched)
                late = compat.unused((leaves, slices, of_carry))
                leaves, slices, of_carry = lax.optimization_barrier(late)
                leaves = away.fetched_now(leaves)
                pull = rebuild(joined(invariant_values, leaves), [*consts, *shared], slices)
                more, of_carry, of_slices = pull((of_carry, of_ys))
                of_consts = [a + b for a, b in zip(of_consts, link(more), strict=True)]
                return ((of_consts, of_carry, _update(of_xs, of_slices, at)), fetched), None

            items = jnp.arange(run.first, run.stop), leaves
            (gradients, _), _ = lax.scan(step, (gradients, last), items, reverse=True)
        return active.spread(gradients)

    def _hoisted_anew(
        self, active: "Active", consts: list[Any], carry: list[Any], given: list[Any]
    ) -> tuple[list[Any], list[Any], list[Any], Callable[[list[Any]], list[Any]]]:
        """What is hoisted, no earlier than the loop's cotangents; these; and its pullback."""
        if self.hoisted is None:
            return [], carry, given, lambda gradients: gradients
        places = [n for n in active.ys if not isinstance(given[n], SymbolicZero)]
        arrays = [given[n] for n in places]
        late = compat.unused((consts, carry, arrays))
        consts, carry, arrays = lax.optimization_barrier(late)
        shared, link = active.linked(self.hoisted.values, consts)
        return shared, carry, filled(given, places, arrays), link


def _with_late_zeros(
    carry: list[Any], *like: Sequence[jax.Array]
) -> tuple[list[Any], *tuple[list[jax.Array], ...]]:
    """What is carried into a loop's backward, and zeros like some arrays that are made no earlier.

    XLA shares equal constants, and its compiler for CPUs makes what depends on nothing first of
    all: gradients then wait from the step's beginning, each a copy of zeros that are kept as well.
    """
    dtypes = sorted({x.dtype for some in like for x in some}, key=str)
    scalars = [jnp.zeros((), dtype) for dtype in dtypes]
    carry, scalars = lax.optimization_barrier(compat.unused((carry, scalars)))
    zeros = dict(zip(dtypes, scalars, strict=True))
    return carry, *([lax.full_like(x, zeros[x.dtype]) for x in some] for some in like)


def _slice_of(cotangent: Any, at: Any) -> Any:
    if isinstance(cotangent, SymbolicZero):
        return compat.zeros(cotangent.aval, leading=1)
    return lax.dynamic_index_in_dim(cotangent, at, 0, keepdims=False)


def _stripped(
    pull: Any, consts: Sequence[Any], slices: Sequence[Any], moved: Sequence[int | None]
) -> tuple[list[Any], Any, dict[int, int]]:
    """What a pulled-back gradient keeps beside the loop's own operands, and how to put it back.

    What JAX gave a value to while tracing is neither: it is part of the program. Last come the
    depths of what is `moved`, by places among what it keeps.
    """
    leaves, tree = jax.tree.flatten(pull)
    if moved and len(moved) != len(leaves):
        raise AssertionError(f"{len(leaves)} residuals, of which {len(moved)} were looked at")
    known = {id(x): (0, n) for n, x in enumerate(consts)}
    known |= {id(x): (1, n) for n, x in enumerate(slices)}
    fixed = [x for x in leaves if not isinstance(x, jax.core.Tracer)]
    known |= {id(x): (2, n) for n, x in enumerate(fixed)}
    kept = [x for x in leaves if id(x) not in known]
    known |= {id(x): (3, n) for n, x in enumerate(kept)}
    places = [known[id(x)] for x in leaves]

    def rebuild(leaves: Sequence[Any], consts: Sequence[Any], slices: Sequence[Any]) -> Any:
        sources = consts, slices, fixed, leaves
        return jax.tree.unflatten(tree, [sources[source][n] for source, n in places])

    own = ((n, depth) for (source, n), depth in zip(places, moved, strict=False) if source == 3)
    return kept, rebuild, {n: depth for n, depth in own if depth is not None}
