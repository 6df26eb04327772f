"""Does what an operator spares arrive in the compiled program, with ties and without?

    python docs/measurements/ties.py gpu:h100    # adds to ties-h100.json; minutes

For every operator that there is, a small net on which it applies, and two plans that run nothing
again: one by other operators, which saves what the backward pass reads, and one by this operator as
well, which saves codes where it can. Temporaries of the first less those of the second are what the
operator spares: as predicted, as compiled, and as compiled where nothing that a stage hands on
waits for the stage's codes. For operators that write no codes the first is as compiled, not as
predicted: they replace what the model may not know well.
"""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from codes import compiled_untied, running_once
from keeping import keep, kept_rows

from monet_jax import operators
from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.compiler.targets import Target, compiler_version, resolve_target
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.tracing.trace import trace_for
from planners import Graph, Region
from planners.plan import Plan
from planners.regions.simple_plans import certified

HERE = Path(__file__).parent
#: How many times as many examples as elsewhere: a TPU keeps up to 128 MiB of a net on the chip.
TIMES = {"tpu": 8}


@dataclasses.dataclass(frozen=True)
class Net:
    """A loss of layers that are alike.

    Attributes:
        layer: `(x, *weights)` -> the next x.
        x: the shape of what goes in.
        weights: the shapes of a layer's weights.
        beside: operators that both plans have.
        layers: how many there are. Codes of products' operands spare half as much on a TPU, which
            keeps those in bfloat16, and encoding takes a few arrays in float32 for a moment.
        plan: that runs nothing again, of a graph.
    """

    layer: Callable[..., jax.Array]
    x: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    beside: tuple[str, ...] = ()
    layers: int = 12
    plan: Callable[[Graph], Plan] = running_once

    def args(self, times: int) -> tuple[Any, ...]:
        """Of the loss, abstract, with so many times as many examples."""
        spec = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
        examples, *others = self.x
        return [tuple(map(spec, self.weights))] * self.layers, spec((times * examples, *others))

    def loss(self, params: Any, x: jax.Array) -> jax.Array:
        """The mean square of what the last layer returns."""
        for weights in params:
            x = self.layer(x, *weights)
        return jnp.mean(jnp.square(x))


def reading_results(graph: Graph) -> Plan:
    """The plan that runs nothing again, each backward op in its last way, without codes."""
    regions = []
    for s, stage in enumerate(graph.stages):
        read = {i for op in stage.backward for i in (op, *op.alternatives)[-1].inputs}
        written = [graph.values[i] for op in stage.forward for i in op.outputs if i in read]
        regions.append(Region(s, s, tuple(x.name for x in written if x.savable)))
    return certified(graph, tuple(regions), planner="reading results", bound_seconds=0.0)


def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution that keeps the size, channels last."""
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def normalized(x: jax.Array, kernel: jax.Array, scale: jax.Array) -> jax.Array:
    """Convolution, normalization over the batch and relu, beside what went in."""
    y = convolved(x, kernel)
    over = (0, 1, 2)
    centred = y - y.mean(over)
    return x + jax.nn.relu(centred * jax.lax.rsqrt(jnp.square(centred).mean(over) + 1e-5) * scale)


def pooled(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolution, and the maxima of overlapping windows, beside what went in."""
    window, steps = (1, 3, 3, 1), (1, 1, 1, 1)
    y = convolved(x, kernel)
    return x + jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, window, steps, "SAME")


def residual(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A product whose relu is added to what went in."""
    return x + jax.nn.relu(x @ kernel)


def feed_forward(x: jax.Array, wide: jax.Array, narrow: jax.Array) -> jax.Array:
    """The half of a transformer's block that has a GELU."""
    return x + jax.nn.gelu(x @ wide) @ narrow


def attended(x: jax.Array, projection: jax.Array) -> jax.Array:
    """Attention of one head, beside what went in."""
    query, key, value = jnp.split(x @ projection, 3, axis=-1)
    scores = jnp.einsum("bqd,bkd->bqk", query, key) * query.shape[-1] ** -0.5
    return x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), value)


class Vocabulary(Net):
    """Layers, and the loss of a language model on what they return."""

    def loss(self, params: Any, x: jax.Array) -> jax.Array:
        """The mean of the negative log-likelihood of token 0, after the layers but one."""
        *layers, (embedding,) = params
        for weights in layers:
            x = self.layer(x, *weights)
        return -jnp.mean(jax.nn.log_softmax(x @ embedding)[:, 0])

    def args(self, times: int) -> tuple[Any, ...]:
        """Of the loss; the last of the weights are those of the head."""
        params, x = super().args(times)
        width = self.x[-1]
        return [*params[:3], (jax.ShapeDtypeStruct((width, 32 * width), jnp.float32),)], x


