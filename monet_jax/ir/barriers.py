"""Barriers that make cotangents leave together.

The transpose of an `optimization_barrier` is a barrier round its cotangents: none of them is
available before all are. So a compiler computes them one after another, where it would otherwise
defer some and keep their operands (openxla/xla#45753).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from . import compat
from .places import filled, float_places


def accumulated(values: Sequence[Any]) -> list[Any]:
    """A function's arguments, ready to pass a barrier: gradients may go to references."""
    places = float_places(values)
    if not places:
        return list(values)
    return filled(values, places, _accumulated(*(values[n] for n in places)))


def with_barrier(
    values: list[Any], chosen: Sequence[bool], narrow: Mapping[int, Any] | None = None
) -> list[Any]:
    """The values, the chosen floats behind one barrier: their cotangents leave together.

    Keys and integers go with them. What a stage draws from a key depends on nothing else, and XLA
    would otherwise draw for every stage before the first one runs.

    Arguments:
        values: floats, keys and integers.
        chosen: for each, whether it is to pass the barrier.
        narrow: place -> the dtype in which its cotangent passes. It must be that of a cast which is
            all that is done with the value: then nothing is rounded, and XLA casts the cotangent
            back where it is used, instead of writing it in the wider dtype.
    """
    floats = [compat.is_float(jax.typeof(value)) for value in values]
    places = [n for n, is_float in enumerate(floats) if chosen[n] or not is_float]
    if not any(floats[n] for n in places):
        return values
    passing = compat.unused([values[n] for n in places])
    dtypes = tuple((narrow or {}).get(n) for n in places)
    if any(dtypes):
        return filled(values, places, _narrowed(dtypes, *passing))
    return filled(values, places, jax.lax.optimization_barrier(tuple(passing)))


def cotangents_with_barrier(values: list[Any], chosen: Sequence[bool]) -> list[Any]:
    """As `with_barrier`, but the values themselves pass no barrier.

    Inside a region that runs again, a barrier would have every input computed again where the
    backward reads only one of them.
    """
    places = [
        n for n, value in enumerate(values) if chosen[n] and compat.is_float(jax.typeof(value))
    ]
    if not places:
        return values
    found = filled(values, places, _identity(*(values[n] for n in places)))
    others = [n for n, value in enumerate(values) if not compat.is_float(jax.typeof(value))]
    if not others:
        return found
    late = jax.lax.stop_gradient(values[places[-1]])  # numbers rise: the last one computed
    keys_and_integers = compat.unused([values[n] for n in others])
    *barred, _ = jax.lax.optimization_barrier((*keys_and_integers, late))
    return filled(found, others, barred)


@jax.custom_jvp
def written_once(value: jax.Array) -> jax.Array:
    """A value that is in memory, which its readers read there; its tangent passes no barrier.

    XLA:CPU computes what is cheap anew for each reader, in memory of its own where the reader has
    another shape: a `relu` that is saved and flattened for a product would be written twice.
    """
    return jax.lax.optimization_barrier(value)


@written_once.defjvp
def _written_once_jvp(primals, tangents):
    return written_once(*primals), *tangents


def operands_with_barrier(image: jax.Array, kernel: jax.Array, flattens: bool) -> list[jax.Array]:
    """The operands of a convolution, whose cotangents leave together.

    The kernel's cotangent may leave as one row, in the layout in which it will be returned. XLA:GPU
    would otherwise keep cuDNN's layout, and defer all the copies to the end of the step: 45 of 169
    MB of temporaries of a ResNet-50.
    """
    row = kernel.reshape(-1) if flattens else kernel
    image, row = cotangents_with_barrier([image, row], [True] * 2)
    return [image, row.reshape(kernel.shape)]


def as_row(tangent: jax.Array) -> jax.Array:
    """The tangent of a kernel, whose cotangent leaves as one row, for the same reason."""
    return jax.lax.optimization_barrier(tangent.reshape(-1)).reshape(tangent.shape)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _narrowed(dtypes, *values):
    del dtypes
    return jax.lax.optimization_barrier(values)


def _narrowed_jvp(dtypes, primals, tangents):
    places = [n for n, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
    passing = tuple(tangents[n].astype(dtypes[n] or tangents[n].dtype) for n in places)
    barred = jax.lax.optimization_barrier(passing) if places else ()
    wide = [t.astype(tangents[n].dtype) for n, t in zip(places, barred, strict=True)]
    return _narrowed(dtypes, *primals), tuple(filled(tangents, places, wide))


_narrowed.defjvp(_narrowed_jvp, symbolic_zeros=True)


@jax.custom_jvp
def _accumulated(*values):
    return values


def _accumulated_jvp(primals, tangents):
    zero = [isinstance(t, SymbolicZero) for t in tangents]
    found = [t if z else compat.accumulated_p.bind(t) for t, z in zip(tangents, zero, strict=True)]
    return primals, tuple(found)


_accumulated.defjvp(_accumulated_jvp, symbolic_zeros=True)


@jax.custom_jvp
def _identity(*values):
    return values


def _identity_jvp(primals, tangents):
    places = [n for n, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
    barred = jax.lax.optimization_barrier(tuple(tangents[n] for n in places)) if places else ()
    return primals, tuple(filled(tangents, places, barred))


_identity.defjvp(_identity_jvp, symbolic_zeros=True)
