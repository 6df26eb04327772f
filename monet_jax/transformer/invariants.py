"""Moves loop-invariant residuals out of a scan, so that they are not stacked.

Examples are a mask that the body makes and broadcasts for its gradient, or weights that it
concatenates: they depend neither on the iteration's number nor on the carry. JAX moves them out of
a `lax.scan` that it differentiates; a loop with its own derivative has to do so itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..ir import compat
from ..ir.places import filled
from ..ir.primitives import must_run_once
from ..ir.program import dependents, flatten, run, values_of, without_dead_code

#: `(state, item) -> (state, arrays)`, as `lax.scan` takes it.
Step = Callable[[Any, Any], tuple[Any, list[Any]]]


def without_invariants(step: Step, state: Any, item: Any) -> tuple[Step, list[Any]]:
    """A step that no longer returns loop-invariant arrays, and these arrays.

    Arguments:
        step: `(state, item) -> (state, arrays)`; it is traced once.
        state, item: example arguments of the step.

    Returns:
        A step that returns the other arrays only; and the loop-invariant arrays, computed here,
        with None in the places of the others.
    """
    jaxpr, (new_state, arrays) = jax.make_jaxpr(step, return_shape=True)(state, item)
    program, tree = flatten(jaxpr), jax.tree.structure(new_state)
    effects = [i for e in program.equations if compat.has_effects(e.eqn) for i in e.outputs]
    varying = dependents(program.equations, [*program.inputs, *effects])
    carried, kept = program.outputs[: tree.num_leaves], program.outputs[tree.num_leaves :]
    invariant_values = {
        n: i for n, i in enumerate(kept) if not isinstance(i, int) or i not in varying
    }
    outputs = [*carried, *(i for n, i in enumerate(kept) if n not in invariant_values)]

    pure = [e for e in program.equations if not compat.has_effects(e.eqn)]
    fixed = [e for e in pure if must_run_once(e) and varying.isdisjoint(e.outputs)]
    once = {i for e in fixed for i in e.outputs}
    before = dict(program.constants)
    run(without_dead_code(pure, [*invariant_values.values(), *once]), before, {})
    found = dict(zip(invariant_values, values_of(before, invariant_values.values()), strict=True))
    others = [e for e in program.equations if once.isdisjoint(e.outputs)]
    equations = without_dead_code(others, outputs)

    def rest(state: Any, item: Any) -> tuple[Any, list[Any]]:
        given = zip(program.inputs, jax.tree.leaves((state, item)), strict=True)
        env = {**program.constants, **{i: before[i] for i in once}, **dict(given)}
        run(equations, env, {})
        found = values_of(env, outputs)
        return jax.tree.unflatten(tree, found[: tree.num_leaves]), found[tree.num_leaves :]

    return rest, [
        _array(found[n], x.dtype) if n in invariant_values else None for n, x in enumerate(arrays)
    ]


def _array(x: Any, dtype: Any) -> jax.Array:
    """A value of a program, which may be a literal, as an array."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x, dtype)


def joined(invariant_values: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """All arrays: loop-invariant ones in their places, the others between them."""
    return filled(
        invariant_values, [n for n, x in enumerate(invariant_values) if x is None], others
    )
