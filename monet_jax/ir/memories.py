"""Puts arrays into the memory of the host, and back into the device's."""

from typing import Any

import jax


def on_host(array: Any) -> Any:
    """An array, in the host's memory."""
    return jax.device_put(array, jax.memory.Space.Host)


def on_device(array: Any) -> Any:
    """An array, in the device's memory."""
    return jax.device_put(array, jax.memory.Space.Device)
