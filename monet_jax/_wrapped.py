"""A wrapped function that is planned when it is differentiated.

Where a gradient is taken when the function is called, the function is planned and runs as planned.
Under `jax.jit` it is not known whether a gradient will be taken: the call is staged as one equation
(`planned_p` of `ir/compat`), which runs the function as it is until it is differentiated itself.
Elsewhere the function is called.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ._sources import Source
from .ir import compat
from .ir.program import mutable_references
from .planning.failures import STATEMENTS, report, warn
from .planning.mistakes import OWN_GRADIENT, missing_gradient, returns_own_gradient
from .plans.multihost import FirstProcessFailed
from .plans.record import PlanMismatch
from .tracing import modules, nesting
from .tracing.marked import Marked, Untraceable
from .tracing.modules import Given
from .tracing.signature import Call, Options, abstract_leaf, is_traced, make_options, take_apart
from .tracing.trace import hidden_axes
from .tracing.traced import Traced

#: Errors of planning that a call raises.
_PASSED = (*STATEMENTS, FirstProcessFailed, PlanMismatch)


class Rematerialized:
    """A function that runs as planned; made by `remat` and `Plan.apply`."""

    def __init__(self, fun: Callable[..., Any], options: Options, source: Source):
        self._fun, self._options, self._source = fun, options, source

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if runs_as_it_is() or not self._source.plans_here:
            return self._fun(*args, **kwargs)
        given = self._options.given
        of_flax = modules.planned_for(self._fun, self._source, given, args, kwargs)
        if of_flax is not None:
            return of_flax(*args, **kwargs)
        return run_planned(self._source, self._fun, take_apart(self._options, args, kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance is closed over, so that `argnums` counts the arguments."""
        if instance is None:
            return self
        bound = self._fun.__get__(instance, owner)
        return rematerialized(bound, self._source, self._options.given)

    def __set_name__(self, owner: type, name: str) -> None:
        of_flax = modules.planned_method(self, self._source, self._options.given, owner)
        if of_flax is not None:
            setattr(owner, name, of_flax)

    @property
    def source(self) -> Source:
        """Where its plans come from."""
        return self._source

    def __reduce__(self):
        # A decorated function stands where its module's name leads; then the name is enough.
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", "") or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        parts = self._fun, self._options, self._source
        return name if found is self and name else (_wrapped, parts)

    def planned_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Marked:
        """A call with some arguments, as it is planned."""
        return Marked.of(self._fun, take_apart(self._options, args, kwargs))

    def __repr__(self) -> str:
        name = getattr(self, "__qualname__", self._fun)
        return f"<rematerialized {name!s}, {self._source.description}>"


def rematerialized(fun: Callable[..., Any], source: Source, given: Given) -> Any:
    """`fun`, planned by a source; Flax modules, and functions of them, are handed to `flax`.

    Raises:
        TypeError, ValueError: there is no function, or the options do not fit its arguments.
    """
    of_flax = modules.planned(fun, source, given)
    return _wrapped(fun, make_options(fun, *given), source) if of_flax is None else of_flax


def _wrapped(fun: Callable[..., Any], options: Options, source: Source) -> Rematerialized:
    made = Rematerialized(fun, options, source)
    functools.update_wrapper(made, fun, updated=())
    return made


def runs_as_it_is() -> bool:
    """Whether a planned function runs as it is where it is called.

    It does where no gradient can be taken, and inside another planned function, whose plan covers
    it.
    """
    return nesting.is_inside() or compat.no_gradient_is_taken()


def run_planned(source: Source, fun: Callable[..., Any], call: Call) -> Any:
    """The result of a call, computed as planned if the call is differentiated.

    Raises:
        ValueError, TargetUnavailable, MemoryError: the arguments, budget or target do not do.
        Exception: whatever the function itself raises.
    """
    marked = Marked.of(fun, call)
    if not source.plans_here:
        return marked.run()
    try:
        traced = source.traced(marked)
        outputs = _outputs(source, traced, marked)
    except _PASSED:
        raise
    except Untraceable as error:
        found = marked.run()
        warn(
            f"No plan was made for `{marked.name}`: it cannot be traced by itself ({error}). It "
            "runs as it is."
        )
        return found
    except Exception as error:
        report(marked.name, error)
        return marked.run()
    return marked.run() if outputs is None else traced.recorded.rebuild(outputs)


def _outputs(source: Source, traced: Traced, marked: Marked) -> Sequence[Any] | None:
    """Flat outputs of a call; None where the function must be called as it is."""
    operands = (*marked.call.leaves, *traced.recorded.closed_over)
    if any(map(compat.carries_tangent, operands)):
        return source.outputs(traced, marked)
    if not compat.is_staged() or hidden_axes(traced, marked.call):
        return None
    if mutable_references(traced.program):
        return None
    if returns_own_gradient(traced):
        mistake = missing_gradient(traced) or OWN_GRADIENT
        warn(f"Nothing is planned for `{marked.name}`: {mistake}.")
    return _until_differentiated(source, traced, marked)


def _until_differentiated(source: Source, traced: Traced, marked: Marked) -> list[Any]:
    """Flat outputs of the function as it is; it is planned once they are differentiated."""
    recorded, leaves = traced.recorded, marked.call.leaves
    jaxpr, count = recorded.jaxpr, len(recorded.closed_over)
    abstract = traced.closing_over([*map(abstract_leaf, recorded.closed_over)])
    later = dataclasses.replace(marked, fun=None, call=_abstract(marked.call))

    def differentiated(*operands: Any) -> Sequence[Any]:
        if nesting.is_inside():
            return compat.as_function(jaxpr)(*operands)
        bound = abstract.closing_over(operands[:count])
        call = dataclasses.replace(later.call, leaves=operands[count:])
        now = dataclasses.replace(later, call=call, started=time.perf_counter())
        try:
            outputs = source.outputs(bound, now)
        except _PASSED:
            raise
        except Exception as error:
            report(later.name, error)
            outputs = None
        return bound.flat(call.leaves) if outputs is None else outputs

    operands = (*recorded.closed_over, *leaves)
    return compat.until_differentiated(jaxpr, differentiated, operands)


def _abstract(call: Call) -> Call:
    """A call without its arrays: they must not outlive their trace."""

    def shape(leaf: Any) -> Any:
        return abstract_leaf(leaf) if is_traced(leaf) else leaf

    leaves = tuple(map(abstract_leaf, call.leaves))
    return dataclasses.replace(call, leaves=leaves, params=jax.tree.map(shape, call.params))
