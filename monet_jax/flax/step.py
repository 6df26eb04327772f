"""`monet_jax.flax.jit`: a step of NNX modules, which it changes in place, within a budget."""

from collections.abc import Callable
from typing import Any

from . import library


def jit(fun: Callable[..., Any] | None = None, *, budget: int | float | str, **options: Any) -> Any:
    """`nnx.jit(fun)`, such that the compiled program takes at most `budget` bytes.

    The modules, optimizers and other NNX objects among the arguments are changed in place, as under
    `nnx.jit`. What is planned is marked by `monet_jax.remat`, or `monet_jax.flax.remat`, without a
    budget, under `nnx.grad` or `nnx.value_and_grad`. Donate the objects that the step changes.

    Arguments:
        fun: the step, or None to use `jit(...)` as a decorator.
        budget: as in `monet_jax.jit`.
        **options: the other arguments of `monet_jax.jit`, those of `jax.jit` included.

    Returns:
        A function like those that `monet_jax.jit` makes; it takes NNX objects.

    Raises:
        ImportError: Flax is not installed.
        TypeError, ValueError: an argument is not what it must be.
    """
    library.nnx()  # says what to install
    from .nnx_step import planned_step

    def decorate(fun: Callable[..., Any]) -> Any:
        return planned_step(fun, {"budget": budget, **options})

    return decorate if fun is None else decorate(fun)
