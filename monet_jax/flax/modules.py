"""`remat`, `plan` and `apply` for Flax modules, their methods, and functions of modules."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _api
from .._plan import Plan
from ..planning.mistakes import budget_by_keyword
from ..planning.reserved import Optimizer
from ..tracing.modules import Given, OnArrays
from .library import library_of, name_of, nnx
from .planned import Planning, decorate, function_of


@budget_by_keyword
def remat(
    module: Any = None,
    /,
    *,
    budget: int | float | str | None = None,
    methods: str | Sequence[str] = "__call__",
    target: str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    reserved: int | str | Optimizer = 0,
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float | None = None,
    max_compilations: int = 6,
    max_seconds: float | None = None,
    verify: bool | str = True,
    cache: bool = True,
    costs: str = "model",
) -> Any:
    """A module, or a function of modules, whose compiled value-and-gradient keeps `budget`.

    The gradient is that with respect to the parameters (the collection `params` in Linen,
    `nnx.Param` in NNX) and to what else `argnums` covers. Values, gradients and state differ from
    the plain module's by rounding, and random numbers not at all. Parameters are created as ever.
    A budget covers one call of what it stands on; where planned functions call each other, the
    outermost plan decides for all of them, so that one around the loss is enough. Without a budget
    the result is a mark, as in `monet_jax.remat`.

    Arguments:
        module: what to plan, or None to use `remat(...)` as a decorator.
            A class: a subclass of the same name is returned whose `methods` are planned.
            An instance: another one is returned. In NNX it shares all state with the first; in
            Linen, where an instance has no state, it must not be part of a module.
            A method, bound or in the body of its class: that method.
            Any other function: it takes NNX modules, or a Linen module first.
        methods: of a class or an instance: the names of the methods to plan.
        argnums: the arguments to differentiate, of a method counted without `self`, whose
            parameters always are. `()` for none: where inputs are data, this plans for less.
        static_argnums, static_argnames: arguments that are not arrays, counted likewise. Leaves
            that are bool, str, None or no array at all are static wherever they stand.
        reserved: as in `monet_jax.remat`; of an optimizer, the state for the parameters of the
            modules that are differentiated.

    The other arguments are those of `monet_jax.remat`, and the errors.

    Raises:
        ImportError: Flax is not installed.
    """
    options = _api.PlanOptions(
        budget="auto" if budget is None else budget,
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators=operators,
        checkpoints=checkpoints,
        reserved=reserved,
        pins=pins,
        planner=planner,
        time_limit=time_limit,
        max_compilations=max_compilations,
        max_seconds=max_seconds,
        verify=verify,
        cache=cache,
        costs=costs,
    )
    planning = Planning(_api.source_for(budget, options), options.given)
    if module is None:
        return functools.partial(decorate, planning, methods)
    return decorate(planning, methods, module)


def plan(
    fun: Callable[..., Any],
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    budget: int | float | str,
    target: str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    error: float | None = None,
    sample: Sequence[Any] | None = None,
    checkpoints: str = "keep",
    reserved: int | str | Optimizer = 0,
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float | None = None,
    max_compilations: int = 6,
    max_seconds: float | None = None,
    verify: bool | str = True,
    cache: bool = True,
    costs: str = "model",
) -> Plan:
    """The plan that `remat` would use for these arguments; nothing is allocated or run.

    Arguments:
        fun: an NNX module, a bound method of one, or a function of modules. (The loss of a Linen
            model is a function of arrays: `monet_jax.plan`.)
        *args: its arguments. Modules may be abstract, as `nnx.eval_shape` makes them.
        kwargs: its keyword arguments.
        error, sample: as in `monet_jax.plan`. A sample holds what stands for `args`: for a function
            of modules these, too, with parameters.

    The other arguments and the errors are those of `remat`.
    """
    options = _api.PlanOptions(
        budget=budget,
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators=_api.within_error(operators, error),
        checkpoints=checkpoints,
        reserved=reserved,
        pins=pins,
        planner=planner,
        time_limit=time_limit,
        max_compilations=max_compilations,
        max_seconds=max_seconds,
        verify=verify,
        cache=cache,
        costs=costs,
    )
    return _api.plan_call(options, fun, args, kwargs or {}, error, sample, on_arrays)


def on_arrays(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Given
) -> OnArrays:
    """A function of NNX modules and a call of it, on arrays.

    Raises:
        TypeError: the call has no module.
    """
    if not inspect.ismethod(fun) and not inspect.isfunction(fun) and library_of(fun) is not None:
        fun = fun.__call__
    if is_method := inspect.ismethod(fun):
        args, fun = (fun.__self__, *args), fun.__func__
    library = nnx()
    if not library.holds_state(args, kwargs):
        raise TypeError(f"`{name_of(fun)}` was given no NNX module: use `monet_jax.plan`.")
    return library.on_arrays(function_of(fun, given, is_method=is_method), args, kwargs)


def apply(
    plan: Plan,
    module: Any,
    /,
    *,
    methods: str | Sequence[str] = "__call__",
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Any:
    """A module, or a function of modules, run as a plan says. Needs no solver.

    Arguments:
        plan: made by `plan` of the same function, maybe elsewhere, or loaded from a file.
        module, methods, argnums, static_argnums, static_argnames: as in `remat`.

    Raises:
        PlanMismatch: when called: the plan was made for another function or other arguments.
    """
    given = argnums, static_argnums, static_argnames
    return decorate(Planning(_api.Fixed(plan), given), methods, module)
