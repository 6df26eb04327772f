"""Runs methods of Linen modules as planned.

As in `nn.remat`, the variables and keys of the module's scopes become arguments, and the variables
that it writes become results, by Flax's own lifting.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from flax import linen as nn
from flax.core import lift
from flax.linen.module import wrap_method_once
from flax.linen.transforms import decorator_lift_transform

from .. import _api
from .calls import Function, arguments_of, flat_call

#: The collection that gradients are taken with respect to.
_PARAMS = "params"


def run(planned: _api.Source, function: Function, args: Sequence[Any], kwargs: Any) -> Any:
    """The result of a method, computed as planned; the first argument is the module.

    Parameters are created unplanned.
    """
    module, *others = args
    if module.scope is None and (not function.is_method or function.fun is nn.Module.apply):
        raise TypeError(
            f"`{function.fun.__qualname__}` was given a Linen module without its parameters, which "
            "makes it a function of arrays: use `monet_jax.remat`."
        )
    if _api.runs_as_it_is() or module.scope is None or module.is_initializing():
        return wrap_method_once(function.fun)(*args, **kwargs)

    def lifted(method: Callable[..., Any]) -> Callable[..., Any]:
        return _lifted(planned, function, method)

    return decorator_lift_transform(lifted, function.fun)(module, *others, **kwargs)


def _lifted(planned: _api.Source, function: Function, method: Callable[..., Any]):
    """The planned method, which takes scopes in the place of the module."""

    def run_scopes(scopes: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        drawn = _drawn(scopes)
        after: list[Any] = []

        def packed(scopes_of, repack, variables, keys, *args, **kwargs):
            arguments = arguments_of(function.options, (None, *args), kwargs)

            def pure(value: Any) -> Any:
                variables, keys, values = value
                with _drawing_from(scopes, drawn, after):
                    inner = scopes_of(variables, keys)
                    (_, *args), kwargs = arguments.with_values(values)
                    out = method(inner, *args, **kwargs)
                    return out, repack(inner)

            params, others = variables
            chosen = dict(zip(arguments.places, arguments.differentiated, strict=True))
            flags = _for_each_leaf(
                (params, others, keys, *arguments.values),
                (chosen.get(0, False), False, False, *arguments.differentiated),
            )
            value = variables, keys, arguments.values
            flat = flat_call(pure, value, flags, _for_optimizer(params), function.fun)
            result = flat.finish(_api.run_planned(planned, flat.fun, flat.call))
            if after:
                _set_drawn(scopes, after)
            return result

        pack = lift.pack(packed, (_PARAMS, True), (True,), (True,), enable_kwargs=True)
        return pack(scopes, *args, **kwargs)

    return run_scopes


@contextlib.contextmanager
def _drawing_from(scopes: Sequence[Any], drawn: Sequence[Any], after: list[Any]) -> Iterator[None]:
    """Each trace of a method draws the same keys, and none that others drew.

    Arguments:
        scopes: of the module, outside.
        drawn: how many keys were drawn when the method was called.
        after: is set to how many were drawn when it returned.
    """
    found = _drawn(scopes)
    _set_drawn(scopes, drawn)
    try:
        yield
        after[:] = _drawn(scopes)
    finally:
        _set_drawn(scopes, found)


def _drawn(scopes: Sequence[Any]) -> list[Any]:
    """The numbers of keys drawn in some scopes and in the scopes of inner modules."""

    def copied(counters: Any) -> Any:
        is_nested = isinstance(counters, dict)
        return {key: copied(x) for key, x in counters.items()} if is_nested else counters

    return [copied(scope.rng_counters) for scope in scopes]


def _set_drawn(scopes: Sequence[Any], drawn: Sequence[Any]) -> None:
    """Set counters in place: scopes share them."""

    def fill(counters: dict[Any, Any], counts: dict[Any, Any]) -> None:
        for key in counters.keys() - counts.keys():
            del counters[key]
        for key, count in counts.items():
            if isinstance(count, dict):
                fill(counters.setdefault(key, {}), count)
            else:
                counters[key] = count

    for scope, counts in zip(scopes, drawn, strict=True):
        fill(scope.rng_counters, counts)


def _for_each_leaf(values: Sequence[Any], flags: Sequence[bool]) -> list[bool]:
    """The flags of some pytrees, once for each of their leaves."""
    pairs = zip(values, flags, strict=True)
    return [flag for value, flag in pairs for _ in jax.tree.leaves(value)]


def _for_optimizer(params: Sequence[Any]) -> Any:
    """The parameters in a module's scopes: as they are for one scope, else in a tuple."""
    found = [group[_PARAMS] for group in params if _PARAMS in group]
    return found[0] if len(found) == 1 else tuple(found)


def with_class(module: nn.Module, planned_class: type) -> nn.Module:
    """A module of another class with the same fields.

    Raises:
        ValueError: it is part of another module already.
    """
    if module.parent is not None:
        raise ValueError(
            f"This `{type(module).__name__}` is part of another module, which counts on its class. "
            "Give the class to `monet_jax.flax.remat`, and make the module of what it returns."
        )
    fields = {f.name: getattr(module, f.name) for f in dataclasses.fields(module) if f.init}
    return planned_class(**fields)
