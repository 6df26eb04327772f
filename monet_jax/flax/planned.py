"""Planned functions of modules, and planned classes of modules."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from .. import _api
from ..tracing.modules import Given
from ..tracing.signature import has_positional, make_options
from .calls import Function
from .library import library_of, library_of_class, name_of, nnx
from .subclass import subclass


@dataclasses.dataclass(frozen=True)
class Planning:
    """A use of `remat` or `apply`.

    Attributes:
        planned: the source of its plans.
        given: `argnums`, `static_argnums` and `static_argnames` as the user gave them.
    """

    planned: _api.Source
    given: Given

    def function(self, fun: Callable[..., Any], *, is_method: bool) -> Function:
        """A function and the roles of its arguments.

        Raises:
            TypeError, ValueError: as `make_options`.
        """
        return function_of(fun, self.given, is_method=is_method)


def function_of(fun: Callable[..., Any], given: Given, *, is_method: bool) -> Function:
    """A function and the roles of its arguments, which a method counts without `self`."""
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
        # Linen manages the state of modules around each method. Here the lifted module's state is
        # managed inside instead.
        self.method_handler_wrapped = True
        self._planning = planning
        self._function = planning.function(fun, is_method=is_method)
        self._method: PlannedFunction | None = self if is_method else None

    def __set_name__(self, owner: type, name: str) -> None:
        self._as_method()  # refuses bad arguments when the class is made

    @property
    def compact(self) -> Any:
        """Linen's flag of the method that creates its submodules, also where it is set here."""
        return self._function.fun.compact

    @compact.setter
    def compact(self, value: Any) -> None:
        """Set by `nn.compact`."""
        self._function.fun.compact = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and not self._function.is_method and self._is_method_of(type(args[0])):
            return self._as_method()(*args, **kwargs)
        library = library_of(args[0]) if args else None
        if library is None and nnx().holds_state(args, kwargs):
            library = nnx()
        if library is None:
            raise TypeError(
                f"`{name_of(self)}` was given no Flax module: use `monet_jax.remat` for functions "
                "of arrays."
            )
        return library.run(self._planning.planned, self._function, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        method = self._as_method()
        return method if instance is None else types.MethodType(method, instance)

    def _is_method_of(self, kind: type) -> bool:
        """Whether this is a method of a class, below other decorators."""
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
        return f"<rematerialized {name_of(self)}>"


def planned_by(wrapper: Any) -> _api.Source | None:
    """The source of a planned function's plans; None for any other function."""
    if isinstance(wrapper, PlannedFunction):
        return wrapper._planning.planned
    return wrapper.source if isinstance(wrapper, _api.Rematerialized) else None


def decorate(planning: Planning, methods: str | Sequence[str], module: Any) -> Any:
    """The planned replacement of a module, a class of modules, or a function.

    Raises:
        TypeError, ValueError: it is none of these, or has no such methods.
    """
    methods = (methods,) if isinstance(methods, str) else tuple(methods)
    if isinstance(module, type):
        if library_of_class(module) is None:
            raise TypeError(f"`{module.__name__}` is no class of Flax modules.")
        return _planned_class(planning, methods, module)
    library = library_of(module)
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
