"""Calls of functions that are marked to be planned, and the traces that such calls share."""

import dataclasses
import inspect
import time
from collections.abc import Callable, Hashable
from typing import Any

from ..ir import compat
from . import trace
from .closures import closure_key
from .signature import Call
from .traced import Terms, Traced

#: Traces of a function that are kept, at most.
MOST_TRACES = 8


@dataclasses.dataclass(frozen=True)
class Marked:
    """A call of a function that is marked to be planned.

    Attributes:
        fun: the function; None where it has been traced and may be gone.
        call: its arguments.
        name: what the function is called.
        function: the same for all calls of the function, whatever it is wrapped in.
        started: when the call came, by `time.perf_counter`.
    """

    fun: Callable[..., Any] | None
    call: Call
    name: str
    function: Hashable
    started: float

    @staticmethod
    def of(fun: Callable[..., Any], call: Call) -> "Marked":
        """A call that comes now."""
        own = inspect.unwrap(fun)
        function = getattr(getattr(own, "__func__", own), "__code__", type(own))
        return Marked(fun, call, name_of(fun), function, time.perf_counter())

    def run(self) -> Any:
        """What the function returns as it is."""
        assert self.fun is not None
        args, kwargs = self.call.rebuild(self.call.leaves)
        return self.fun(*args, **kwargs)


def name_of(fun: Callable[..., Any]) -> str:
    """What a function is called."""
    return getattr(fun, "__qualname__", None) or repr(fun)


class Traces:
    """The traces of functions, by what they depend on."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Traced] = {}

    def traced(
        self, marked: Marked, terms: Terms, target: str, devices: int | None = None
    ) -> Traced:
        """The trace of a marked call; from an earlier one, where nothing tells them apart.

        Arguments:
            marked: the call.
            terms: the options that it is planned with.
            target: the name of the target.
            devices: over how many devices its arguments are spread; None for what they say.

        Raises:
            Untraceable: the function itself cannot be traced.
        """
        call = marked.call
        assert marked.fun is not None
        given = call.signature, call.differentiated, target, compat.trace_context()
        key = _read_by(marked), given
        found = self._kept.get(key)
        if found is not None:
            return found
        try:
            recorded = trace.record(marked.fun, call, devices)
        except Exception as error:
            raise Untraceable(f"{type(error).__name__}: {error}") from error
        traced = trace.traced_with(recorded, call.differentiated, terms, target)
        # As the function leaves what it reads: one that counts its traces is still the same.
        known = _read_by(marked)
        if known is not None and not recorded.closed_over:
            self._kept[known, given] = traced
            if len(self._kept) > MOST_TRACES:
                self._kept.pop(next(iter(self._kept)), None)
        return traced


def _read_by(marked: Marked) -> Hashable | None:
    """A key of what a call reads beside its leaves; None where that is not known."""
    call = marked.call
    if not call.is_final or marked.fun is None:
        return None
    return closure_key(marked.fun) if call.key is None else call.key()


class Untraceable(Exception):
    """A function raises an error on abstract values."""
