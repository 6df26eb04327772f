"""Counts the FLOPs and roofline seconds of any traced training step, planned or not.

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
from ..ir.costs import Roofline, flops_of
from ..ir.program import Program, flatten
from .fusion import Fusion, Fusions


@dataclasses.dataclass(frozen=True, slots=True)
class StepCosts:
    """The cost of one step.

    Attributes:
        flops: of products and convolutions, loops times their trips.
        seconds: of all ops, by a roofline.
    """

    flops: int
    seconds: float


def step_costs(
    step: Callable[..., Any], args: Sequence[Any], roofline: Roofline, backend: Backend
) -> StepCosts:
    """The costs of `step(*args)`, traced on abstract values."""
    return program_costs(jax.make_jaxpr(step)(*args), roofline, backend)


def program_costs(jaxpr: Any, roofline: Roofline, backend: Backend) -> StepCosts:
    """The costs of a closed jaxpr."""
    program = flatten(jaxpr, inline_checkpoints=True)
    return StepCosts(flops_of(program.equations), _seconds(program, roofline, backend))


def _seconds(program: Program, roofline: Roofline, backend: Backend) -> float:
    return sum(
        _op_seconds(fusion, program, roofline, backend)
        for fusion in Fusions(program, backend).all()
    )


def _op_seconds(fusion: Fusion, program: Program, roofline: Roofline, backend: Backend) -> float:
    eqn = fusion.equation.eqn
    if fusion.equation.primitive != "scan":
        return fusion.seconds(program, roofline)
    (body,) = compat.subjaxprs(eqn)
    trip = flatten(body, inline_checkpoints=True)
    return eqn.params["length"] * _seconds(trip, roofline, backend)
