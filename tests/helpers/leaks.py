"""JAX's check for leaked tracers, at a price that does not grow with what other tests left."""

import contextlib
import gc
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def leaks_are_errors() -> Iterator[None]:
    """`jax.check_tracer_leaks`; it looks among all objects that can be collected, so new ones."""
    gc.collect()
    gc.freeze()
    try:
        with jax.check_tracer_leaks(True):
            yield
    finally:
        gc.unfreeze()