IMAGES, ROWS = (16, 32, 32, 64), (4096, 256)
CHAIN = Net(
    lambda x, kernel: jax.nn.relu(convolved(x, kernel)), IMAGES, ((3, 3, 64, 64),), ("mask",), 24
)
NORMALIZED = Net(normalized, IMAGES, ((3, 3, 64, 64), (64,)), ("mask",))
PRODUCTS = Net(lambda x, kernel: jax.nn.relu(x @ kernel), ROWS, ((256, 256),), ("mask",), 24)
SLOPES = Net(feed_forward, (4096, 128), ((128, 512), (512, 128)), ("int8",))
#: The net for each operator. One that has none is an error.
NETS = (
    {
        "mask": Net(residual, ROWS, ((256, 256),)),
        "pool": Net(pooled, IMAGES, ((1, 1, 64, 64),)),
        "softmax": Net(attended, (8, 256, 64), ((64, 192),)),
        "narrow": Net(lambda x, kernel: jnp.sort(x @ kernel), ROWS, ((256, 256),), layers=24),
        "result": Net(
            lambda x, kernel: jax.nn.elu(x @ kernel),
            ROWS,
            ((256, 256),),
            layers=24,
            plan=reading_results,
        ),
        "head": Vocabulary(residual, (8192, 256), ((256, 256),), ("mask",)),
    }
    | dict.fromkeys(("bf16", "bf16-random", "fp8", "int8", "int4", "int2"), NORMALIZED)
    | dict.fromkeys(("pool2", "softpool2", "pool8+int2", "pixel2"), CHAIN)
    | dict.fromkeys(("rows0.3", "blocks0.25"), PRODUCTS)
    | dict.fromkeys(("slope8", "slope4", "slope2"), SLOPES)
)
#: Operators that write no codes, so that nothing waits for any.
UNTIED = ("head", "result", "softmax")


@functools.lru_cache
def without(target: Target, net: Net) -> tuple[int, int]:
    """Temporaries by the other operators alone: as predicted, as compiled."""
    predicted, compiled, _ = temporaries(target, net, net.beside, barriers=True)
    return predicted, compiled


def temporaries(
    target: Target, net: Net, chosen: tuple[str, ...], barriers: bool
) -> tuple[int, int, int | None]:
    """Those of the plan that runs nothing again: predicted, compiled, and compiled untied."""
    args = net.args(TIMES.get(target.platform, 1))
    traced = trace_for(target, net.loss, args, operators=chosen)
    compiled_plans = compiled_plans_of(traced, target, NO_PINS)
    plan = net.plan(compiled_plans.graph)
    compiled_plan = compiled_plans.of(plan)
    assert compiled_plan.figures is not None
    untied = None if barriers else compiled_untied(compiled_plans, plan).temp_bytes
    return compiled_plan.predicted_temp_bytes, compiled_plan.figures.temp_bytes, untied


def row(target: Target, name: str) -> dict[str, Any]:
    """One operator: MiB spared."""
    net = NETS[name]
    exact = without(target, net)
    predicted, with_barrier, untied = temporaries(
        target, net, (*net.beside, name), barriers=name in UNTIED
    )
    # What runs otherwise as a whole is compared with what it replaces, which was compiled.
    is_used = (predicted, with_barrier) != exact
    spared = is_used and exact[name in UNTIED] - predicted

    def arrives(compiled: int | None) -> float | None:
        # Nothing is spared where an operator does not apply: pooled maxima on a TPU, say.
        return round((exact[1] - compiled) / spared, 3) if spared and compiled else None

    return {
        "operator": name,
        "beside": list(net.beside),
        "temporaries": round(exact[1] / 2**20, 1),
        "spared": round(spared / 2**20, 1),
        "with_ties": arrives(with_barrier),
        "without_ties": arrives(untied),
    }


def measure(target: Target, names: list[str]) -> None:
    """A row for each operator, kept beside those that are known."""
    path = HERE / f"ties-{target.name.split(':')[-1]}.json"
    rows = kept_rows(path)
    versions = {"jax": jax.__version__, "compiler": compiler_version(target)}
    for name in names:
        new = row(target, name)
        print(new, file=sys.stderr, flush=True)
        rows = [x for x in rows if x["operator"] != name] + [new]
        keep(path, f"ties.py {target.name}", rows, **versions)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    # Attention in tiles spares something only where tiles run again.
    known = [x.name for x in operators.registry._REGISTRY.values() if not x.by_name]
    parser.add_argument("--operators", nargs="+", default=known)
    asked = parser.parse_args()
    if missing := [name for name in known if name not in NETS]:
        sys.exit(f"No net for the operators {missing}: add them to NETS.")
    measure(resolve_target(asked.target), asked.operators)
