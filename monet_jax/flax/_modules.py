"""`remat` and `plan` for whatever has to do with a Flax module: which library's module is it?"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _api
from .._hand_over import Given
from .._limit import limit_of, samples_of
from .._plan import Plan
from .._reserved import Optimizer
from .._signature import Call, has_positional, make_options
from ._calls import Function
from ._subclass import subclass


def remat(
    module: Any = None,
    /,
    *,
    budget: int | float | str,
    methods: str | Sequence[str] = "__call__",
    target: str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    reserved: int | Optimizer = 0,
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float = 10.0,
    verify: bool = True,
    cache: bool = True,
) -> Any:
    """A module, or a function of modules, whose compiled value-and-gradient keeps `budget`.

    The gradient is that with respect to the parameters (the collection `params` in Linen,
    `nnx.Param` in NNX) and to what else `argnums` covers. Values, gradients and state differ from
    the plain module's by rounding, and random numbers not at all. Parameters are created as ever.
    A budget covers one call of what it stands on; where planned functions call each other, the
    outermost plan decides for all of them, so that one round the loss is enough.

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
    settings = _api.make_settings(
        budget, target, operators, checkpoints, reserved, pins, planner, time_limit, verify, cache
    )
    planning = Planning(_api.Planned(settings), argnums, static_argnums, static_argnames)
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
    reserved: int | Optimizer = 0,
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float = 10.0,
    verify: bool = True,
    cache: bool = True,
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
    operators = _api.within_error(operators, error)
    settings = _api.make_settings(
        budget, target, operators, checkpoints, reserved, pins, planner, time_limit, verify, cache
    )
    given = argnums, static_argnums, static_argnames
    pure, call = on_arrays(fun, args, kwargs or {}, given)
    limit = None
    if error is not None:
        samples = [on_arrays(fun, x, kwargs or {}, given)[1] for x in samples_of(args, sample)]
        limit = limit_of(error, settings.terms, call, samples)
    return _api.plan_call(settings, pure, call, limit)


def on_arrays(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Given
) -> tuple[Callable[..., Any], Call]:
    """A function that is given NNX modules, and a call of it, on arrays.

    Raises:
        TypeError: it is given none.
    """
    if not inspect.ismethod(fun) and not inspect.isfunction(fun) and _library_of(fun) is not None:
        fun = fun.__call__
    if is_method := inspect.ismethod(fun):
        args, fun = (fun.__self__, *args), fun.__func__
    nnx = _nnx()
    if not nnx.holds_state(args, kwargs):
        raise TypeError(f"`{_name(fun)}` was given no NNX module: use `monet_jax.plan`.")
    return nnx.on_arrays(_function(fun, given, is_method=is_method), args, kwargs)


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
    planning = Planning(_api.Fixed(plan), argnums, static_argnums, static_argnames)
    return decorate(planning, methods, module)


@dataclasses.dataclass(frozen=True)
class Planning:
    """What `remat` or `apply` was asked for.

    Attributes:
        planned: the settings, and the plans made so far; or the one plan.
        argnums, static_argnums, static_argnames: as the user gave them.
    """

    planned: _api.Source
    argnums: Any
    static_argnums: Any
    static_argnames: Any

    def function(self, fun: Callable[..., Any], *, is_method: bool) -> Function:
        """A function with its arguments as they are meant.

        Raises:
            TypeError, ValueError: as `make_options`.
        """
        given = self.argnums, self.static_argnums, self.static_argnames
        return _function(fun, given, is_method=is_method)


def _function(fun: Callable[..., Any], given: Given, *, is_method: bool) -> Function:
    if not is_method:
        return Function(fun, make_options(fun, *given), is_method)
    bound = functools.partial(fun, None)
    if given[0] == 0 and not has_positional(bound):
        given = (), *given[1:]  # the parameters are differentiated, and there may be nothing else
    return Function(fun, make_options(bound, *given).after_self(), is_method)


