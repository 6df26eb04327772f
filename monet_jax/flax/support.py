"""Registers with `remat`, `plan` and `apply` how Flax modules are planned."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..tracing.modules import Given, ModuleSupport, OnArrays, register
from . import modules
from .planned import PlannedFunction, Planning, decorate


class FlaxModules(ModuleSupport):
    """Plans modules of Linen and of NNX."""

    def decorated(self, fun: Any, source: Any, given: Given) -> Any:
        """The planned replacement of a module, its class or its method."""
        return decorate(Planning(source, given), "__call__", fun)

    def function(self, fun: Callable[..., Any], source: Any, given: Given) -> Callable[..., Any]:
        """The planned replacement of a function that is called with modules."""
        return PlannedFunction(Planning(source, given), fun)

    def on_arrays(
        self, fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Given
    ) -> OnArrays:
        """A function of NNX modules and a call of it, on arrays."""
        return modules.on_arrays(fun, args, kwargs, given)


register(FlaxModules())
