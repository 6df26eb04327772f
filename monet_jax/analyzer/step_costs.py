"""Counts the FLOPs and the seconds of any traced training step, planned or not.

The bodies of `jax.checkpoint` regions are inlined and dead code is removed, so that a recomputation
counts where it runs and a residual that nothing reads does not.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..compiler.backend import Backend
from ..ir.costs import flops_of
from ..ir.program import flatten
from ..seconds.prices import Prices
from .fusion import Fusions, group_of


@dataclasses.dataclass(frozen=True, slots=True)
class StepCosts:
    """The cost of one step.

    Attributes:
        flops: of products and convolutions, loops times their trips.
        seconds: of all ops.
    """

    flops: int
    seconds: float


def step_costs(
    step: Callable[..., Any], args: Sequence[Any], prices: Prices, backend: Backend
) -> StepCosts:
    """The costs of `step(*args)`, traced on abstract values."""
    program = flatten(jax.make_jaxpr(step)(*args), inline_checkpoints=True)
    fusions = Fusions(program, backend)
    seconds = sum(prices.of(group_of(fusions, fusion)).seconds for fusion in fusions.all())
    return StepCosts(flops_of(program.equations), seconds)
