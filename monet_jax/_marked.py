"""Calls of functions that are marked to be planned, and the traces that such calls share."""

import collections
import dataclasses
import inspect
from collections.abc import Callable, Hashable
from typing import Any

from . import _compat, _trace
from ._closures import closure_key
from ._program import Rewrite
from ._signature import Call
from ._trace import Terms, Traced

#: Traces of a function that are kept, at most.
MOST_TRACES = 32


@dataclasses.dataclass(frozen=True)
class Marked:
    """A call of a function that is marked to be planned.

    Attributes:
        fun: the function.
        call: its arguments.
        started: when the call came, by `time.perf_counter`.
    """

    fun: Callable[..., Any]
    call: Call
    started: float

    @property
    def name(self) -> str:
        """What the function is called."""
        return getattr(self.fun, "__qualname__", None) or repr(self.fun)

    @property
    def function(self) -> Hashable:
        """What is the same for all calls of the function, whatever it is wrapped in."""
        fun = inspect.unwrap(self.fun)
        return getattr(getattr(fun, "__func__", fun), "__code__", type(fun))

    def run(self) -> Any:
        """What the function returns as it is."""
        args, kwargs = self.call.rebuild(self.call.leaves)
        return self.fun(*args, **kwargs)


class Traces:
    """The traces of functions, by what they depend on."""

    def __init__(self) -> None:
        self._kept: collections.OrderedDict[Hashable, Traced] = collections.OrderedDict()

    def traced(self, marked: Marked, rewrite: Rewrite, terms: Terms, target: str) -> Traced:
        """The trace of a marked call; from an earlier one, where nothing tells them apart.

        Raises:
            Untraceable: the function itself cannot be traced.
        """
        call = marked.call
        given = call.signature, call.differentiated, target, _compat.trace_context()
        key = closure_key(marked.fun), given
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        try:
            recorded = _trace.record(marked.fun, call)
        except Exception as error:
            raise Untraceable(f"{type(error).__name__}: {error}") from error
        traced = _trace.traced_as(recorded, call.differentiated, rewrite, terms)
        # As the function leaves what it reads: one that counts its traces is still the same.
        known = closure_key(marked.fun)
        if known is not None and not recorded.closed_over:
            self._kept[known, given] = traced
            if len(self._kept) > MOST_TRACES:
                self._kept.popitem(last=False)
        return traced


class Untraceable(Exception):
    """A function raises an error on abstract values."""
