"""Measures the rates that the attached device attains: products, traffic, pooling, the host's link.

    python docs/measurements/rates.py --out docs/measurements/rates-h100.json
    python docs/measurements/rates.py --only windows --out docs/measurements/windows-cpu.json
    python docs/measurements/rates.py --only copies --out docs/measurements/copies-cpu.json

Products of square matrices by side and dtype, against the rate that the roofline takes
(`monet_jax.seconds.attained`); the sum of two arrays, by bytes; the gradient of max pooling, by
elements of windows; the gradient of weights by one axis and by two, for which XLA:CPU copies the
cotangent; copies of pinned host memory to the device and back, by bytes, each way alone and both at
once.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keeping
from flax import linen as nn
from jax.sharding import SingleDeviceSharding

from monet_jax.compiler.targets import resolve_target
from monet_jax.seconds.attained import roofline_of
from monet_jax.seconds.clock import timed

SIDES = 1024, 2048, 4096, 8192
DTYPES = "bfloat16", "float32"
SUM_BYTES = 2**20, 2**24, 2**28, 2**30
LINK_BYTES = 2**20, 2**24, 2**26, 2**28
#: Operands of poolings, and the stride of their windows of 3 x 3.
POOLINGS = (
    ((8, 28, 28, 192), 1),
    ((32, 28, 28, 192), 1),
    ((32, 56, 56, 64), 2),
    ((32, 112, 112, 64), 2),
)
#: Rows of weights, and their columns; of 4 sequences of 512 tokens.
WEIGHTS = (1024, 1024), (2816, 1024), (1024, 2816), (768, 6144)
RUNS, SECONDS = 10, 0.3


def seconds_of(run: Callable[[], Any]) -> float:
    """The median of runs, of which the first two are not counted."""
    for _ in range(2):
        jax.block_until_ready(run())
    return timed(run, RUNS, SECONDS).seconds


def products() -> list[dict[str, Any]]:
    """Square products; several in a row, since starting one costs what a small one takes."""
    rows, roofline = [], roofline_of(resolve_target(None))
    for dtype in DTYPES:
        for side in SIDES:
            count = max(1, (8192 // side) ** 2)
            x = jax.random.normal(jax.random.key(0), (side, side)) / side**0.5  # no overflow
            run = jax.jit(functools.partial(chain, count))
            seconds = seconds_of(functools.partial(run, x.astype(dtype))) / count
            rate = 2 * side**3 / seconds
            share = rate / roofline.matmul_flops_per_second[dtype]
            row = {"what": f"product {dtype}", "side": side, "seconds": seconds}
            rows.append(row | {"flops_per_second": rate, "of_roofline": round(share, 3)})
    return rows


def chain(count: int, x: jax.Array) -> jax.Array:
    """A power of a matrix, product by product."""
    y = x
    for _ in range(count):
        y = x @ y
    return y


def sums() -> list[dict[str, Any]]:
    """`x + y`: three arrays of that many bytes are read or written."""
    rows, roofline = [], roofline_of(resolve_target(None))
    for nbytes in SUM_BYTES:
        x, y = (jnp.full(nbytes // 4, value, jnp.float32) for value in (1.0, 2.0))
        seconds = seconds_of(functools.partial(jax.jit(jnp.add), x, y))
        rate = 3 * nbytes / seconds
        share = rate / roofline.bandwidth_bytes_per_second
        row = {"what": "sum", "bytes": nbytes, "seconds": seconds, "bytes_per_second": rate}
        rows.append(row | {"of_roofline": round(share, 3)})
    return rows


def windows() -> list[dict[str, Any]]:
    """Gradients of max pooling, as JAX takes them."""
    rows = []
    for shape, stride in POOLINGS:
        pool = functools.partial(
            nn.max_pool, window_shape=(3, 3), strides=(stride, stride), padding="SAME"
        )
        x = jax.random.normal(jax.random.key(0), shape)
        y = pool(x)
        run = jax.jit(lambda x, y, pool=pool: jax.vjp(pool, x)[1](y))
        seconds = seconds_of(functools.partial(run, x, y))
        row = {"what": "gradient of max pooling", "shape": shape, "stride": stride}
        rows.append(row | {"seconds": seconds, "seconds_per_element": seconds / (9 * y.size)})
    return rows


def copies() -> list[dict[str, Any]]:
    """Gradients of weights by batch and sequence, and by both as one axis."""
    rows = []
    for side, columns in WEIGHTS:
        x, y = jnp.ones((4, 512, side)), jnp.ones((4, 512, columns))
        shapes = {"one axis": (x.reshape(2048, -1), y.reshape(2048, -1)), "two axes": (x, y)}
        seconds = {}
        for name, (inputs, cotangent) in shapes.items():
            weights = jnp.ones((side, columns))
            run = jax.jit(lambda x, w, y: jax.vjp(jnp.matmul, x, w)[1](y)[1])
            seconds[name] = seconds_of(functools.partial(run, inputs, weights, cotangent))
        more = (seconds["two axes"] - seconds["one axis"]) / y.nbytes
        row = {"what": "gradient of weights", "shape": [4, 512, side, columns], **seconds}
        rows.append(row | {"seconds_per_byte": more})
    return rows


def links() -> list[dict[str, Any]]:
    """Copies between pinned host memory and the device."""
    device, rows = jax.devices()[0], []
    here = SingleDeviceSharding(device, memory_kind="device")
    there = SingleDeviceSharding(device, memory_kind="pinned_host")
    for nbytes in LINK_BYTES:
        x = jnp.ones(nbytes // 4, jnp.float32)
        on_device, on_host = jax.device_put(x, here), jax.device_put(x, there)
        ways = {
            "device to host": lambda x=on_device: jax.device_put(x, there),
            "host to device": lambda x=on_host: jax.device_put(x, here),
            "both at once": lambda x=on_device, y=on_host: (
                jax.device_put(x, there),
                jax.device_put(y, here),
            ),
        }
        for way, run in ways.items():
            seconds = seconds_of(run)
            row = {"what": way, "bytes": nbytes, "seconds": seconds}
            rows.append(row | {"bytes_per_second": nbytes / seconds})
    return rows


def main() -> None:
    """Measures all of it, and keeps it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="of products, sums, windows, copies and links")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    every = products, sums, windows, copies, links
    for measure in (x for x in every if not given.only or x.__name__ in given.only):
        made = measure()
        rows += made
        print(*made, sep="\n", flush=True)
        versions = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
        keeping.keep(given.out, "rates.py", rows, **versions)


if __name__ == "__main__":
    main()
