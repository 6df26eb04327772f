"""The plain program under XLA:GPU's own rematerialization, its memory capped at a budget."""

from typing import Any

from ...compiler.compile import CompiledBytes, compile_bytes
from ...compiler.targets import Target
from ...planning.step import step_to_compile
from ...seconds.compiled import total_seconds
from ...tracing.traced import Traced
from .fields import estimates_of
from .rows import Row
from .xla_remat import capped

#: Caps tried for a budget: the budget itself, then less by what the program exceeded it by. XLA's
#: limit counts less than the compiled program takes, so a user would lower it like that.
CAPS = 2


def compile_capped(
    traced: Traced, target: Target, budget_bytes: int, plain: CompiledBytes
) -> CompiledBytes:
    """The plain program as XLA:GPU compiles it for a card of less memory.

    Args:
        traced: the loss.
        target: the card.
        budget_bytes: what the program may take, arguments and results included.
        plain: the program as compiled without XLA's rematerialization.

    Returns:
        The first program that keeps the budget, or the smallest of those compiled.
    """
    step = step_to_compile(traced, traced.flat)
    made: list[CompiledBytes] = []
    cap = budget_bytes
    while len(made) < CAPS and cap > 0:
        there = capped(target, cap, plain)
        made.append(compile_bytes(*step, target=there, xla_remat=True))
        if made[-1].total_bytes <= budget_bytes:
            return made[-1]
        cap -= made[-1].total_bytes - budget_bytes
    return min(made, key=lambda figures: figures.total_bytes)


def capped_fields(figures: CompiledBytes, budget_bytes: int, plain: Row) -> dict[str, Any]:
    """The fields of its row.

    Args:
        figures: what `compile_capped` returned.
        budget_bytes: the cap.
        plain: the row of the plain program. Its share of estimated FLOPs counts for the capped one
            as well, whose recomputation no trace shows: XLA repeats instructions of the same kinds.
    """
    fields: dict[str, Any] = {
        "budget_bytes": budget_bytes,
        "total_bytes": figures.total_bytes,
        "temp_bytes": figures.temp_bytes,
        "used": figures.total_bytes / budget_bytes,
    }
    if figures.estimates:
        fields["estimated_seconds"] = total_seconds(estimates_of(figures))
        fields["estimated_share"] = plain.estimated_share
    return fields
