"""Rematerialization planners over plain graphs: bytes and seconds in, a plan out; no JAX."""

from .errors import InfeasibleBudget as InfeasibleBudget
from .errors import InvalidPlan as InvalidPlan
from .errors import PlanningError as PlanningError
from .errors import SolverStopped as SolverStopped
from .graph import Graph as Graph
from .graph import Op as Op
from .graph import Stage as Stage
from .graph import Value as Value
from .plan import Plan as Plan
from .plan import Region as Region
from .plan import plan_from_json as plan_from_json
from .polish import polished as polished
from .polish import saved_bytes as saved_bytes
from .polish import without_change as without_change
from .replay import Replay as Replay
from .replay import replay as replay
from .schedule import Run as Run
from .schedule import runs as runs
from .stages import Stages as Stages
from .stages import save_all as save_all
from .stages import save_nothing as save_nothing
