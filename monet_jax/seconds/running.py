"""Runs a group of equations on made-up arrays of its inputs' shapes."""

import concurrent.futures
import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..compiler.targets import default_device
from ..ir import compat
from ..ir.program import flatten, run
from .group import Group

#: Rows or images, and trips of a loop, that a part of a large op has at least: four trips of two
#: scanned transformers, scaled, take 1.04 and 1.06 of their loops' time, and two 1.11 and 1.19.
_LEAST_ROWS, _LEAST_TRIPS = 8, 4


def runnable(group: Group) -> Callable[[], Any]:
    """A function that runs a group, compiled.

    Its results are written over those of the run before: as in a step, where the memory of a value
    was another one's before, no page is touched for the first time.

    Raises:
        Exception: whatever tracing or compiling the group raises.
    """

    def results(inputs: list[Any], old: list[Any]) -> list[Any]:
        del old
        env = dict(zip(group.inputs, inputs, strict=True))
        run(group.equations, env, {})
        return [env[i] for i in group.outputs]

    inputs = [made_up(group.avals[i]) for i in group.inputs]
    state = [made_up(group.avals[i]) for i in group.outputs]
    jitted = jax.jit(results, donate_argnums=1, keep_unused=True)
    with _quietly():
        compiled = jitted.lower(inputs, state).compile()

    def again() -> Any:
        with _quietly():
            state[:] = compiled(inputs, [*state])
        return state

    return again


def part_of(group: Group, share: float) -> tuple[Group, float]:
    """A part of a large op, and how many times the part is in the whole.

    Arguments:
        group: the op; it is its own part where it cannot be divided.
        share: the part of it that is wanted, of 1; it may be a larger one.
    """
    equation = group.equations[-1]
    # What is computed on the way into a loop are views and constants.
    if share >= 1 or (len(group.equations) > 1 and equation.primitive != "scan"):
        return group, 1.0
    eqn = equation.eqn
    size, least, divided = _divided(eqn)
    part = max(least, int(size * share))
    if part >= size or divided is None:
        return group, 1.0
    avals, params = divided(part)
    operands = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    program = flatten(jax.make_jaxpr(lambda *x: eqn.primitive.bind(*x, **params))(*operands))
    results = zip(program.outputs, equation.outputs, strict=True)
    outputs = tuple(i for i, own in results if isinstance(i, int) and own in group.outputs)
    return Group(program.equations, program.inputs, outputs, program.avals), size / part


def _divided(
    eqn: Any,
) -> tuple[int, int, Callable[[int], tuple[list[Any], dict[str, Any]]] | None]:
    """A size by which an equation's work can be divided, the least of it, a part -> the equation.

    Trips of a loop, images of a convolution, or rows of a product.
    """
    avals, params = [v.aval for v in eqn.invars], eqn.params
    name = eqn.primitive.name
    if name == "scan":
        constants, carried, _ = compat.scan_counts(eqn)
        kept = constants + carried
        return (
            params["length"],
            _LEAST_TRIPS,
            lambda n: (
                [a if k < kept else _with_side(a, 0, n) for k, a in enumerate(avals)],
                {**params, "length": n, "unroll": min(n, params["unroll"])},
            ),
        )
    axis = None
    if name == "dot_general":
        (contracted, _), (batched, _) = params["dimension_numbers"]
        free = [i for i in range(avals[0].ndim) if i not in (*contracted, *batched)]
        axis = max(free, key=lambda i: avals[0].shape[i], default=None)
    elif name == "conv_general_dilated" and params["batch_group_count"] == 1:
        axis = params["dimension_numbers"].lhs_spec[0]
    if axis is None:
        return 1, 1, None
    along = axis
    return (
        avals[0].shape[along],
        _LEAST_ROWS,
        lambda n: ([_with_side(avals[0], along, n), *avals[1:]], params),
    )


def _with_side(aval: Any, axis: int, side: int) -> Any:
    shape = (*aval.shape[:axis], side, *aval.shape[axis + 1 :])
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def made_up(aval: Any) -> Any:
    """An array of an abstract value: numbers of order one, or indices that are in range."""
    if compat.is_key(aval):
        return jax.random.split(jax.random.key(0), aval.shape) if aval.shape else jax.random.key(0)
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        numbers = np.random.default_rng(0).random(math.prod(aval.shape), np.float32) + 0.5
        return jnp.asarray(numbers.reshape(aval.shape), aval.dtype)
    return jnp.zeros(aval.shape, aval.dtype)


def apart[Result](function: Callable[[], Result]) -> Result:
    """What a function returns that runs programs on this process's device, in another thread.

    While a function is being traced, nothing can run there; but traces are a thread's own.
    """
    device, x64 = default_device(), jax.config.jax_enable_x64

    def on_device() -> Result:
        with jax.default_device(device), jax.enable_x64(x64):
            return function()

    with concurrent.futures.ThreadPoolExecutor(1, "monet_jax-clock") as threads:
        return threads.submit(on_device).result()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the warning that some memory could not be written over."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*donated.*")
        yield


def can_run(group: Group) -> bool:
    """Whether a group can run alone: it has results, and no side effects."""
    return bool(group.outputs) and not any(compat.has_effects(e.eqn) for e in group.equations)
