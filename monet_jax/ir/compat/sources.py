"""Finds the user's line behind an equation or a warning."""

import contextlib
import functools
import os
import pathlib
import sysconfig
from typing import Any

import jax
import jax.core

_PACKAGE = str(pathlib.Path(os.path.abspath(__file__)).parents[2])
#: A warning is about the line that called, not about the frames of these files between.
#: (CPython 3.12.1 skips no file by its whole name.)
INTERNAL = (_PACKAGE, os.path.dirname(jax.__file__), contextlib.__file__.removesuffix("py"))

_ZOO = os.path.join(_PACKAGE, "zoo") + os.sep

#: Packages between a user's line and the equation that it makes.
_SITE = "site-packages"
_LIBRARIES = ("jax", "jaxlib", "flax", "equinox", "haiku", "optax")


def source_of(eqn: Any) -> str:
    """`file:line` of the user's code that made an equation; "" where JAX does not know it."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if not is_library(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return ""


def sourced_by(eqn: Any, call: Any) -> Any:
    """An equation at its own line of the user's code, or else at that of a call that contains it.

    JAX traces `jnp.where` and its like once, whichever line calls them.
    """
    if call is None or source_of(eqn):
        return eqn
    traceback = call.source_info.traceback
    return eqn.replace(source_info=eqn.source_info.replace(traceback=traceback))


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a source file belongs to a library whose lines tell a user nothing."""
    # The models of the zoo stand for a user's.
    is_ours = file.startswith(_PACKAGE + os.sep) and not file.startswith(_ZOO)
    is_python = file.startswith(("<", sysconfig.get_path("stdlib"))) and _SITE not in file
    return is_ours or is_python or any(f"{_SITE}/{name}/" in file for name in _LIBRARIES)