class PlannedFunction:
    """A function of modules that runs as planned; made by `remat` and `apply`.

    As an attribute of a class it is a method.
    """

    def __init__(self, planning: Planning, fun: Callable[..., Any], *, is_method: bool = False):
        functools.update_wrapper(self, fun)
        # Linen manages the state of modules round each method. Here that is done inside, so that it
        # is the state of the lifted module.
        self.method_handler_wrapped = True
        self._planning = planning
        self._function = planning.function(fun, is_method=is_method)
        self._method: PlannedFunction | None = self if is_method else None

    def __set_name__(self, owner: type, name: str) -> None:
        self._as_method()  # refuses bad arguments when the class is made

    @property
    def compact(self) -> Any:
        """Linen's mark of the method that creates its submodules, also where it is set on this."""
        return self._function.fun.compact

    @compact.setter
    def compact(self, value: Any) -> None:
        self._function.fun.compact = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and not self._function.is_method and self._is_method_of(type(args[0])):
            return self._as_method()(*args, **kwargs)
        library = _library_of(args[0]) if args else None
        if library is None and _nnx().holds_state(args, kwargs):
            library = _nnx()
        if library is None:
            raise TypeError(
                f"`{_name(self)}` was given no Flax module: use `monet_jax.remat` for functions of "
                "arrays."
            )
        return library.run(self._planning.planned, self._function, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        method = self._as_method()
        return method if instance is None else types.MethodType(method, instance)

    def _is_method_of(self, kind: type) -> bool:
        """Whether a class has this for a method, below other decorators."""
        fun = self._function.fun
        owner, _, name = getattr(fun, "__qualname__", "").rpartition(".")
        place = getattr(fun, "__module__", None), owner
        found = [x for x in kind.__mro__ if (x.__module__, x.__qualname__) == place]
        wrapper = vars(found[0]).get(name, fun) if found else fun
        while wrapper is not None and wrapper is not fun:
            if planned_by(wrapper) is self._planning.planned:
                return True
            wrapper = getattr(wrapper, "__wrapped__", None)
        return wrapper is None  # a decorator hides what it decorates

    def _as_method(self) -> "PlannedFunction":
        if self._method is None:
            self._method = PlannedFunction(self._planning, self._function.fun, is_method=True)
        return self._method

    def __repr__(self) -> str:
        return f"<rematerialized {_name(self)}>"


def planned_by(wrapper: Any) -> _api.Source | None:
    """Where the plans of a planned function come from; None of any other function."""
    if isinstance(wrapper, PlannedFunction):
        return wrapper._planning.planned
    return wrapper.source if isinstance(wrapper, _api.Rematerialized) else None


def decorate(planning: Planning, methods: str | Sequence[str], module: Any) -> Any:
    methods = (methods,) if isinstance(methods, str) else tuple(methods)
    if isinstance(module, type):
        if _library_of_class(module) is None:
            raise TypeError(f"`{module.__name__}` is no class of Flax modules.")
        return _planned_class(planning, methods, module)
    library = _library_of(module)
    if library is not None:
        return library.with_class(module, _planned_class(planning, methods, type(module)))
    if inspect.ismethod(module):
        return PlannedFunction(planning, module.__func__, is_method=True).__get__(module.__self__)
    if callable(module):
        return PlannedFunction(planning, module)
    raise TypeError(f"Only a Flax module or a function of modules can be planned; got {module!r}.")


def _planned_class(planning: Planning, methods: Sequence[str], kind: type) -> type:
    """A subclass of the same name: Linen names parameters and keys after it."""
    missing = [name for name in methods if not callable(getattr(kind, name, None))]
    if missing:
        raise ValueError(f"`methods` names {missing}, which `{kind.__name__}` does not have.")
    body: dict[str, Any] = {
        name: PlannedFunction(planning, getattr(kind, name), is_method=True) for name in methods
    }
    return subclass(kind, body)


def _name(fun: Any) -> str:
    return getattr(fun, "__qualname__", type(fun).__name__)


def _flax() -> Any:
    # Late, as are our files for its libraries: Flax is an extra, and takes a second to import.
    try:
        import flax
        import flax.linen
        import flax.nnx
    except ImportError as error:
        raise ImportError(
            'monet_jax.flax needs Flax: `pip install "monet-jax[flax]"`, or `pip install flax`.'
        ) from error
    return flax


def _linen() -> Any:
    _flax()
    from . import linen

    return linen


def _nnx() -> Any:
    _flax()
    from . import nnx

    return nnx


def _library_of_class(kind: type) -> Any:
    """The file here that is for the modules of a class; None where it is no such class."""
    flax = _flax()
    if issubclass(kind, flax.linen.Module):
        return _linen()
    return _nnx() if issubclass(kind, flax.nnx.Module) else None


def _library_of(x: Any) -> Any:
    """The file here that is for a module; None where an object is no module."""
    return _library_of_class(type(x))
