"""What does pooling save of ResNet-50, and how far does it turn the gradients of kernels?

    python docs/measurements/pooled.py gpu:h100    # writes pooled.json; extras `flax`, `examples`

What kernels' gradients read is kept at half the resolution (Barley and Fröning, 2024), and nothing
runs again: all bytes of the step as compiled, and FLOPs, over plain's. Then the cosine between each
convolution's gradient and the exact one: at initialization, of photographs, on the machine at hand.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from codes import reading_codes, running_once
from keeping import keep
from sklearn.datasets import load_sample_images

from monet_jax import zoo
from monet_jax.analyzer.analyze import NO_PINS
from monet_jax.compiler.targets import Target, compiler_version, resolve_target
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.tools.baselines import costs_of, work_of_step
from monet_jax.tracing.trace import trace_for
from monet_jax.transformer.transform import transform

BATCH, SIDE = 8, 128
EXACT = ["mask", "pool"]
POOLED = [[*EXACT, name] for name in ("pool2", "pixel2")]


def planned(target: Target, operators: list[str]) -> dict[str, Any]:
    """The plan that runs nothing again, over plain's figures."""
    problem = zoo.build("resnet50", scale="full")
    traced = trace_for(target, problem.loss, problem.args, operators=operators)
    compiled_plans = compiled_plans_of(traced, target, NO_PINS)
    plan = running_once(compiled_plans.graph)
    plain = costs_of(traced, target)
    work = work_of_step(traced, transform(compiled_plans.judge.staged, plan), target)
    total = compiled_plans.fixed_bytes + compiled_plans.temp_bytes(compiled_plans.of(plan))
    return {
        "operators": operators,
        "total": round(total / plain.bytes.total_bytes, 4),
        "flops": round(work.flops / plain.work.flops, 4),
        "roofline": round(work.seconds / plain.work.seconds, 4),
    }


def photographs() -> jax.Array:
    """Crops of scikit-learn's two photographs, normalized."""
    rng, images = np.random.default_rng(0), load_sample_images().images
    crops = []
    for n in range(BATCH):
        image = images[n % len(images)]
        top, left = (rng.integers(length - 2 * SIDE) for length in image.shape[:2])
        crops.append(image[top : top + 2 * SIDE : 2, left : left + 2 * SIDE : 2])
    pixels = np.stack(crops) / 255.0
    return jnp.asarray((pixels - pixels.mean((0, 1, 2))) / pixels.std((0, 1, 2)), jnp.float32)


def cosines(operators: list[str]) -> dict[str, Any]:
    """Kernel -> the cosine between its gradient and the exact one."""
    problem = zoo.build("resnet50", scale="bench", batch=BATCH)
    params, state, (_, labels), key = problem.make_args(0)
    args = params, state, (photographs(), labels), key
    loss, _ = reading_codes(problem.loss, args, operators)
    exact = jax.jit(jax.grad(lambda params: problem.loss(params, *args[1:])[0]))(params)
    found = jax.tree.map(_cosine, jax.jit(jax.grad(loss))(*args), exact)
    named, _ = jax.tree_util.tree_flatten_with_path(found)
    kernels = {
        jax.tree_util.keystr(path, simple=True, separator="/"): round(float(x), 4)
        for path, x in named
        if path[-1].key == "kernel"
    }
    return {"operators": operators, "cosines": kernels}


def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.vdot(a, b) / (jnp.linalg.norm(a) * jnp.linalg.norm(b))


if __name__ == "__main__":
    target = resolve_target(sys.argv[1])
    rows = []
    for make, operators in [
        *((lambda x: planned(target, x), x) for x in (EXACT, *POOLED)),
        *((cosines, x) for x in POOLED),
    ]:
        rows.append(make(operators))
        print(rows[-1], file=sys.stderr, flush=True)
    versions = {"jax": jax.__version__, "compiler": compiler_version(target)}
    keep(Path(__file__).parent / "pooled.json", f"pooled.py {target.name}", rows, **versions)
