"""Rematerialization planners over plain graphs: bytes and seconds in, a plan out; no JAX.

`Checkmate`, `Gap`, `Monet` and `Sequence` are imported at first use: planners that solve a program
import CVXPY, which takes seconds.
"""

import importlib
import typing

from .emission import EmittedSchedules as EmittedSchedules
from .emission import NotEmittable as NotEmittable
from .errors import InfeasibleBudget as InfeasibleBudget
from .errors import InvalidPlan as InvalidPlan
from .errors import PlanningError as PlanningError
from .errors import SolverStopped as SolverStopped
from .graph import Choice as Choice
from .graph import Graph as Graph
from .graph import Implementation as Implementation
from .graph import Loop as Loop
from .graph import Op as Op
from .graph import Stage as Stage
from .graph import Value as Value
from .occupancy import Occupant as Occupant
from .occupancy import occupants as occupants
from .plan import Plan as Plan
from .plan import Region as Region
from .plan import plan_from_json as plan_from_json
from .published.checkmate_rounding import CheckmateRounding as CheckmateRounding
from .published.chen import Chen as Chen
from .published.knapsack import Knapsack as Knapsack
from .published.revolve import Revolve as Revolve
from .published.rotor import Rotor as Rotor
from .regions.iterations import rolled as rolled
from .regions.iterations import with_uniform_blocks as with_uniform_blocks
from .regions.local_search import crossovers as crossovers
from .regions.local_search import polished as polished
from .regions.local_search import saved_bytes as saved_bytes
from .regions.planner import BadPlanner as BadPlanner
from .regions.planner import PreparedPlanner as PreparedPlanner
from .regions.planner import RegionPlanner as RegionPlanner
from .regions.simple_plans import save_all as save_all
from .regions.simple_plans import save_nothing as save_nothing
from .regions.simple_plans import whole_iterations as whole_iterations
from .regions.stages import Stages as Stages
from .replay import Replay as Replay
from .replay import replay as replay
from .runs import Run as Run
from .runs import error_of as error_of
from .runs import runs as runs
from .schedules.extremes import SaveAll as SaveAll
from .schedules.extremes import SaveNothing as SaveNothing
from .schedules.planner import SchedulePlanner as SchedulePlanner
from .schedules.steps import Cost as Cost
from .schedules.steps import Execute as Execute
from .schedules.steps import Free as Free
from .schedules.steps import Schedule as Schedule
from .schedules.steps import certified_steps as certified_steps
from .schedules.steps import cost_of as cost_of
from .schedules.steps import steps_of as steps_of
from .schedules.steps import steps_to_json as steps_to_json

if typing.TYPE_CHECKING:
    from .published.checkmate import Checkmate as Checkmate
    from .published.monet import Monet as Monet
    from .schedules.gap import Gap as Gap
    from .schedules.sequence import Sequence as Sequence

_LATE = {
    "Checkmate": "published.checkmate",
    "Gap": "schedules.gap",
    "Monet": "published.monet",
    "Sequence": "schedules.sequence",
}


def __getattr__(name: str) -> type:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
