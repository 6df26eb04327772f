"""The whole training step of Llama 3 8B over eight H100s, of which none is attached.

    python docs/measurements/llama_8b.py --attention cudnn --budgets 75GiB,50GiB
    python docs/measurements/llama_8b.py --attention cudnn --states 40GiB,30GiB,20GiB
    python docs/measurements/llama_8b.py --attention cudnn --fit 75GiB
    python docs/measurements/llama_8b.py --attention xla --budgets 40GiB,30GiB --tiles

4096 tokens, bfloat16, float32 parameters and AdamW, fully sharded, the state donated. It plans the
step at each budget, for `--states` with AdamW's state allowed on the host, or finds the largest
batch that fits one, beside `jax.checkpoint` of each layer (nothing saved, dots). Bytes are those of
one device, as compiled. cuDNN's attention needs the extra `aot-cudnn`. With `--tiles`, attention by
XLA may run in tiles. Rows are added to `llama_8b-h100.json`.
"""

import enum
import json
import sys
import time
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import jax
import optax
import typer
from fsdp import sharded
from keeping import keep

import monet_jax
from monet_jax import operators
from monet_jax.zoo import llama
from monet_jax.zoo.problem import BlockRemat, make_problem, text

FILE = Path(__file__).parent / "llama_8b-h100.json"
TARGET, DEVICES, TOKENS = "gpu:h100", 8, 4096
#: The operators that are used by default.
EXACT = [x.name for x in operators.selected("exact")]
ADAMW = optax.adamw(1e-4, weight_decay=0.1)


class Attention(enum.StrEnum):
    """Who computes attention: a kernel of cuDNN's, or XLA by products and a softmax."""

    CUDNN = "cudnn"
    XLA = "xla"


@cache
def mesh() -> jax.sharding.Mesh:
    """CPUs: JAX lowers the kernel for devices that exist only, and the compiler replaces them."""
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


