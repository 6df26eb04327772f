"""Which of Flax's libraries is a module of, and which file here is for it?"""

from typing import Any


def name_of(fun: Any) -> str:
    """What a function is called in messages."""
    return getattr(fun, "__qualname__", type(fun).__name__)


def linen() -> Any:
    """The file here that is for Linen.

    Raises:
        ImportError: Flax is not installed.
    """
    _flax()
    from . import linen

    return linen


def nnx() -> Any:
    """The file here that is for NNX.

    Raises:
        ImportError: Flax is not installed.
    """
    _flax()
    from . import nnx

    return nnx


def library_of_class(kind: type) -> Any:
    """The file here that is for the modules of a class; None where it is no such class."""
    flax = _flax()
    if issubclass(kind, flax.linen.Module):
        return linen()
    return nnx() if issubclass(kind, flax.nnx.Module) else None


def library_of(x: Any) -> Any:
    """The file here that is for a module; None where an object is no module."""
    return library_of_class(type(x))


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
