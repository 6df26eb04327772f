"""The programs of a sweep, and the costs of each."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """A program of the step.

    Attributes:
        program: "plain", "jax.checkpoint: dots", ..., or "planned".
        kind: "plain", "baseline" or "planned".
        budget_bytes: of a planned one; None for others.
        total_bytes: as compiled, XLA's own rematerialization off; None where it failed.
        temp_bytes: the temporaries of it.
        seconds: of a step, by a roofline of the target.
        flops: of products and convolutions, of a step.
        error: why it failed; "" where it did not.
    """

    program: str
    kind: str
    budget_bytes: int | None = None
    total_bytes: int | None = None
    temp_bytes: int | None = None
    seconds: float | None = None
    flops: int | None = None
    error: str = ""


def of_kind(points: Sequence[SweepPoint], kind: str) -> tuple[SweepPoint, ...]:
    """The programs of one kind that did not fail."""
    return tuple(p for p in points if p.kind == kind and not p.error)
