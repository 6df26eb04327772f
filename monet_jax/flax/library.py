"""The library of a Flax module, Linen or NNX, and the file here that plans its modules."""

from typing import Any

from .._extras import install_command


def name_of(fun: Any) -> str:
    """The name of a function in messages."""
    return getattr(fun, "__qualname__", type(fun).__name__)


def linen() -> Any:
    """The file here for Linen.

    Raises:
        ImportError: Flax is not installed.
    """
    _flax()
    from . import linen

    return linen


def nnx() -> Any:
    """The file here for NNX.

    Raises:
        ImportError: Flax is not installed.
    """
    _flax()
    from . import nnx

    return nnx


def library_of_class(kind: type) -> Any:
    """The file here for a class of modules; None for other classes."""
    flax = _flax()
    if issubclass(kind, flax.linen.Module):
        return linen()
    return nnx() if issubclass(kind, flax.nnx.Module) else None


def library_of(x: Any) -> Any:
    """The file here for a module; None for other objects."""
    return library_of_class(type(x))


def _flax() -> Any:
    # Late, as are our files for its libraries: Flax is an extra, and takes a second to import.
    try:
        import flax
        import flax.linen
        import flax.nnx
    except ImportError as error:
        raise ImportError(
            f"monet_jax.flax needs Flax, which is not installed; run: {install_command('flax')}"
        ) from error
    return flax
