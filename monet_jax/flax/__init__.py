"""Budgets for Flax modules: their classes, methods and instances, and functions that take them.

    @monet_jax.flax.remat(budget="2GiB")
    class Block(nnx.Module): ...  # or nn.Module

    @monet_jax.flax.remat(budget="12GiB")
    def loss(model, batch): ...  # of an NNX model, for nnx.value_and_grad

    @monet_jax.flax.jit(budget="24GiB", donate_argnums=(0, 1))
    def step(model, optimizer, batch): ...  # what nnx.jit compiles, planned

A loss of a Linen model is a function of arrays, `loss(params, batch)`, for `monet_jax.remat`. Flax
is imported when these functions are called, and not before.
"""

from . import support as support  # registers how modules are planned
from .modules import apply as apply
from .modules import plan as plan
from .modules import remat as remat
from .step import jit as jit
