"""Arrays that wait in the host's memory as slots of stacks, and come back at an index.

XLA:TPU moves the copy of a whole array back in front of every barrier, so that the array comes back
as soon as it is there. A slice of a stack it does not move in front of its index.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..compiler.host import STACK_SLOTS
from ..ir.memories import on_device, on_host


def stacked(array: Any) -> Any:
    """A stack in the host's memory whose first slot has an array."""
    return _stacked_along(0)(array)


def slot(stack: Any, index: Any) -> Any:
    """The array of a stack's slot, on the device."""
    return _slot_along(0)(stack, index)


# Batched as they are, both would index arrays of the host by arrays of the device.
@functools.cache
def _stacked_along(axis: int) -> Callable[[Any], Any]:
    @jax.custom_batching.custom_vmap
    def stacked(array):
        part = jnp.expand_dims(array, axis)
        shape = (*part.shape[:axis], STACK_SLOTS, *part.shape[axis + 1 :])
        empty = lax.broadcast(on_host(jnp.zeros((), array.dtype)), shape)
        return lax.dynamic_update_slice_in_dim(empty, on_host(part), 0, axis)

    @stacked.def_vmap
    def batched(size, is_batched, array):
        del size, is_batched
        return _stacked_along(axis + 1)(array), True

    return stacked


@functools.cache
def _slot_along(axis: int) -> Callable[[Any, Any], Any]:
    @jax.custom_batching.custom_vmap
    def slot(stack, index):
        found = lax.dynamic_slice_in_dim(stack, index, 1, axis, allow_negative_indices=False)
        return jnp.squeeze(on_device(found), axis)

    @slot.def_vmap
    def batched(size, is_batched, stack, index):
        del size
        assert is_batched == [True, False], "the index is the same for all"
        return _slot_along(axis + 1)(stack, index), True

    return slot
