"""Marks of what is to be planned in a step: JAX's own transformations, of marked functions."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._sources import Planned, Source
from .._wrapped import rematerialized
from ..planning.options import PlanOptions
from ..tracing.modules import Given
from .context import MarkSource, current_step

#: The options that a mark has of its own; all others are those of the step.
_OF_MARKS = ("argnums", "static_argnums", "static_argnames")


def mark(fun: Callable[..., Any], given: Given) -> Any:
    """`fun`, planned where it is differentiated in a step that `monet_jax.jit` made.

    Arguments:
        fun: a function, or a Flax module.
        given: its `argnums`, `static_argnums` and `static_argnames`.
    """
    return rematerialized(fun, MarkSource(), given)


def source_for(budget: int | float | str | None, options: PlanOptions) -> Source:
    """Where the plans of `remat` come from: without a budget it is a mark.

    Raises:
        ValueError: there is no budget, but options of a plan.
    """
    if budget is not None:
        refuse_states(options)
        return Planned(options)
    if given := given_options(options, _OF_MARKS):
        raise ValueError(
            f"`remat` was given {given} and no budget. Without a budget it only marks what "
            "`monet_jax.jit` plans: give a budget, or give these options to `monet_jax.jit`."
        )
    return MarkSource()


def refuse_states(options: PlanOptions) -> None:
    """Refuse to move the state of an optimizer where no step is planned.

    Raises:
        ValueError: it is asked for; "auto" asks for what there is.
    """
    if "states" in options.host_options.kinds and options.host != "auto":
        raise ValueError(
            '`host="states"` is about the optimizer\'s state, which is in no single value and '
            "gradient: give it to `monet_jax.jit` with the whole step, or leave it out."
        )


def given_options(options: PlanOptions, without: Sequence[str]) -> list[str]:
    """The names of options that differ from their defaults, some left out."""
    default = PlanOptions(argnums=options.argnums if options.argnums == (0,) else 0)
    names = [x.name for x in dataclasses.fields(options) if x.init and x.name not in without]
    return [name for name in names if getattr(options, name) != getattr(default, name)]


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.value_and_grad`, such that `monet_jax.jit` around it plans what the gradient needs.

    The arguments are those of `jax.value_and_grad`. In no such step, it is that function.
    """
    return _marked(jax.value_and_grad, fun, argnums, {"has_aux": has_aux, **options})


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.grad`, such that `monet_jax.jit` around it plans what the gradient needs.

    The arguments are those of `jax.grad`. In no such step, it is that function.
    """
    return _marked(jax.grad, fun, argnums, {"has_aux": has_aux, **options})


def vjp(fun: Callable[..., Any], *primals: Any, **options: Any) -> Any:
    """`jax.vjp`, such that `monet_jax.jit` around it plans what is kept for the pullback.

    The arguments are those of `jax.vjp`. In no such step, it is that function.
    """
    return jax.vjp(_of_all(fun, primals), *primals, **options)


def linearize(fun: Callable[..., Any], *primals: Any, **options: Any) -> Any:
    """`jax.linearize`, such that `monet_jax.jit` around it plans what is kept.

    The arguments are those of `jax.linearize`. In no such step, it is that function.
    """
    return jax.linearize(_of_all(fun, primals), *primals, **options)


def _marked(
    transformation: Callable[..., Any],
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    options: dict[str, Any],
) -> Callable[..., Any]:
    """A transformation of a function that is marked where it is called in a step."""
    plain = transformation(fun, argnums=argnums, **options)

    @functools.wraps(plain)
    def called(*args: Any, **kwargs: Any) -> Any:
        if current_step() is None:
            return plain(*args, **kwargs)
        marked = mark(fun, (argnums, (), ()))
        return transformation(marked, argnums=argnums, **options)(*args, **kwargs)

    return called


def _of_all(fun: Callable[..., Any], primals: Sequence[Any]) -> Callable[..., Any]:
    """The function, marked for a derivative with respect to all its arguments."""
    if current_step() is None:
        return fun
    return mark(fun, (tuple(range(len(primals))), (), ()))
