"""The programs of a model of the zoo beside plans: as written, and with `jax.checkpoint`."""

from collections.abc import Callable, Iterator
from typing import Any

from ... import zoo
from ...compiler.targets import Target
from ...tools.baselines import POLICIES, round_the_loss
from ...tracing.trace import Traced, trace_for


def baselines(
    model: str, scale: Any, dtype: str, batch: int | None = None
) -> Iterator[tuple[str, Callable[[], Callable[..., Any]]]]:
    """Names of the hand-made programs of a model, each with a function that makes its loss."""
    for policy in POLICIES:
        loss = zoo.build(model, scale=scale, dtype=dtype, batch=batch).loss
        yield f"loss: {policy}", lambda loss=loss, policy=policy: round_the_loss(loss, policy)
    for policy in POLICIES:
        yield (
            f"blocks: {policy}",
            lambda policy=policy: round_the_blocks(model, scale, dtype, policy, batch),
        )


def trace_loss(loss: Callable[..., Any], args: tuple[Any, ...], target: Target) -> Traced:
    """A loss, traced as `plan` traces it and differentiated by its first argument."""
    return trace_for(target, loss, args)


def round_the_blocks(
    model: str, scale: Any, dtype: str, policy: Any, batch: int | None = None
) -> Callable[..., Any]:
    """The loss of a model whose natural blocks are under `jax.checkpoint` with a policy."""
    return zoo.build(model, scale=scale, dtype=dtype, batch=batch, block_remat=policy).loss
