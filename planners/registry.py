"""Which planners are there, by name?

Each takes a graph and bytes and answers with a `Schedule`. A planner is imported when it is asked
for, since those that solve a program import CVXPY, which takes seconds.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from .graph import Graph
from .steps import Schedule

#: Name -> module and class (a dataclass of options, called with a graph and a budget in bytes), and
#: the options that make it that planner.
PLANNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gap": ("gap:Gap", {}),
    "sequence": ("sequence:Sequence", {}),
    "sequence_reordered": ("sequence:Sequence", {"may_reorder": True}),
    "checkmate": ("checkmate:Checkmate", {}),
    "monet": ("monet:Monet", {}),
    "checkmate_rounding": ("checkmate_rounding:CheckmateRounding", {}),
    "knapsack": ("knapsack:Knapsack", {}),
    "rotor": ("rotor:Rotor", {}),
    "revolve": ("revolve:Revolve", {}),
    "chen_greedy": ("chen:Chen", {"kind": "greedy"}),
    "chen_sqrt": ("chen:Chen", {"kind": "sqrt"}),
    "save_all": ("extremes:SaveAll", {}),
    "save_nothing": ("extremes:SaveNothing", {}),
}


def planner(name: str, *, time_limit: float) -> Callable[[Graph, int], Schedule]:
    """The planner of a name.

    Arguments:
        name: of `PLANNERS`.
        time_limit: in seconds; for planners that search.

    Raises:
        ValueError: there is no such planner.
    """
    if name not in PLANNERS:
        raise ValueError(f"unknown planner {name!r}: choose of {', '.join(PLANNERS)}")
    place, options = PLANNERS[name]
    module, _, attribute = place.partition(":")
    made = getattr(importlib.import_module(f".{module}", __package__), attribute)
    if "time_limit" in {field.name for field in dataclasses.fields(made)}:
        options = {**options, "time_limit": time_limit}
    return made(**options)
