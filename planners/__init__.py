"""Rematerialization planners over plain graphs: bytes and seconds in, a plan out; no JAX.

`Checkmate`, `Gap`, `Monet` and `Sequence` are imported when they are first asked for: those that
solve a program import CVXPY, which takes seconds.
"""

import importlib
import typing

from .checkmate_rounding import CheckmateRounding as CheckmateRounding
from .chen import Chen as Chen
from .errors import InfeasibleBudget as InfeasibleBudget
from .errors import InvalidPlan as InvalidPlan
from .errors import PlanningError as PlanningError
from .errors import SolverStopped as SolverStopped
from .extremes import SaveAll as SaveAll
from .extremes import SaveNothing as SaveNothing
from .graph import Choice as Choice
from .graph import Graph as Graph
from .graph import Loop as Loop
from .graph import Op as Op
from .graph import Stage as Stage
from .graph import Value as Value
from .graph import Variant as Variant
from .knapsack import Knapsack as Knapsack
from .occupancy import Occupant as Occupant
from .occupancy import occupants as occupants
from .plan import Plan as Plan
from .plan import Region as Region
from .plan import plan_from_json as plan_from_json
from .polish import mixtures as mixtures
from .polish import polished as polished
from .polish import saved_bytes as saved_bytes
from .polish import without_change as without_change
from .replay import Replay as Replay
from .replay import replay as replay
from .revolve import Revolve as Revolve
from .rolling import evened as evened
from .rolling import rolled as rolled
from .rotor import Rotor as Rotor
from .schedule import Run as Run
from .schedule import error_of as error_of
from .schedule import runs as runs
from .simple_plans import save_all as save_all
from .simple_plans import save_nothing as save_nothing
from .simple_plans import whole_iterations as whole_iterations
from .stages import Stages as Stages
from .steps import Cost as Cost
from .steps import Execute as Execute
from .steps import Free as Free
from .steps import Schedule as Schedule
from .steps import certified_steps as certified_steps
from .steps import cost_of as cost_of
from .steps import steps_of as steps_of
from .steps import steps_to_json as steps_to_json

if typing.TYPE_CHECKING:
    from .checkmate import Checkmate as Checkmate
    from .gap import Gap as Gap
    from .monet import Monet as Monet
    from .sequence import Sequence as Sequence

_LATE = ("Checkmate", "Gap", "Monet", "Sequence")


def __getattr__(name: str) -> type:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{name.lower()}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
