"""Which programs does a model run as, and what does each cost on a target?"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from .. import _trace, zoo
from .._backend import backend_of
from .._compile import CompiledBytes, compile_bytes
from .._gradient import FlatFunction
from .._measure import StepCosts, step_costs
from .._signature import make_options, take_apart
from .._targets import Target
from .._trace import Traced
from .._trials import roofline_of, step_to_compile
from ..operators import Context, rewriter, selected

#: What each baseline policy may save, by the zoo's names.
POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a program takes.

    Attributes:
      bytes: as compiled.
      work: FLOPs and roofline seconds.
    """

    bytes: CompiledBytes
    work: StepCosts


def baselines(model: str, scale: Any) -> Iterator[tuple[str, Callable[[], Callable[..., Any]]]]:
    """Names of the hand-made programs of a model, each with a function that makes its loss."""
    for policy in POLICIES:
        yield f"loss: {policy}", lambda policy=policy: _round_the_loss(model, scale, policy)
    for policy in POLICIES:
        yield f"blocks: {policy}", lambda policy=policy: _round_the_blocks(model, scale, policy)


def trace_loss(loss: Callable[..., Any], args: tuple[Any, ...], target: Target) -> Traced:
    """A loss, traced as `plan` traces it: differentiated by its first argument."""
    call = take_apart(make_options(loss, 0, (), ()), args, {})
    rewrite = rewriter(selected("exact"), Context(backend_of(target.name)))
    return _trace.trace(loss, call, rewrite)


def work_of_step(traced: Traced, function: FlatFunction, target: Target) -> StepCosts:
    """FLOPs and roofline seconds of the value and gradient, by one counter for all programs."""
    step = step_to_compile(traced, function)
    return step_costs(*step, roofline_of(target), backend_of(target.name))


def costs_of(traced: Traced, target: Target) -> Costs:
    """The costs of a traced loss as it stands."""
    figures = compile_bytes(*step_to_compile(traced, traced.flat), target=target)
    return Costs(figures, work_of_step(traced, traced.flat, target))


def _round_the_loss(model: str, scale: Any, policy: str) -> Callable[..., Any]:
    return jax.checkpoint(zoo.build(model, scale=scale).loss, policy=POLICIES[policy])


def _round_the_blocks(model: str, scale: Any, policy: Any) -> Callable[..., Any]:
    return zoo.build(model, scale=scale, block_remat=policy).loss
