"""JAX's coming rules for `jax.checkpoint` and `custom_vjp`, and where plain JAX is at fault there.

They are in force where `JAX_REMAT3` and `JAX_CUSTOM_VJP3` are set.
"""

import contextlib
from collections.abc import Iterator

import jax
import pytest

IN_FORCE = jax.config.jax_remat3
FLAGS = "jax_remat3", "jax_custom_vjp3"


def fault_of_jax(reason: str) -> pytest.MarkDecorator:
    """Skips a test that plain JAX fails under the coming rules, or one case of it."""
    return pytest.mark.skipif(IN_FORCE, reason=f"plain JAX under JAX_REMAT3: {reason}")


@contextlib.contextmanager
def coming_rules() -> Iterator[None]:
    """The coming rules, for a while."""
    before = {flag: getattr(jax.config, flag) for flag in FLAGS}
    try:
        for flag in FLAGS:
            jax.config.update(flag, True)
        yield
    finally:
        for flag, value in before.items():
            jax.config.update(flag, value)


@pytest.fixture(params=[contextlib.nullcontext, coming_rules], ids=["", "coming_rules"])
def either_rules(request) -> Iterator[None]:
    """A test under the rules that are in force, and under the coming ones."""
    with request.param():
        yield
