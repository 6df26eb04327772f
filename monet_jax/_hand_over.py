"""Is it a Flax module that is planned, or a function that is given some? Then `flax` does it.

To JAX an NNX module is a pytree: a function that is traced with one changes a copy, statistics and
random keys included. Nothing here imports Flax: where it is not imported, there is no module.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ._signature import Call, make_options, take_apart

#: `argnums`, `static_argnums` and `static_argnames` as the user gave them.
Given = tuple[Any, Any, Any]


def planned(fun: Any, source: Any, given: Given) -> Any:
    """What `monet_jax.flax` makes of a module, its class or its method; None of what is none.

    Arguments:
        fun: what is to be planned.
        source: where its plans come from.
        given: how its arguments are meant.
    """
    if not _is_of_module(fun):
        return None
    from .flax import _planned  # late, as Flax is

    return _planned.decorate(_planned.Planning(source, *given), "__call__", fun)


def planned_for(
    fun: Callable[..., Any], source: Any, given: Given, args: Sequence[Any], kwargs: Any
) -> Any:
    """What `monet_jax.flax` makes of a function for a call with modules; None for any other."""
    if not (_holds_state(args, kwargs) or (args and _is_bound_linen(args[0]))):
        return None
    from .flax import _planned  # late, as Flax is

    return _planned.PlannedFunction(_planned.Planning(source, *given), fun)


def planned_method(wrapped: Any, source: Any, given: Given, owner: type) -> Any:
    """What `monet_jax.flax` makes of what stands in the body of a class of modules; or None.

    Arguments:
        wrapped: the planned function, as it stands there.
        source: where its plans come from.
        given: how its arguments are meant.
        owner: the class.
    """
    if not issubclass(owner, _linen_modules() + _nnx_modules()):
        return None
    from .flax import _planned  # late, as Flax is

    method = _planned.PlannedFunction(_planned.Planning(source, *given), wrapped.__wrapped__)
    if hasattr(wrapped, "compact"):  # Linen's mark
        method.compact = wrapped.compact
    return method


def on_arrays(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Given
) -> tuple[Callable[..., Any], Call]:
    """A function and a call of it, on arrays: that of NNX modules as `monet_jax.flax` plans it.

    Raises:
        TypeError, ValueError: there is no function, or the options do not fit its arguments.
    """
    module = fun.__self__ if inspect.ismethod(fun) else fun
    if isinstance(module, _nnx_modules()) or _holds_state(args, kwargs):
        from .flax import _modules  # late, as Flax is

        return _modules.on_arrays(fun, args, kwargs, given)
    return fun, take_apart(make_options(fun, *given), args, kwargs)


def _is_of_module(fun: Any) -> bool:
    """Whether it is a class of modules, a module, or a method that is bound to one."""
    if inspect.ismethod(fun):
        return isinstance(fun.__self__, _nnx_modules()) or _is_bound_linen(fun.__self__)
    modules = _linen_modules() + _nnx_modules()
    return issubclass(fun, modules) if isinstance(fun, type) else isinstance(fun, modules)


def _is_bound_linen(x: Any) -> bool:
    """Whether it is a Linen module that has parameters; one without is a value like others."""
    return isinstance(x, _linen_modules()) and getattr(x, "scope", None) is not None


def _linen_modules() -> tuple[type, ...]:
    return _classes("flax.linen", "Module")


def _nnx_modules() -> tuple[type, ...]:
    return _classes("flax.nnx", "Module")


def _holds_state(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether there are modules or variables of NNX among arguments; a `State` is a pytree."""
    kinds = _classes("flax.nnx", "Pytree", "Variable")
    if not kinds:
        return False
    whole = kinds + _classes("flax.nnx", "State")
    leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda x: isinstance(x, whole))
    return any(isinstance(x, kinds) for x in leaves)


def _classes(module: str, *names: str) -> tuple[type, ...]:
    """Classes of a module that somebody has imported; none of one that nobody has."""
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names if hasattr(found, name))