class FlashBlock(llama.Block):
    """A layer whose attention is one kernel of cuDNN's."""

    def _attention(self, x: jax.Array, dense: Any) -> jax.Array:
        def split(name: str, heads: int) -> jax.Array:
            return dense(width // self.heads * heads, name=name)(x).reshape(*ahead, heads, -1)

        *ahead, width = x.shape
        query = llama.rotated(split("query", self.heads))
        key = llama.rotated(split("key", self.groups))
        kernel = partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn")
        each = jax.P("data")
        attend = jax.shard_map(kernel, mesh=mesh(), in_specs=(each,) * 3, out_specs=each)
        return attend(query, key, split("value", self.groups)).reshape(x.shape)


class FlashLlama(llama.Llama):
    """A Llama of such layers."""

    def block(self) -> Any:
        """Makes one layer, given its name."""
        return partial(FlashBlock, self.heads, self.groups, self.hidden, self.dtype)


def step_of(
    attention: Attention, batch: int, differentiate: Any, remat: BlockRemat = None
) -> tuple[Any, tuple[Any, ...]]:
    """A training step that differentiates by `differentiate`, and its arguments."""
    make = FlashLlama if attention is Attention.CUDNN else llama.Llama
    model = make(dtype="bfloat16", block_remat=remat, **llama.LLAMA_3_8B)
    problem = make_problem("llama", model, text(batch, TOKENS, model.vocab))
    params, statistics, data, key = problem.args
    loss, params, data = sharded(problem.loss, params, data, mesh())
    moments = optax.tree_map_params(
        ADAMW, lambda _, w: w, jax.eval_shape(ADAMW.init, params), params
    )

    def step(state: Any, data: Any, key: jax.Array) -> Any:
        params, moments = state
        (value, _), gradient = differentiate(loss, has_aux=True)(params, statistics, data, key)
        updates, moments = ADAMW.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return step, ((params, moments), data, key)


def planned(
    attention: Attention, batch: int, budget: str, **options: Any
) -> tuple[Any, tuple[Any, ...]]:
    """The step under a budget, and its arguments."""
    step, args = step_of(attention, batch, monet_jax.value_and_grad)
    options |= {"budget": budget, "target": TARGET, "cache": False}
    return monet_jax.jit(step, donate_argnums=0, **options), args


def bytes_of(attention: Attention, batch: int, remat: BlockRemat) -> int:
    """The bytes of the step with `jax.checkpoint` round each layer, or of the plain one."""
    step, args = step_of(attention, batch, jax.value_and_grad, remat)
    plain = jax.jit(step, donate_argnums=0)
    return monet_jax.compiled_bytes(plain, *args, target=TARGET).total_bytes


def unplanned_row(attention: Attention, batch: int, remat: BlockRemat) -> dict[str, Any]:
    """The step without a plan."""
    return {"compiled_bytes": bytes_of(attention, batch, remat)}


def planned_row(attention: Attention, batch: int, budget: str, **options: Any) -> dict[str, Any]:
    """A plan of the step."""
    step, args = planned(attention, batch, budget, **options)
    try:
        plan = monet_jax.plan(step, *args)
    except monet_jax.InfeasibleBudget as error:
        return {"least_bytes": error.minimum_budget}
    (own,) = plan.plans.values()
    found = {"compiled_bytes": plan.compiled_bytes, "compilations": plan.compilations}
    found |= {"host_bytes": plan.layout.host_bytes} if "host" in options else {}
    return {**found, "overhead": round(own.overhead, 4)}


def fitted_row(attention: Attention, budget: str) -> dict[str, Any]:
    """The largest batch as planned, and with `jax.checkpoint` of each layer."""
    step, _ = planned(attention, DEVICES, budget)
    found = monet_jax.fit(
        step, lambda batch: planned(attention, batch, budget)[1], step=DEVICES, limit=1024
    )
    row: dict[str, Any] = {
        "batch": found.size,
        "plain_batch": found.plain.size if found.plain else 0,
        "compiled_bytes": found.planned.total_bytes,
        "next_bytes": found.planned_next.total_bytes if found.planned_next else None,
    }
    sizes = range(DEVICES, 1024, DEVICES)
    policies: tuple[BlockRemat, ...] = ("nothing", "dots")
    for remat in policies:
        over = (n for n in sizes if bytes_of(attention, n, remat) > found.budget_bytes)
        row[f"batch_with_{remat}_saved"] = next(over, 1024) - DEVICES
    return row


def main(
    attention: Annotated[Attention, typer.Option(help="Who computes it.")] = Attention.CUDNN,
    budgets: Annotated[str, typer.Option(help="Of the step, on each device.")] = "",
    states: Annotated[str, typer.Option(help="Budgets with states on the host.")] = "",
    fit: Annotated[str, typer.Option(help="A budget to find the largest batch for.")] = "",
    batch: Annotated[int, typer.Option(help="Sequences of all devices together.")] = 32,
    tiles: Annotated[bool, typer.Option(help="Let attention run in tiles.")] = False,
) -> None:
    """Measures what the command line says."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    rows = json.loads(FILE.read_text())["rows"] if FILE.exists() else []

    def add(what: dict[str, Any], row: Any) -> None:
        started = time.perf_counter()
        made = {**what, **row(), "jax": jax.__version__}
        made["minutes"] = round((time.perf_counter() - started) / 60, 2)
        print(made, file=sys.stderr, flush=True)
        rows[:] = [x for x in rows if what.items() - x.items()] + [made]
        keep(FILE, f"llama_8b.py --attention {attention} ...", rows)

    same = {"attention": str(attention), "batch": batch}
    policies: tuple[BlockRemat, ...] = (None, "nothing", "dots")
    for remat in policies if budgets else ():
        program = f"checkpoint, {remat} saved" if remat else "plain"
        add({**same, "program": program}, partial(unplanned_row, attention, batch, remat))
    options = {"operators": [*EXACT, "attention"]} if tiles else {}
    for budget in filter(None, budgets.split(",")):
        row = partial(planned_row, attention, batch, budget, **options)
        add({**same, "program": f"ours, {budget}{', in tiles' if tiles else ''}"}, row)
    for budget in filter(None, states.split(",")):
        row = partial(planned_row, attention, batch, budget, host="states")
        add({**same, "program": f"ours, {budget}, states on the host"}, row)
    if fit:
        what = {"attention": str(attention), "program": f"fit, {fit}"}
        add(what, partial(fitted_row, attention, fit))


if __name__ == "__main__":
    typer.run(main)
