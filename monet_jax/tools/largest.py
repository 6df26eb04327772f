"""Which is the largest size that fits, by asking about few of them?

Bytes are all but linear in a batch or a length, so that two sizes say where to look. Those of plans
are not where a plan is needed: it fills the room. So what a line says is not followed for long.
"""

from collections.abc import Callable, Mapping

#: The second size is at most so many times the first.
GROWTH = 8
#: What takes this share of the room may be a plan that fills it.
FULL = 0.9


def largest(
    need: Callable[[int], int], room: int, count: int, step: int, known: dict[int, int]
) -> tuple[int | None, int | None]:
    """The largest size that fits, and the next one.

    Arguments:
        need: size -> bytes.
        room: bytes that there are.
        count: how many sizes there are; they are multiples of `step`.
        step: the smallest size.
        known: what is needed at some sizes.

    Returns:
        None for the first where nothing fits, and for the second where everything does.
    """
    found = {size // step: nbytes for size, nbytes in known.items()}
    while True:
        low = max((n for n, nbytes in found.items() if nbytes <= room), default=0)
        over = [n for n, nbytes in found.items() if nbytes > room and n > low]
        high = min(over, default=None)
        if low == count or (high is not None and high - low == 1):
            return low * step or None, high and high * step
        n = _next_size(found, room, low, high or count + 1)
        found[n] = need(n * step)


def _next_size(found: Mapping[int, int], room: int, low: int, high: int) -> int:
    """A number between `low` and `high`, both left out: where a line says that room ends.

    Where the last two lay on the same side of it, the middle; and while there is no upper end,
    every fourth is twice the lower one: so the search ends soon whatever the bytes.
    """
    last = [nbytes <= room for nbytes in list(found.values())[-2:]]
    if high in found and len(found) > 2 and len(set(last)) == 1:
        guess = (low + high) // 2
    elif high not in found and len(found) % 4 == 3:
        guess = 2 * low
    elif len(found) < 2:
        guess = 1 if not found else min(GROWTH, room * max(found) // found[max(found)])
    else:
        a, b = _on_a_line(found, room)
        local_derivative = found[b] - found[a]
        guess = a + (room - found[a]) * (b - a) // local_derivative if local_derivative else 2 * low
    return min(max(guess, low + 1), high - 1)


def _on_a_line(found: Mapping[int, int], room: int) -> tuple[int, int]:
    """Two sizes whose bytes are near the room, but are not what fills it."""
    over = sorted(n for n, nbytes in found.items() if nbytes > room)
    below = sorted((n for n, nbytes in found.items() if nbytes < FULL * room), reverse=True)
    near = sorted(found, key=lambda n: abs(found[n] - room))
    a, b = [*over[:2], *below[:2], *(n for n in near if n not in {*over, *below})][:2]
    return a, b
