"""Subclasses of module classes with other methods, which Flax and users take for the class."""

import types
from collections.abc import Mapping
from typing import Any


def subclass(kind: type, methods: Mapping[str, Any]) -> type:
    """A subclass with other methods and the name of the class."""
    body = dict(methods)
    body |= {key: getattr(kind, key) for key in ("__module__", "__qualname__", "__doc__")}
    # NNX takes every subclass for a pytree, unless it is told; Linen has no such thing.
    told = {} if getattr(kind, "_pytree__is_pytree", True) else {"pytree": False}
    return types.new_class(kind.__name__, (kind,), told, lambda space: space.update(body))
