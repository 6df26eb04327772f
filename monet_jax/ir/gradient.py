"""One value and gradient as a function of flat arrays: the program that a budget covers.

Its outputs are the function's outputs and the gradients with respect to the chosen inputs. Where
the function's first output is a float scalar, that is the loss and nothing else receives a
cotangent; otherwise each float output has a cotangent among the arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp

from . import compat
from .places import filled
from .primitives import STOPS
from .program import Program, aval_of, shape_of
from .stage import Differentiation

FlatFunction = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def derivative_of(
    program: Program,
    differentiated: Sequence[bool],
    forward_mode: bool = False,
    tracers: Sequence[Any] = (),
) -> Differentiation:
    """Which derivative a budget covers.

    Arguments:
        program: the function.
        differentiated: for each input, whether `argnums` covers it. Inputs that cannot have a
            gradient are left out.
        forward_mode: whether plans must be fit for it, too.
        tracers: constants that have a gradient outside, where they can: what the function closes
            over of outer transformations, or what stands for that once these have ended.
    """
    inputs = [i for i, d in zip(program.inputs, differentiated, strict=True) if d]
    ids = {*map(id, tracers)}
    closed_over = {i for i, c in program.constants.items() if id(c) in ids}
    inputs += closed_over - _closed_over_by_rules(program) if closed_over else ()
    differentiable = frozenset(i for i in inputs if compat.is_float(program.avals[i]))
    return Differentiation(differentiable, _outputs_with_cotangents(program), forward_mode)


def _closed_over_by_rules(program: Program) -> set[int]:
    """Floats that functions with rules of their own close over, and those that influence these.

    JAX refuses to differentiate with respect to them: a tracer among them has no gradient outside.
    """
    found: set[int] = set()
    for e in reversed(program.equations):
        reads: set[int] = set()
        if e.primitive not in STOPS and found.intersection(e.outputs):
            reads.update(e.reads)
        closed_over = e.inputs[: compat.closed_over_count(e.eqn)]
        reads.update(i for i in closed_over if isinstance(i, int))
        found.update(i for i in reads if compat.is_float(program.avals[i]))
    return found


def _outputs_with_cotangents(program: Program) -> tuple[int, ...]:
    avals = [aval_of(program, atom) for atom in program.outputs]
    if avals and avals[0].shape == () and compat.is_float(avals[0]):
        return (0,)
    return tuple(n for n, aval in enumerate(avals) if compat.is_float(aval))


def has_loss(program: Program) -> bool:
    """Whether the first output is a float scalar."""
    return (
        bool(program.outputs)
        and aval_of(program, program.outputs[0]).shape == ()
        and (_outputs_with_cotangents(program) == (0,))
    )


def value_and_gradient(
    function: FlatFunction, program: Program, derivative: Differentiation
) -> Callable[..., tuple[list[Any], list[Any]]]:
    """The function `(inputs, constants, cotangents) -> (outputs, gradients)` to compile."""
    slots = (*program.inputs, *program.constants)
    places = [n for n, i in enumerate(slots) if i in derivative.inputs]
    split = len(program.inputs)

    def step(inputs, constants, cotangents):
        given = [*inputs, *constants]

        def differentiated(chosen):
            slots = filled(given, places, chosen)
            outputs = list(function(slots[:split], slots[split:]))
            return [outputs[n] for n in derivative.outputs], outputs

        values, pull, outputs = jax.vjp(differentiated, [given[n] for n in places], has_aux=True)
        seeds = [jnp.ones_like(values[0])] if has_loss(program) else cotangents
        return outputs, pull(seeds)[0]

    return step


def cotangent_avals(program: Program, derivative: Differentiation) -> list[Any]:
    """The cotangents that the program takes as arguments."""
    if has_loss(program):
        return []
    return [shape_of(aval_of(program, program.outputs[n])) for n in derivative.outputs]
