"""Counts the FLOPs and the seconds of any traced training step, planned or not.

The bodies of `jax.checkpoint` regions are inlined and dead code is removed, so that a recomputation
counts where it runs and a residual that nothing reads does not. The ops of a `scan`'s body count
once for each trip.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..compiler.backend import Backend
from ..ir import compat
from ..ir.costs import flops_of
from ..ir.program import Program, flatten
from ..seconds.prices import Prices
from .fusion import Fusion, Fusions, group_of


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
    return program_costs(jax.make_jaxpr(step)(*args), prices, backend)


def program_costs(jaxpr: Any, prices: Prices, backend: Backend) -> StepCosts:
    """The costs of a closed jaxpr."""
    program = flatten(jaxpr, inline_checkpoints=True)
    return StepCosts(flops_of(program.equations), _seconds(program, prices, backend))


def _seconds(program: Program, prices: Prices, backend: Backend) -> float:
    fusions = Fusions(program, backend)
    return sum(op_seconds(fusions, fusion, prices, backend) for fusion in fusions.all())


def op_seconds(fusions: Fusions, fusion: Fusion, prices: Prices, backend: Backend) -> float:
    """The seconds of one op of a program; of a loop, with all its trips."""
    eqn = fusion.equation.eqn
    if fusion.equation.primitive != "scan":
        return prices.of(group_of(fusions, fusion)).seconds
    (body,) = compat.subjaxprs(eqn)
    trip = flatten(body, inline_checkpoints=True)
    return eqn.params["length"] * _seconds(trip, prices, backend)
