"""The rates that this process's device attains, measured once: the roofline of what is not run."""

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .clock import MOST_SPREAD, Timing, in_turns, timed
from .roofline import Roofline
from .store import Store

#: Sides of the products, and elements of the arrays, that rates are measured with. Products of half
#: and double the side are within 20 % on two cores of an EPYC; the arrays exceed its caches.
SIDE, ELEMENTS = 1024, 2**24
#: Instructions that `exp` counts as (`ir.primitives`).
EXP_INSTRUCTIONS = 8
_DTYPES = ("float32", "bfloat16", "float16")
_RUNS, _SECONDS = 5, 0.05
#: Turns in which memory is touched for the first time and again; the first is not counted.
_TURNS = 12


def measured_roofline(store: Store, table: Roofline) -> Roofline:
    """The roofline of this process's device.

    Arguments:
        store: keeps the rates.
        table: the roofline of the target's table: its tiles, its seconds of comparisons and of
            copies, and its rates for those that the clock does not give twice alike.
    """
    peaks = table.matmul_flops_per_second
    return Roofline(
        {x: _rate(store, f"product {x}", 2 * SIDE**3, _product(x), peaks[x]) for x in _DTYPES},
        _rate(
            store,
            "elementwise",
            EXP_INSTRUCTIONS * ELEMENTS,
            _elementwise,
            table.vector_flops_per_second,
        ),
        _rate(store, "bandwidth", 12 * ELEMENTS, _sum, table.bandwidth_bytes_per_second),
        table.tile,
        compare_seconds=table.compare_seconds,
        relay_seconds=table.relay_seconds,
        link_bytes_per_second=table.link_bytes_per_second,
    )


def touch_seconds_per_byte(store: Store) -> float:
    """What memory that the operating system has just given takes longer to be written.

    XLA:CPU asks for the memory of a step's temporaries anew in every step, and the system fills
    each page with zeros when it is first touched. Other devices have a pool, and pay nothing.
    """
    if jax.default_backend() != "cpu":
        return 0.0
    known = store.get("first touch")
    if known is not None:
        return known
    fresh, again = in_turns([_adding_to_fresh_memory(), _adding_in_place()], _TURNS)
    pairs = zip(fresh.runs, again.runs, strict=True)
    found = max(0.0, statistics.median(a - b for a, b in pairs)) / (4 * ELEMENTS)
    if found:
        store.put("first touch", found)
    return found


def _rate(
    store: Store, name: str, amount: int, measure: Callable[[], Timing], otherwise: float
) -> float:
    """An amount of work over its seconds, from the store or measured now."""
    known = store.get(name)
    if known is not None:
        return known
    timing = measure()
    if timing.spread > MOST_SPREAD:
        return otherwise
    store.put(name, amount / timing.seconds)
    return amount / timing.seconds


def _product(dtype: str) -> Callable[[], Timing]:
    def measure() -> Timing:
        x = jnp.ones((SIDE, SIDE), dtype)
        return _timed(jnp.matmul, x, x)

    return measure


def _elementwise() -> Timing:
    return _timed(lambda x: jnp.exp(x).sum(), jnp.linspace(0.0, 1.0, ELEMENTS))


def _sum() -> Timing:
    """A sum of two arrays, written over one of them: three arrays of four bytes an element."""
    run = _adding_in_place()
    run()
    return timed(run, _RUNS, _SECONDS)


def _adding_in_place() -> Callable[[], Any]:
    x, state = jnp.ones(ELEMENTS, "float32"), [jnp.ones(ELEMENTS, "float32")]
    add = jax.jit(jnp.add, donate_argnums=1).lower(x, x).compile()

    def run() -> Any:
        state[0] = add(x, state[0])
        return state[0]

    return run


def _adding_to_fresh_memory() -> Callable[[], Any]:
    x = jnp.ones(ELEMENTS, "float32")
    add = jax.jit(jnp.add).lower(x, x).compile()
    return lambda: add(x, x)


def _timed(fun: Callable[..., Any], *args: Any) -> Timing:
    compiled = jax.jit(fun).lower(*args).compile()
    jax.block_until_ready(compiled(*args))
    return timed(lambda: compiled(*args), _RUNS, _SECONDS)
