"""Puts the paths of NNX modules into the name stack, as Linen does for its modules.

While a function is traced, its modules are copies that nobody else sees. They get subclasses whose
methods run under `jax.named_scope`.
"""

import contextlib
import contextvars
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import nnx

from .subclass import subclass

Path = tuple[str, ...]

#: The module whose method runs.
_current: contextvars.ContextVar[Path] = contextvars.ContextVar("current", default=())


@contextlib.contextmanager
def named(values: Any, instance: Any) -> Iterator[None]:
    """Under it, values that the modules in `values` compute carry the modules' paths.

    Arguments:
        values: a pytree with modules, which no one else uses.
        instance: the module whose method is called under it, or None.
    """
    is_module = lambda x: isinstance(x, nnx.Module)  # noqa: E731
    roots = [x for x in jax.tree.leaves(values, is_leaf=is_module) if is_module(x)]
    scope = _scope((type(instance).__name__,)) if is_module(instance) else contextlib.nullcontext()
    for root in roots:
        name = type(root).__name__
        for path, module in nnx.iter_modules(root):
            _rename(module, (name, *map(str, path)))
    try:
        with scope:
            yield
    finally:
        for root in roots:
            for _, module in nnx.iter_modules(root):
                _restore(module)


def _rename(module: Any, path: Path) -> None:
    kind = type(module)
    if not hasattr(kind, _PATH) and callable(module):
        object.__setattr__(module, "__class__", _named_class(kind, path))


def _restore(module: Any) -> None:
    if hasattr(type(module), _PATH):
        object.__setattr__(module, "__class__", type(module).__base__)


_PATH = "__monet_jax_path__"


@functools.cache  # one for each module of a model: NNX and JAX keep every class they have seen
def _named_class(kind: type, path: Path) -> type:
    """A subclass whose methods run under the name of a module."""
    methods = {name: _under(getattr(kind, name), path) for name in _methods(kind)}
    return subclass(kind, {**methods, _PATH: path})


def _methods(kind: type) -> list[str]:
    """`__call__`, and the public methods that are not inherited from `nnx.Module`."""
    own = itertools.takewhile(lambda c: c is not nnx.Module, kind.__mro__)
    names = {name for c in own for name, x in vars(c).items() if inspect.isfunction(x)}
    return ["__call__", *sorted(name for name in names if not name.startswith("_"))]


def _under(method: Callable[..., Any], path: Path) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _scope(path):
            return method(self, *args, **kwargs)

    return run


@contextlib.contextmanager
def _scope(path: Path) -> Iterator[None]:
    """Put the part of a path into the name stack that is not in it yet."""
    outer = _current.get()
    pairs = itertools.takewhile(lambda p: p[0] == p[1], zip(outer, path, strict=False))
    rest = "/".join(path[len(list(pairs)) :])
    token = _current.set(path)
    try:
        with jax.named_scope(rest) if rest else contextlib.nullcontext():
            yield
    finally:
        _current.reset(token)
