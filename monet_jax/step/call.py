"""A call of a step on abstract values, which can be traced with any plans for its marks."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.core

from ..compiler.compile import CompiledBytes, compile_bytes
from ..compiler.export import without_outer_tracers
from ..compiler.options import Options
from ..compiler.targets import Target
from ..ir import compat
from ..tracing.signature import abstract_leaf
from .context import StepTrace, layout_of, run_step
from .updates.placement import on_device, placed_specs

#: How the leaves of a call lie on several devices, in order; None of a leaf that is on one.
type Shardings = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class StepCall:
    """A call of a step.

    Attributes:
        fun: the step as it was written.
        jit_options: keyword arguments of `jax.jit`.
        args, kwargs: the arguments: shapes, and what is static.
    """

    fun: Callable[..., Any]
    jit_options: Mapping[str, Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @staticmethod
    def of(
        fun: Callable[..., Any],
        jit_options: Mapping[str, Any],
        given: tuple[Sequence[Any], Mapping[str, Any]],
        shardings: Shardings | None,
    ) -> "StepCall":
        """The call that is being traced with some arguments: its tracers become shapes."""
        places = iter(shardings or ())

        def abstract(leaf: Any) -> Any:
            sharding = next(places, None)
            if not isinstance(leaf, jax.core.Tracer):
                return leaf
            spec = abstract_leaf(leaf)
            return spec if sharding is None else spec.update(sharding=sharding)

        def spec(argument: Any) -> Any:
            leaves, structure = jax.tree.flatten(argument)
            specs = [*map(abstract, leaves)]
            if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return argument  # what is static stays the same object
            return jax.tree.unflatten(structure, specs)

        args, kwargs = given
        found = tuple(map(spec, args))
        return StepCall(fun, jit_options, found, {k: spec(kwargs[k]) for k in sorted(kwargs)})

    @property
    def devices(self) -> int:
        """Over how many devices the step is sharded, by its arguments or by `in_shardings`."""
        places = jax.tree.leaves((self.args, self.kwargs, self.jit_options.get("in_shardings")))
        shardings = (x if _is_sharding(x) else getattr(x, "sharding", None) for x in places)
        return max((x.num_devices for x in shardings if x is not None), default=1)

    @property
    def device_shapes(self) -> list[tuple[int, ...]]:
        """The shape of one device's part of each array among the arguments."""
        leaves = jax.tree.leaves((self.args, self.kwargs))
        specs = (x for x in leaves if isinstance(x, jax.ShapeDtypeStruct))
        return [x.sharding.shard_shape(x.shape) if x.sharding else x.shape for x in specs]

    def jitted(self, step: StepTrace | None) -> Any:
        """The step under `jax.jit`, traced as `step` says; as JAX's own where that is None."""

        @functools.wraps(self.fun)
        def traced(*args: Any, **kwargs: Any) -> Any:
            return run_step(step, self.fun, args, kwargs)

        return jax.jit(traced, **self.jit_options)

    def traced(self, step: StepTrace | None) -> jax.stages.Traced:
        """The step, traced."""
        args, kwargs = self._placed(step)
        return self.jitted(step).trace(*args, **kwargs)

    def compiled(self, step: StepTrace | None, target: Target, options: Options) -> CompiledBytes:
        """The bytes of the step as compiled, XLA's own rematerialization off."""
        jitted = self.jitted(step)
        given = self._placed(step)
        traced = jitted.trace(*given[0], **given[1])
        jitted, args, kwargs = without_outer_tracers(jitted, *given, traced)
        with warnings.catch_warnings():  # of donations: the user's own compilation has it, too
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            return compile_bytes(jitted, args, kwargs=kwargs, target=target, options=options)

    def _placed(self, step: StepTrace | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments where a trace has them."""
        return placed_specs((self.args, self.kwargs), layout_of(step))


def shardings_of(arguments: Any) -> Shardings | None:
    """How the leaves of some arguments lie on several devices; None where none does."""
    found = tuple(map(_sharding_of, jax.tree.leaves(arguments)))
    return None if all(x is None for x in found) else found


def _is_sharding(x: Any) -> bool:
    return isinstance(x, jax.sharding.Sharding)


def _sharding_of(leaf: Any) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        return None
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or sharding.num_devices == 1:
        return None
    # A plan says which leaves live on the host, wherever they lie when it is made.
    return on_device(sharding) if compat.is_on_host(leaf) else sharding
