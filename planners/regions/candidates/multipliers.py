"""Multipliers on bytes, in seconds per byte, at which stages choose other candidates."""

import itertools as it
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..effects.candidate import Candidate

Singles = Sequence[Sequence[Candidate]]  # for each stage
Bytes = Callable[[Candidate], int]

# Multipliers of either kind for the stages of an interval, beside the least to be saved.
MULTIPLIERS = 2
# Multipliers that differ by less are the same.
_FACTOR = 1.01


def by_multiplier(singles: Singles, multiplier: float, nbytes: Bytes) -> list[Candidate]:
    """For each stage its candidate of least seconds plus `multiplier` per retained byte."""
    return [min(some, key=lambda x: x.seconds + multiplier * nbytes(x)) for some in singles]


def multipliers(singles: Singles, nbytes: Bytes) -> list[float]:
    """Multipliers spread over the range in which stages choose differently.

    Some are quantiles of the seconds per byte between neighbours in the order of bytes. At others
    stages give up more and more of their bytes; each of these lies between two multipliers at which
    stages change their choice: at one, equal stages would differ.
    """
    neighbours, steps = seconds_per_byte(singles, nbytes), _all_steps(singles, nbytes)
    shares = np.linspace(0, 1, MULTIPLIERS + 2)[1:-1]
    found = np.quantile(neighbours, shares).tolist() if neighbours else []
    if not steps:
        return found
    rates, sizes = np.array(sorted(steps)).T
    given_up = sizes.cumsum()
    for share in shares:
        below = rates[np.searchsorted(given_up, share * given_up[-1])]
        above = rates[rates > _FACTOR * below]
        found.append(math.sqrt(below * above[0]) if above.size else _FACTOR * below)
    return list(dict.fromkeys(found))


def seconds_per_byte(singles: Singles, nbytes: Bytes) -> list[float]:
    """Seconds that stages save for each byte, between neighbours in the order of bytes."""
    found = []
    for some in singles:
        front = sorted((nbytes(x), -x.seconds) for x in some)
        steps = np.diff(np.array(front), axis=0)
        found += [gain / size for size, gain in steps.tolist() if size > 0 and gain > 0]
    return found


def _all_steps(singles: Singles, nbytes: Bytes) -> list[tuple[float, int]]:
    """The multipliers at which stages change their choice, and by how many bytes."""
    fronts = ([(nbytes(x), x.seconds) for x in some] for some in singles)
    return [step for front in fronts for step in _steps(front)]


def _steps(points: Iterable[tuple[int, float]]) -> list[tuple[float, int]]:
    """Multipliers at which another of some points costs least, and by how many bytes.

    These are the steps of the points' lower convex hull.

    Arguments:
        points: bytes and seconds of each.
    """
    hull: list[tuple[int, float]] = []
    for point in sorted(points):
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _rate(*hull[-2:]) <= _rate(hull[-1], point):
            hull.pop()
        hull.append(point)
    return [(_rate(a, b), b[0] - a[0]) for a, b in it.pairwise(hull)]


def _rate(a: tuple[int, float], b: tuple[int, float]) -> float:
    """Seconds that are saved for each byte from one point to one of more bytes."""
    return (a[1] - b[1]) / (b[0] - a[0])
