"""Hands Flax modules, and functions of modules, over to the registered support for them.

To JAX an NNX module is a pytree: a function that is traced with one changes a copy, statistics and
random keys included. Nothing here imports Flax: where it is not imported, there is no module. Nor
is `monet_jax.flax` imported: it registers a `ModuleSupport`.
"""

import abc
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .signature import Call, make_options, take_apart

#: `argnums`, `static_argnums` and `static_argnames` as the user gave them.
Given = tuple[Any, Any, Any]
#: A function of arrays, and a call of it.
OnArrays = tuple[Callable[..., Any], Call]


class ModuleSupport(abc.ABC):
    """What plans modules; `given` is how the arguments of a function are meant."""

    @abc.abstractmethod
    def decorated(self, fun: Any, source: Any, given: Given) -> Any:
        """What stands for a module, its class or its method, and runs as planned."""

    @abc.abstractmethod
    def function(self, fun: Callable[..., Any], source: Any, given: Given) -> Callable[..., Any]:
        """What stands for a function that is called with modules, and runs as planned."""

    @abc.abstractmethod
    def on_arrays(
        self, fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Given
    ) -> OnArrays:
        """A function of NNX modules and a call of it, on arrays."""


_registered: list[ModuleSupport] = []


def register(support: ModuleSupport) -> None:
    """Make known what plans modules; the last one is asked."""
    _registered.append(support)


def planned(fun: Any, source: Any, given: Given) -> Any:
    """What runs as planned in the place of a module, its class or its method; None of others.

    Arguments:
        fun: what is to be planned.
        source: where its plans come from.
        given: how its arguments are meant.
    """
    return _registered[-1].decorated(fun, source, given) if _is_of_module(fun) else None


def planned_for(
    fun: Callable[..., Any], source: Any, given: Given, args: Sequence[Any], kwargs: Any
) -> Any:
    """What runs a function as planned for a call with modules; None for any other call."""
    if not (_holds_state(args, kwargs) or (args and _is_bound_linen(args[0]))):
        return None
    return _registered[-1].function(fun, source, given)


def planned_method(wrapped: Any, source: Any, given: Given, owner: type) -> Any:
    """The planned method for what stands in the body of a class of modules; None in others.

    Arguments:
        wrapped: the planned function, as it stands there.
        source: where its plans come from.
        given: how its arguments are meant.
        owner: the class.
    """
    if not issubclass(owner, _linen_modules() + _nnx_modules()):
        return None
    method: Any = _registered[-1].function(wrapped.__wrapped__, source, given)
    if hasattr(wrapped, "compact"):  # set by Linen
        method.compact = wrapped.compact
    return method


def on_arrays(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Given
) -> OnArrays:
    """A function and a call of it, on arrays; NNX modules as they are planned.

    Raises:
        TypeError, ValueError: there is no function, or the options do not fit its arguments.
    """
    module = fun.__self__ if inspect.ismethod(fun) else fun
    if isinstance(module, _nnx_modules()) or _holds_state(args, kwargs):
        return _registered[-1].on_arrays(fun, args, kwargs, given)
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
