"""Steps under `shard_map`, planned in the bytes of `jax.checkpoint` round each block.

    python docs/measurements/mapped.py gpu:h100

Two stacks of blocks on eight devices, in bfloat16 with float32 parameters: tensor parallel, where
each block adds up what the devices make of their parts of its weights, and fully sharded, where it
gathers them. Seconds are by the counter that compares programs, collectives included. The rows are
kept in `mapped-TARGET.json`.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from fsdp import mesh_of
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from keeping import keep

import monet_jax
from monet_jax.analyzer.step_costs import program_costs
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.seconds.attained import modelled

HERE = Path(__file__).parent
DEVICES, DEPTH, WIDTH, BATCH = 8, 12, 4096, 2048
MESH, AXIS = mesh_of(DEVICES), "data"
WEIGHTS = P(None, AXIS), P(AXIS, None)
POLICIES = {
    "nothing": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def in_parts(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """A block whose devices have all examples, and parts of its weights."""
    hidden = jax.nn.gelu(_normed(x) @ up.astype(x.dtype))
    return x + lax.psum(hidden @ down.astype(x.dtype), AXIS)


def gathered(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """A block whose devices have parts of the examples, and of its weights."""
    up = lax.all_gather(up.astype(x.dtype), AXIS, axis=1, tiled=True)
    down = lax.all_gather(down.astype(x.dtype), AXIS, axis=0, tiled=True)
    return x + jax.nn.gelu(_normed(x) @ up) @ down


def _normed(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


#: A block, how its examples lie, and how many there are for each device.
STACKS = {"tensor parallel": (in_parts, P()), "fully sharded": (gathered, P(AXIS))}


def step_of(stack: str, take: Callable[..., Any], block: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent; its updates are outside of the `shard_map`."""
    batch = STACKS[stack][1]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for weights in params:
            x = block(x, *weights)
        return lax.pmean(jnp.mean(x.astype(jnp.float32) ** 2), AXIS if batch == P(AXIS) else ())

    specs = [WEIGHTS] * DEPTH
    options = {"mesh": MESH, "in_specs": (specs, batch), "out_specs": (P(), specs)}

    def step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        value, gradient = jax.shard_map(take(loss), **options)(params, x)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, params, gradient), value

    return step


def arguments(stack: str) -> tuple[Any, Any]:
    """The parameters and the batch of a stack."""

    def array(shape: tuple[int, ...], dtype: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, spec))

    batch = STACKS[stack][1]
    rows = BATCH * (DEVICES if batch == P(AXIS) else 1)
    shapes = (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
    pair = tuple(array(x, jnp.float32, spec) for x, spec in zip(shapes, WEIGHTS, strict=True))
    return [pair] * DEPTH, array((rows, WIDTH), jnp.bfloat16, batch)


def rows_of(stack: str, target: str) -> list[dict[str, Any]]:
    """Rows of a stack: each policy, and ours in its bytes; plain, and ours in 40 % of its own."""
    block, args = STACKS[stack][0], arguments(stack)
    prices, backend = modelled(resolve_target(target)), backend_of(target)

    def seconds(step: Any) -> float:
        return program_costs(step.trace(*args).jaxpr, prices, backend).seconds

    donating = {"donate_argnums": 0}
    plain = jax.jit(step_of(stack, jax.value_and_grad, block), **donating)
    base = seconds(plain)
    rows = []
    for name, policy in {"plain": ..., **POLICIES}.items():
        remat = functools.partial(jax.checkpoint, policy=policy)
        rematted = jax.jit(step_of(stack, jax.value_and_grad, remat(block)), **donating)
        step = plain if policy is ... else rematted
        taken = monet_jax.compiled_bytes(step, *args, target=target)
        ours = step_of(stack, monet_jax.value_and_grad, block)
        shared = taken.total_bytes - int(0.6 * taken.temp_bytes)
        budget = shared if policy is ... else taken.total_bytes
        options = {"cache": False, **donating}
        planned = monet_jax.jit(ours, budget=budget, target=target, **options)
        row = {
            "stack": stack,
            "program": name,
            "total_mib": round(taken.total_bytes / 2**20, 1),
            "overhead": round(100 * (seconds(step) / base - 1), 1),
        }
        try:
            plan = monet_jax.plan(planned, *args)
            found = monet_jax.apply(plan, ours, **donating)
            row |= {
                "ours_mib": round(plan.compiled_bytes / 2**20, 1),
                "ours_overhead": round(100 * (seconds(found) / base - 1), 1),
                "compilations": plan.compilations,
                "planning_seconds": round(plan.planning_seconds, 1),
            }
        except monet_jax.InfeasibleBudget as error:
            row |= {"infeasible_below_mib": round(error.minimum_budget / 2**20, 1)}
        rows.append(row)
        print(row, flush=True)
    return rows


def main(target: Annotated[str, typer.Argument(help="What to compile for.")]) -> None:
    rows = [row for stack in STACKS for row in rows_of(stack, target)]
    path = HERE / f"mapped-{target.split(':')[-1]}.json"
    keep(path, f"mapped.py {target}", rows, jax=jax.__version__)


if __name__ == "__main__":
    typer.run(main)
