"""The programs of a model of the zoo beside plans: as written, and with `jax.checkpoint`."""

from collections.abc import Callable, Iterator
from typing import Any

from ...compiler.targets import Target
from ...tools.baselines import POLICIES, round_the_loss
from ...tracing.trace import trace_for
from ...tracing.traced import Traced
from ...zoo.problem import Problem


def baselines(
    build: Callable[..., Problem],
) -> Iterator[tuple[str, Callable[[], Callable[..., Any]]]]:
    """Names of the hand-made programs of a model, each with a function that makes its loss.

    Arguments:
        build: makes the model, also with `block_remat`.
    """
    for policy in POLICIES:
        loss = build().loss
        yield f"loss: {policy}", lambda loss=loss, policy=policy: round_the_loss(loss, policy)
    for policy in POLICIES:
        yield f"blocks: {policy}", lambda policy=policy: build(block_remat=policy).loss


def trace_loss(loss: Callable[..., Any], args: tuple[Any, ...], target: Target) -> Traced:
    """A loss, traced as `plan` traces it and differentiated by its first argument."""
    return trace_for(target, loss, args)
