"""Looks below the budget for faster steps, where memory takes time to be touched.

A device without a pool of memory gives a step its temporaries anew, and each page of them is filled
with zeros when it is first touched. There a step takes the seconds of its ops and seconds for each
byte of temporaries. What ops take at least for a limit is what a planner finds; so the sum is least
for one of the limits below the budget.
"""

from collections.abc import Sequence

from .spaces import Space, propose

#: Shares of the budget that are tried. Between neighbours the sum differs by a sixth of what all
#: temporaries take to be touched, at most.
SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)


def fastest_limit(spaces: Sequence[Space], limit: int) -> int:
    """The limit on temporaries at which a step should be fastest; `limit` where none is faster.

    Arguments:
        spaces: of plans.
        limit: bytes for temporaries.

    Raises:
        CapReached: there is no time left.
    """
    rate = spaces[0].plans.judge.touch_seconds_per_byte
    if not rate:
        return limit
    aims = [int(share * limit) for share in SHARES]
    found = [(propose(spaces, aim), aim) for aim in aims]
    seconds = {aim: x.seconds + rate * x.predicted_bytes for x, aim in found if x is not None}
    return min(seconds, key=lambda aim: seconds[aim], default=limit)
