"""The largest size that fits, found by the bytes of few sizes.

Bytes are nearly linear in a batch or a length, so two sizes say where to look. The bytes of plans
are not: a plan that is needed fills its budget. So the search does not follow a line for long.
"""

from collections.abc import Callable, Mapping

#: The second size is at most so many times the first.
GROWTH = 8
#: A size that takes this share of the budget may have a plan that fills it.
FULL = 0.9


def largest(
    need: Callable[[int], int], limit: int, count: int, step: int, known: dict[int, int]
) -> tuple[int | None, int | None]:
    """The largest size that fits, and the next one.

    Arguments:
        need: size -> bytes.
        limit: bytes that a size may need.
        count: how many sizes there are; they are multiples of `step`.
        step: the smallest size.
        known: size -> bytes, for some sizes.

    Returns:
        None for the first where nothing fits, and for the second where everything does.
    """
    found = {size // step: nbytes for size, nbytes in known.items()}
    while (n := undecided(found, limit, count)) is not None:
        found[n] = need(n * step)
    low, high = ends(found, limit)
    return low * step or None, high and high * step


def undecided(found: Mapping[int, int], limit: int, count: int) -> int | None:
    """The number to try next; None where the largest that fits is known.

    Arguments:
        found: number -> bytes.
        limit: bytes that one may need.
        count: the largest number.
    """
    low, high = ends(found, limit)
    if low == count or (high is not None and high - low == 1):
        return None
    return _next_size(found, limit, low, high or count + 1)


def ends(found: Mapping[int, int], limit: int) -> tuple[int, int | None]:
    """The largest number that fits, or 0, and the smallest one above it that does not."""
    low = max((n for n, nbytes in found.items() if nbytes <= limit), default=0)
    over = [n for n, nbytes in found.items() if nbytes > limit and n > low]
    return low, min(over, default=None)


def _next_size(found: Mapping[int, int], limit: int, low: int, high: int) -> int:
    """The number between `low` and `high`, both excluded, at which a line reaches the limit.

    Where the last two lay on one side of the limit, it is the middle. While there is no upper end,
    it is the number above, which should be that end, and every fourth is twice the lower end. If
    that nearly fills the limit, the end is mostly near, and it is doubled only after four in a row.
    So the search ends soon whatever the bytes.
    """
    last = [nbytes <= limit for nbytes in list(found.values())[-2:]]
    if high in found and len(found) > 2 and len(set(last)) == 1:
        guess = (low + high) // 2
    elif high not in found and _doubles(found, limit, low):
        guess = 2 * low
    elif len(found) < 2:
        guess = 1 if not found else min(GROWTH, limit * max(found) // found[max(found)])
    else:
        a, b = _on_a_line(found, limit)
        rise = found[b] - found[a]
        guess = a + (limit - found[a]) * (b - a) // rise if rise else 2 * low
        guess += high not in found  # the next size up tells more, if not all is linear
    return min(max(guess, low + 1), high - 1)


def _doubles(found: Mapping[int, int], limit: int, low: int) -> bool:
    """Whether the next size is to be twice the lower end."""
    if low in found and found[low] >= FULL * limit:
        return all(n in found for n in range(low - 3, low))
    return len(found) % 4 == 3


def _on_a_line(found: Mapping[int, int], limit: int) -> tuple[int, int]:
    """Two sizes whose bytes are near the limit but do not fill it."""
    over = sorted(n for n, nbytes in found.items() if nbytes > limit)
    below = sorted((n for n, nbytes in found.items() if nbytes < FULL * limit), reverse=True)
    near = sorted(found, key=lambda n: abs(found[n] - limit))
    a, b = [*over[:2], *below[:2], *(n for n in near if n not in {*over, *below})][:2]
    return a, b
