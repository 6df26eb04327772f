"""Planners by name. Each takes a graph and a budget in bytes and returns a `Schedule`."""

import dataclasses
from typing import Any

import planners

from .schedules.planner import SchedulePlanner

#: Name -> class of `planners` (a dataclass of options, called with a graph and a budget in bytes),
#: and the options that make it that planner.
PLANNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gap": ("Gap", {}),
    "sequence": ("Sequence", {}),
    "sequence_reordered": ("Sequence", {"may_reorder": True}),
    "checkmate": ("Checkmate", {}),
    "monet": ("Monet", {}),
    "checkmate_rounding": ("CheckmateRounding", {}),
    "knapsack": ("Knapsack", {}),
    "rotor": ("Rotor", {}),
    "revolve": ("Revolve", {}),
    "chen_greedy": ("Chen", {"kind": "greedy"}),
    "chen_sqrt": ("Chen", {"kind": "sqrt"}),
    "save_all": ("SaveAll", {}),
    "save_nothing": ("SaveNothing", {}),
}


def planner(name: str, *, time_limit: float) -> SchedulePlanner:
    """The planner of a name.

    Arguments:
        name: of `PLANNERS`.
        time_limit: in seconds; for planners that search.

    Raises:
        ValueError: there is no such planner.
    """
    if name not in PLANNERS:
        raise ValueError(f"unknown planner {name!r}: choose of {', '.join(PLANNERS)}")
    kind, options = PLANNERS[name]
    made = getattr(planners, kind)
    if "time_limit" in {field.name for field in dataclasses.fields(made)}:
        options = {**options, "time_limit": time_limit}
    return made(**options)
