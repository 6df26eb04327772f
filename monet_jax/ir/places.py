"""The places of values that have gradients in a list, and replacing values at some places."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from . import compat


def float_places(values: Sequence[Any]) -> list[int]:
    """The places of arrays that have gradients."""
    return [n for n, x in enumerate(values) if compat.is_float(jax.typeof(x))]


def filled(values: Sequence[Any], places: Iterable[int], new: Iterable[Any]) -> list[Any]:
    """The values, those at some places replaced by new ones in the same order."""
    found = list(values)
    for n, x in zip(places, new, strict=True):
        found[n] = x
    return found
