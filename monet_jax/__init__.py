"""Give it a byte budget; you get the fastest training step that stays within it.

    import monet_jax

    @monet_jax.remat(budget="12GiB")
    def loss(params, batch): ...

Start with `remat`; `plan` shows what it would do, on any target, with no device attached.
"""

from . import debug as debug
from . import flax as flax
from ._api import PlanningWarning as PlanningWarning
from ._api import apply as apply
from ._api import plan as plan
from ._api import remat as remat
from ._plan import Plan as Plan
from ._plan import load_plan as load_plan
from ._version import __version__ as __version__
from .compiler.compile import CompiledBytes as CompiledBytes
from .compiler.compile import CompilerDied as CompilerDied
from .compiler.compile import CompilerFailed as CompilerFailed
from .compiler.compile import compiled_bytes as compiled_bytes
from .compiler.targets import TargetUnavailable as TargetUnavailable
from .planning.failures import BadArgument as BadArgument
from .planning.failures import InfeasibleBudget as InfeasibleBudget
from .plans.multihost import FirstProcessFailed as FirstProcessFailed
from .plans.record import PlanMismatch as PlanMismatch
from .report.policies import Policies as Policies
from .report.policies import Policy as Policy
from .report.policies import SavedName as SavedName
from .step.donation import DonationReport as DonationReport
from .step.donation import DonationRow as DonationRow
from .step.donation import donation_report as donation_report
from .step.jit import jit as jit
from .step.marks import grad as grad
from .step.marks import linearize as linearize
from .step.marks import value_and_grad as value_and_grad
from .step.marks import vjp as vjp
from .step.step_plan import StepPlan as StepPlan
from .step.timeline.step_timeline import LiveValue as LiveValue
from .step.timeline.step_timeline import Moment as Moment
from .step.timeline.step_timeline import StepTimeline as StepTimeline
from .tools.check import Check as Check
from .tools.check import check as check
from .tools.compare import compare as compare
from .tools.diff import Change as Change
from .tools.diff import PlanDiff as PlanDiff
from .tools.diff import ValueChange as ValueChange
from .tools.diff import diff as diff
from .tools.fit import fit as fit
from .tools.fit_result import Fit as Fit
from .tools.fit_result import FitSize as FitSize
from .tools.sizes.accumulation_result import AccumulatedFit as AccumulatedFit
from .tools.sizes.accumulation_result import AccumulatedSize as AccumulatedSize
from .tools.sweep import sweep as sweep
from .tools.sweep_points import SweepPoint as SweepPoint
from .tools.sweep_result import Sweep as Sweep
from .tools.sweep_result import load_sweep as load_sweep
from .tools.warm import warm as warm
