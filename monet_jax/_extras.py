"""Imports modules that need an extra, and says which extra is missing."""

import importlib
from typing import Any


def needing_extra(module: str, extra: str) -> Any:
    """A module of this package that needs packages which are not always installed.

    Raises:
        ModuleNotFoundError: one of them is not; the message says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("monet_jax"):
            raise
        raise ModuleNotFoundError(
            f'`{error.name}` is not installed; run: pip install "monet-jax[{extra}]"'
        ) from error
