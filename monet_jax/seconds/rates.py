"""The rates that this process's device attains, measured once: the roofline of what is not run."""

import mmap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .clock import timed
from .roofline import Roofline
from .store import Store

#: Sides of the products, and elements of the arrays, that rates are measured with. Products of half
#: and double the side are within 20 % on two cores of an EPYC; the arrays exceed its caches.
SIDE, ELEMENTS = 1024, 2**24
#: Instructions that `exp` counts as (`ir.primitives`).
EXP_INSTRUCTIONS = 8
#: Memory that is touched page by page.
TOUCHED_BYTES = 2**26
_RUNS, _SECONDS = 5, 0.05


def measured_roofline(store: Store, like: Roofline) -> Roofline:
    """The roofline of this process's device.

    Arguments:
        store: keeps the rates.
        like: the roofline of the target's table, for its tiles.
    """
    products = {name: _rate(store, f"product {name}", _product(name)) for name in _DTYPES}
    return Roofline(
        products,
        _rate(store, "elementwise", _elementwise),
        _rate(store, "bandwidth", _bandwidth),
        like.tile,
    )


def touch_seconds_per_byte(store: Store) -> float:
    """Seconds for a byte of memory that the process touches for the first time.

    XLA:CPU asks for the memory of temporaries anew in every step, and the system hands out pages
    that are mapped and cleared when they are first touched.
    """
    return 1 / _rate(store, "first touch", _touch)


_DTYPES = ("float32", "bfloat16", "float16")


def _rate(store: Store, name: str, measure: Callable[[], float]) -> float:
    known = store.get(name)
    if known is None:
        known = measure()
        store.put(name, known)
    return known


def _product(dtype: str) -> Callable[[], float]:
    def measure() -> float:
        x = jnp.ones((SIDE, SIDE), dtype)
        return 2 * SIDE**3 / _median(jnp.matmul, x, x)

    return measure


def _elementwise() -> float:
    x = jnp.linspace(0.0, 1.0, ELEMENTS)
    return EXP_INSTRUCTIONS * ELEMENTS / _median(lambda x: jnp.exp(x).sum(), x)


def _bandwidth() -> float:
    x = jnp.ones(ELEMENTS)
    add = jax.jit(lambda x, y: x + y, donate_argnums=1).lower(x, x).compile()
    state = [jnp.ones(ELEMENTS)]

    def run() -> Any:
        state[0] = add(x, state[0])
        return state[0]

    run()
    return 3 * x.nbytes / timed(run, _RUNS, _SECONDS).seconds


def _touch() -> float:
    def run() -> None:
        with mmap.mmap(-1, TOUCHED_BYTES) as memory:
            memory[:: mmap.PAGESIZE] = b"\1" * (TOUCHED_BYTES // mmap.PAGESIZE)

    return TOUCHED_BYTES / timed(run, _RUNS, _SECONDS).seconds


def _median(fun: Callable[..., Any], *args: Any) -> float:
    compiled = jax.jit(fun).lower(*args).compile()
    jax.block_until_ready(compiled(*args))
    return timed(lambda: compiled(*args), _RUNS, _SECONDS).seconds
