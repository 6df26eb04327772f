"""Abstract values: keys, floats, weak types, shardings, and the axes along which they vary."""

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.sharding import AxisType


def is_key(aval: Any) -> bool:
    """Whether an abstract value is an array of typed PRNG keys."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


def is_float(aval: Any) -> bool:
    """Whether arrays of an abstract value have gradients: floats and complex numbers."""
    return not is_key(aval) and jnp.issubdtype(aval.dtype, jnp.inexact)


def unused(values: Any) -> Any:
    """A pytree of values, keys as copies where `jax_debug_key_reuse` is on.

    To that check a barrier, or a function with a rule of its own, uses up its keys, and so does a
    region that runs again. It is the user's function that it is about, and that has passed it when
    it was traced.
    """

    def copied(x: Any) -> Any:
        if not isinstance(x, jax.Array) or not is_key(jax.typeof(x)):
            return x
        # `jax.random.clone` has no rule for tangents, which a key carried in a loop can have.
        return jax.random.wrap_key_data(jax.random.key_data(x), impl=jax.random.key_impl(x))

    return jax.tree.map(copied, values) if jax.config.jax_debug_key_reuse else values


def is_placed(aval: Any) -> bool:
    """Whether an array is sharded by explicit axes."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and any(axis is not None for axis in sharding.spec)


def with_weak_type(x: Any, aval: Any) -> Any:
    """An array, or the value of a literal, as an array of a weak type where `aval` has one."""
    is_array = isinstance(x, jax.Array)
    if is_array and jax.typeof(x).weak_type == aval.weak_type:
        return x
    # `jax.lax.convert_element_type` makes every type a strong one.
    return jax.lax.convert_element_type_p.bind(
        x if is_array else jnp.asarray(x, aval.dtype),
        new_dtype=aval.dtype,
        weak_type=aval.weak_type,
        sharding=None,
    )


def explicit_sharding(aval: Any) -> Any:
    """How explicit axes shard an abstract value; None where a mesh has none, or is mapped over."""
    sharding = getattr(aval, "sharding", None)
    kinds = set(sharding.mesh.axis_types) if sharding is not None else set()
    return sharding if AxisType.Explicit in kinds and AxisType.Manual not in kinds else None


def zeros(aval: Any, leading: int = 0) -> Any:
    """Zeros of an abstract value less some leading axes, sharded as it is along explicit axes."""
    spread = None
    if aval.sharding.mesh.explicit_axes:
        spread = aval.sharding.update(spec=(*aval.sharding.spec,)[leading:])
    return jax.lax.full(aval.shape[leading:], 0, aval.dtype, sharding=spread)


def key_implementation(aval: Any) -> str:
    """The name of the PRNG implementation of a typed key: "fry", "rbg", ..."""
    return getattr(getattr(aval.dtype, "_impl", None), "tag", "")


def shape_on_axes(aval: Any, sharding: Any, weak_type: bool = False) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an abstract value, and along which axes of a `shard_map` it differs.

    Arguments:
        aval: the abstract value.
        sharding: how other axes shard it.
        weak_type: of the shape.
    """
    differs = getattr(aval, "manual_axis_type", None)
    if differs is not None and differs.varying:
        sharding = aval.sharding  # on the mesh whose axes these are
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=weak_type, sharding=sharding, manual_axis_type=differs
    )


def varying_axes(aval: Any) -> list[str]:
    """The axes of an outer `shard_map` along which arrays differ; none where that is unchecked."""
    # JAX 0.11.2 to 0.12 call it so; it was `vma` before.
    return [str(axis) for axis in aval.manual_axis_type.varying]
