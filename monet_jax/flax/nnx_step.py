"""Steps of NNX modules: their state becomes arguments of a planned step, and results.

It is what `nnx.jit` does, by NNX's own split and merge. Each argument stays one argument, so that
donations and static arguments are those of the step as it was written.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from ..step.call import StepCall
from ..step.context import current_step
from ..step.jit import PlannedStep, jit
from .nnx import is_state, state_only

_TAG = "monet_jax.step"

type _Given = tuple[tuple[Any, ...], dict[str, Any]]


class NnxStep(PlannedStep):
    """A step of NNX objects, run as planned; made by `monet_jax.flax.jit`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if jax.config.jax_disable_jit or current_step() is not None:
            return self.of_objects(*args, **kwargs)
        with _as_trees(args, kwargs) as (trees, named):
            after, out = super().__call__(*trees, **named)
            _, out = nnx.from_tree((after, out), ctxtag=_TAG, is_inner=False)
            return out

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """As of a jitted function: the step as planned for these arguments, traced."""
        with _as_trees(args, kwargs) as (trees, named):
            return super().trace(*trees, **named)

    def trace_as_it_is(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The step under `jax.jit` alone, traced."""
        with _as_trees(args, kwargs) as (trees, named):
            return super().trace_as_it_is(*trees, **named)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As of a jitted function: the step as planned for these arguments, lowered."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function: shapes and types of the results; nothing is planned."""
        with _as_trees(*_copied(args, kwargs)) as (trees, named):  # shapes would replace arrays
            after, out = super().eval_shape(*trees, **named)
            return nnx.from_tree((after, out), ctxtag=_TAG, is_inner=False)[1]

    def call_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepCall:
        """The call with some arguments."""
        with _as_trees(args, kwargs) as (trees, named):
            return super().call_for(trees, named)

    @property
    def of_objects(self) -> Callable[..., Any]:
        """The step as it was written."""
        return self._fun.__wrapped__


def planned_step(fun: Callable[..., Any], options: Mapping[str, Any]) -> NnxStep:
    """A step of NNX objects, with the options of `monet_jax.jit`."""

    @functools.wraps(fun)
    def pure(*trees: Any, **named: Any) -> Any:
        # A context of its own: a step is traced more than once, and after the call.
        with nnx.update_context(_TAG):
            inner = nnx.from_tree((trees, named), ctxtag=_TAG, is_inner=True)
            out = fun(*inner[0], **inner[1])
            return nnx.to_tree((state_only(inner), out), ctxtag=_TAG)

    made: PlannedStep = jit(pure, **options)
    if "states" in made.options.host_options.kinds:
        raise ValueError(
            "`monet_jax.flax.jit` cannot keep state on the host yet: write the step in NNX's "
            "functional style, `nnx.split` before it and `nnx.merge` in it, and give "
            '`host="states"` to `monet_jax.jit`; or leave it out.'
        )
    step = NnxStep(pure, made.options, made.jit_options)
    functools.update_wrapper(step, fun, updated=())
    return step


def _copied(*arguments: Any) -> tuple[Any, ...]:
    """The arguments with copies of the NNX objects among them, which share their arrays."""
    leaves, structure = jax.tree.flatten(arguments, is_leaf=is_state)
    places = [n for n, leaf in enumerate(leaves) if is_state(leaf)]
    copies = nnx.clone([leaves[n] for n in places])
    leaves = dict(enumerate(leaves)) | dict(zip(places, copies, strict=True))
    return jax.tree.unflatten(structure, leaves.values())


@contextlib.contextmanager
def _as_trees(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[_Given]:
    """The arguments as pytrees, while NNX remembers the objects among them."""
    with nnx.update_context(_TAG):
        yield nnx.to_tree((tuple(args), dict(kwargs)), ctxtag=_TAG)
