"""Which difference in seconds a search leaves open."""

import planners

#: The share of the time that a search leaves open: planners stop within it (`Stages.gap`).
#: Operators stay where they save as much, for without them tangents may go forward.
WORTH = 1e-3

#: The share of the time of the function as it is that a plan must save to be chosen where both fit.
#: The model errs by so much in the ratio of two programs of a function.
CLEARLY_FASTER = 0.05


def is_free(decisions: planners.Plan, free_seconds: float) -> bool:
    """Whether a plan takes no longer than the fastest of all, by what a search leaves open."""
    return decisions.seconds <= (1 + WORTH) * free_seconds
