"""Baselines: `jax.checkpoint` placed by hand, and the costs of any program of a step."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..analyzer.step_costs import StepCosts, step_costs
from ..compiler.backend import backend_of
from ..compiler.compile import CompiledBytes, compile_bytes
from ..compiler.targets import Target
from ..ir.gradient import FlatFunction
from ..planning.step import step_to_compile
from ..seconds.attained import modelled
from ..tracing.signature import is_traced
from ..tracing.trace import Traced

#: What each baseline policy may save.
POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a program.

    Attributes:
        bytes: as compiled.
        work: FLOPs and roofline seconds.
    """

    bytes: CompiledBytes
    work: StepCosts


def round_the_loss(fun: Callable[..., Any], policy: str) -> Callable[..., Any]:
    """`fun` in one `jax.checkpoint`, under a policy of `POLICIES`; other leaves stay static."""

    @functools.wraps(fun)
    def rematerialized(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [n for n, leaf in enumerate(leaves) if is_traced(leaf)]

        def on_arrays(arrays: Sequence[Any]) -> Any:
            filled = dict(enumerate(leaves)) | dict(zip(places, arrays, strict=True))
            args, kwargs = jax.tree.unflatten(tree, filled.values())
            return fun(*args, **kwargs)

        return jax.checkpoint(on_arrays, policy=POLICIES[policy])([leaves[n] for n in places])

    return rematerialized


def work_of_step(traced: Traced, function: FlatFunction, target: Target) -> StepCosts:
    """FLOPs and roofline seconds of the value and gradient, by one counter for all programs."""
    step = step_to_compile(traced, function)
    return step_costs(*step, modelled(target), backend_of(target.name))


def costs_of(traced: Traced, target: Target) -> Costs:
    """The costs of a traced function as it stands."""
    figures = compile_bytes(*step_to_compile(traced, traced.flat), target=target)
    return Costs(figures, work_of_step(traced, traced.flat, target))
