"""Keys of what functions read beside their arguments: equal keys may share a trace.

`jax.checkpoint` keeps the trace of a function for arguments of the same types. Here what the
function closes over counts as well, and so do the globals that it names: a Python number that has
changed makes another trace, as plain JAX would see it, too. What objects hide (files, generators)
is not seen, as under `jax.jit`.
"""

import functools
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import jax.core
import numpy as np

from ..ir import compat

#: Parts of a closure that are looked at; a function that closes over more is traced at each call.
MOST_PARTS = 5_000
#: Bytes of a NumPy array, which may be written in place, that are compared.
MOST_BYTES = 1 << 16

_NUMBERS = (int, float, complex, str, bytes, type(None), np.generic, jax.core.ShapedArray)


class _Unknown(Exception):
    """Something may change without being seen."""


class _Same:
    """An object that equals nothing but itself, kept alive so that no other takes its place."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def closure_key(fun: Callable[..., Any]) -> Hashable | None:
    """A key of a function and of all that it reads beside its arguments; None where that is not
    known.
    """
    try:
        return _Reader().key(fun)
    except (_Unknown, RuntimeError):  # too deep, or changed meanwhile by another thread
        return None


class _Reader:
    """The key of one function; each object is read once."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def key(self, x: Any) -> Hashable:
        """The key of an object."""
        if isinstance(x, _NUMBERS):
            return type(x), repr(x)
        if id(x) in self.seen:
            return "again", self.seen[id(x)]
        self.seen[id(x)] = len(self.seen)
        if len(self.seen) > MOST_PARTS or isinstance(x, jax.core.Tracer):
            raise _Unknown
        match x:
            case types.FunctionType():
                return self._of_function(x)
            case types.MethodType():
                return self.key(x.__func__), self.key(x.__self__)
            case functools.partial():
                return "partial", self.key(x.func), self.key(x.args), self.key(x.keywords)
            case list() | tuple() | set() | frozenset():
                return type(x), tuple(map(self.key, x))
            case dict():
                return type(x), tuple((self.key(k), self.key(v)) for k, v in x.items())
            case np.ndarray():
                return self._of_array(x)
            case _:
                return self._of_object(x)

    def _of_function(self, fun: types.FunctionType) -> Hashable:
        try:
            cells = [cell.cell_contents for cell in fun.__closure__ or ()]
        except ValueError:  # not yet written
            raise _Unknown from None
        own = _Same(fun.__code__), self.key(fun.__defaults__), self.key(fun.__kwdefaults__)
        if _is_of_library(fun.__code__.co_filename):
            return own, self.key(cells)
        return own, self.key(cells), tuple(self._of_globals(fun))

    def _of_globals(self, fun: types.FunctionType) -> Iterator[Hashable]:
        """The keys of the globals that a function names, and of attributes of modules."""
        names = [*dict.fromkeys(_names(fun.__code__))]
        for name in names:
            if name not in fun.__globals__:
                continue
            value = fun.__globals__[name]
            yield name, self.key(value)
            if isinstance(value, types.ModuleType) and not _is_library(value):
                yield tuple((x, self.key(vars(value)[x])) for x in names if x in vars(value))

    def _of_array(self, array: np.ndarray) -> Hashable:
        if array.nbytes > MOST_BYTES or array.dtype.hasobject:
            raise _Unknown
        return array.shape, str(array.dtype), array.tobytes()

    def _of_object(self, x: Any) -> Hashable:
        """An object counts by itself; by what it wraps, and by its attributes, if it has some."""
        if isinstance(x, type | types.ModuleType | jax.Array | types.BuiltinFunctionType):
            return _Same(x)
        if _is_library(sys.modules.get(type(x).__module__)):
            return _Same(x), self.key(getattr(x, "__wrapped__", None))
        return _Same(x), self.key(getattr(x, "__dict__", None))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_library(module: types.ModuleType | None) -> bool:
    return _is_of_library(getattr(module, "__file__", None) or "<")


def _is_of_library(file: str) -> bool:
    """Whether a source file is installed, so that nothing in it changes while a job runs."""
    return "site-packages" in file or compat.is_library(file)
