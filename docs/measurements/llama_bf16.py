"""Are budgets kept of a Llama in bfloat16, on one H100 and split over eight?

    python docs/measurements/llama_bf16.py alone    # adds to llama_bf16.json; also: sharded

Written by hand in plain JAX: products in bfloat16, parameters, norms and the loss in float32,
queries that share keys and values, one product for all three, rotary positions, SwiGLU; layers are
unrolled. Split (FSDP), every parameter lies in equal parts along its largest axis on eight devices,
of which none is attached, and each of them reads one sequence.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from fsdp import mesh_of, sharded
from keeping import keep

import monet_jax

FILE = Path(__file__).parent / "llama_bf16.json"
TARGET, DEVICES, SHARES = "gpu:h100", 8, (0.7, 0.5)
DEPTH, WIDTH, HEADS, GROUPS, HIDDEN, VOCAB = 8, 1024, 8, 4, 2816, 32_000
BATCH, TOKENS = 8, 1024
SIZE = WIDTH // HEADS


def parameters() -> dict[str, Any]:
    """Shapes and dtypes."""

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {
        "norm0": array(WIDTH),
        "qkv": array(WIDTH, (HEADS + 2 * GROUPS) * SIZE),
        "out": array(WIDTH, WIDTH),
        "norm1": array(WIDTH),
        "gate_up": array(WIDTH, 2 * HIDDEN),
        "down": array(HIDDEN, WIDTH),
    }
    words, head = array(VOCAB, WIDTH), array(WIDTH, VOCAB)
    return {"words": words, "layers": [layer] * DEPTH, "norm": array(WIDTH), "head": head}


def product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """In the dtype of `x`."""
    return x @ weights.astype(x.dtype)


def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMSNorm, in float32."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)
    return (wide * scale).astype(x.dtype)


def rotated(x: jax.Array) -> jax.Array:
    """[batch, tokens, heads, features] turned by angles that grow with the position."""
    half = x.shape[-1] // 2
    rates = 500_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * rates
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def attention(x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
    """Causal, the weights in float32; two heads of queries share a key and a value."""
    batch, tokens, _ = x.shape
    parts = product(x, layer["qkv"]).reshape(batch, tokens, HEADS + 2 * GROUPS, SIZE)
    query, key, value = jnp.split(parts, [HEADS, HEADS + GROUPS], 2)
    query = rotated(query).reshape(batch, tokens, GROUPS, HEADS // GROUPS, SIZE)
    scores = jnp.einsum("bqgsd,bkgd->bgsqk", query, rotated(key)).astype(jnp.float32)
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores * SIZE**-0.5, -jnp.inf)).astype(x.dtype)
    return product(jnp.einsum("bgsqk,bkgd->bqgsd", weights, value).reshape(x.shape), layer["out"])


def loss(params: dict[str, Any], tokens: jax.Array, labels: jax.Array) -> jax.Array:
    """Cross-entropy of the next token."""
    x = params["words"].astype(jnp.bfloat16)[tokens]
    for layer in params["layers"]:
        x = x + attention(normalized(x, layer["norm0"]), layer)
        wide = product(normalized(x, layer["norm1"]), layer["gate_up"])
        gate, up = jnp.split(wide, 2, -1)
        x = x + product(jax.nn.silu(gate) * up, layer["down"])
    logits = product(normalized(x, params["norm"]), params["head"]).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def arguments() -> tuple[Any, ...]:
    """Of `loss`, on one device."""
    tokens = jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32)
    return parameters(), tokens, tokens


def laid_out(layout: str) -> tuple[Callable[..., jax.Array], tuple[Any, ...]]:
    """The loss and its arguments, on one device or on several."""
    params, *batch = arguments()
    if layout == "alone":
        return loss, (params, *batch)
    sharded_loss, params, batch = sharded(loss, params, batch, mesh_of(DEVICES))
    return sharded_loss, (params, *batch)


def row(layout: str, share: float) -> dict[str, Any]:
    """One plan."""
    started = time.perf_counter()
    fun, args = laid_out(layout)
    plan = monet_jax.plan(fun, *args, budget=share, target=TARGET, cache=False)
    minutes = (time.perf_counter() - started) / 60
    assert plan.compiled_bytes is not None and plan.compiled_bytes <= plan.budget_bytes
    return {
        "layout": layout,
        "share": share,
        "unplanned_bytes": plan.unplanned_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_bytes": plan.predicted_bytes,
        "compiled_bytes": plan.compiled_bytes,
        "flops": round(plan.flops / plan.base_flops, 4),
        "overhead": round(plan.overhead, 4),
        "compilations": plan.compilations,
        "minutes": round(minutes, 1),
        "compiler": plan.compiler,
        "jax": jax.__version__,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layouts", nargs="+", choices=("alone", "sharded"))
    rows = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
    for layout in parser.parse_args().layouts:
        rows = [x for x in rows if x["layout"] != layout]
        for share in SHARES:
            rows.append(row(layout, share))
            print(rows[-1], file=sys.stderr, flush=True)
            keep(FILE, f"llama_bf16.py {' '.join(sys.argv[1:])}", rows)


if __name__ == "__main__":
    main()
