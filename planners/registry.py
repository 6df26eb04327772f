"""Which planners are there, by name?

Each takes a graph and bytes and answers with a `Schedule`. A planner is imported when it is asked
for, since those that solve a program import CVXPY, which takes seconds.
"""

import dataclasses
import importlib
from collections.abc import Callable

from .graph import Graph
from .steps import Schedule

#: Name -> module and class: a dataclass of options, called with a graph and a budget in bytes.
PLANNERS = {
    "gap": "gap:Gap",
    "checkmate": "checkmate:Checkmate",
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
    module, _, attribute = PLANNERS[name].partition(":")
    made = getattr(importlib.import_module(f".{module}", __package__), attribute)
    options = {field.name for field in dataclasses.fields(made)}
    return made(time_limit=time_limit) if "time_limit" in options else made()
