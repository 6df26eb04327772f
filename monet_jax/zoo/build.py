"""Makes a problem of the zoo from its name."""

from typing import Any

import jax.numpy as jnp

from . import (
    diffusion,
    googlenet,
    gpt2,
    llama,
    lstm,
    mlp,
    mobilenet,
    moe,
    neural_ode,
    resnet,
    transformer,
    unet,
    vgg,
    vit,
)
from .problem import BlockRemat, Problem, Scale

_BUILDERS = {
    "mlp": mlp.problem,
    "resnet50": resnet.problem,
    "googlenet": googlenet.problem,
    "unet": unet.problem,
    "vgg16": vgg.problem,
    "mobilenet_v2": mobilenet.problem,
    "vit_s16": vit.problem,
    "gpt2": gpt2.problem,
    "gpt2_scan": gpt2.scanned,
    "llama": llama.problem,
    "transformer": transformer.problem,
    "lstm": lstm.problem,
    "neural_ode": neural_ode.problem,
    "moe": moe.problem,
    "diffusion_unet": diffusion.problem,
}

MODELS: tuple[str, ...] = tuple(_BUILDERS)
#: Models with a scale at which their plain step exceeds what JAX takes of an H100.
FRONTIER = ("llama", "moe", "vit_s16", "diffusion_unet", "gpt2")


def build(
    name: str,
    *,
    scale: Scale = "full",
    batch: int | None = None,
    dtype: Any = jnp.float32,
    block_remat: BlockRemat = None,
) -> Problem:
    """The training loss of the model `name`, one of `MODELS`.

    Args:
      name: the model.
      scale: "full" is the published architecture at a batch people train with; "bench" the same
        layers on less data, a few GB at most of float32 temporaries; "tiny" a few narrow layers,
        whose steps run in seconds on a CPU; "frontier", of those in `FRONTIER`, what exceeds JAX's
        pool on an H100: Llama 3 8B, four layers of Mixtral, ViT-L/16, diffusion of 256 x 256
        pixels, twelve layers of GPT-2 XL.
      batch: the number of examples, in place of the scale's.
      dtype: the compute dtype; the parameters, the state and the loss stay float32.
      block_remat: None, or what `jax.checkpoint` around every natural block may save: "nothing",
        "dots", or "dots_no_batch" (dots without batch dimensions). It changes neither the values
        nor the parameters' structure.
    """
    if name not in _BUILDERS:
        raise ValueError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}")
    if scale == "frontier" and name not in FRONTIER:
        raise ValueError(f"{name!r} has no scale 'frontier': choose of {', '.join(FRONTIER)}")
    return _BUILDERS[name](scale, batch, dtype, block_remat)
