"""Runs or traces an equation again, with its source position, module path and context."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
from jax.extend import source_info_util

from .avals import unused


def bind(eqn: Any, inputs: Sequence[Any], name_stack: Any) -> list[Any]:
    """Run one equation on new inputs, with its own rules, context and source position."""
    # `get_bind_params` restores the callables of custom_jvp and custom_vjp calls.
    params = eqn.primitive.get_bind_params(eqn.params)
    with placed_at(eqn, name_stack):
        outputs = eqn.primitive.bind(*unused(inputs), **params)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


@contextlib.contextmanager
def placed_at(eqn: Any, name_stack: Any) -> Iterator[None]:
    """What is traced here has an equation's context and source position, and a module path."""
    where = source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack)
    with where, eqn.ctx.manager:
        yield


def bind_here(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """`bind` under the module path in force where the caller stands."""
    return bind(eqn, inputs, current_name_stack())


def traced_like(eqn: Any, function: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """The jaxpr of a function, all with the source position and the context of an equation."""
    with source_info_util.user_context(eqn.source_info.traceback), eqn.ctx.manager:
        return jax.make_jaxpr(function)(*avals)


def placed_like(eqn: Any, other: Any) -> Any:
    """An equation with the source position and the context (mesh, precision) of another one."""
    return eqn.replace(source_info=other.source_info, ctx=other.ctx)


def name_stack_of(eqn: Any) -> Any:
    """The module path and transformation names under which an equation was traced."""
    return eqn.source_info.name_stack


def current_name_stack() -> Any:
    """The name stack in force where the caller stands."""
    return source_info_util.current_name_stack()
