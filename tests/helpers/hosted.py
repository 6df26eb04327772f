"""Steps with some of their state on the host, laid out without a compiler or a search."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
from steps import Step

from monet_jax.ir.program import flatten
from monet_jax.step.updates import groups, leaves
from monet_jax.step.updates.layout import HostLeaf, UpdateLayout
from monet_jax.step.updates.placement import placed_arguments

HOST = "pinned_host"


def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have arrays of a KiB and more count as large, which those of the tests are."""
    monkeypatch.setattr(groups, "SMALL", 1024)
    monkeypatch.setattr(leaves, "SMALL", 1024)


def movable(step: Callable[..., Any], *arguments: Any, donated: Any = 0) -> tuple[HostLeaf, ...]:
    """The leaves of a step's state that can live on the host."""
    traced = jax.jit(step, donate_argnums=donated).trace(*arguments)
    shapes = [aval.shape for aval in traced.jaxpr.in_avals]
    return leaves.movable_leaves(flatten(traced.jaxpr), traced, shapes)


def layout_of(case: Step, count: int | None = None) -> UpdateLayout:
    """The layout of a step in which its first movable leaves, or all of them, are on the host."""
    return UpdateLayout(True, movable(case.make(jax), case.state, case.batch)[:count])


def placed(case: Step, layout: UpdateLayout) -> Any:
    """A fresh state of a step, where a layout has it."""
    state = case.fresh()
    abstract = jax.eval_shape(lambda: state)
    donated = [True] * len(jax.tree.leaves(state))
    return placed_arguments(((abstract,), {}), (state,), donated, layout)


def kinds(tree: Any) -> list[str | None]:
    """The memory kind of each leaf."""
    return [leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)]
