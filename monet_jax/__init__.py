"""Fits JAX training into memory: a byte budget in, the fastest program that keeps it out.

    import monet_jax

    @monet_jax.remat(budget="12GiB")
    def loss(params, batch): ...

Start with `remat`; `plan` shows what it would do, on any target, with no device attached.
"""

from . import flax as flax
from ._api import PlanningWarning as PlanningWarning
from ._api import apply as apply
from ._api import plan as plan
from ._api import remat as remat
from ._check import Check as Check
from ._check import check as check
from ._compile import CompiledBytes as CompiledBytes
from ._compile import CompilerDied as CompilerDied
from ._compile import compiled_bytes as compiled_bytes
from ._diff import Change as Change
from ._diff import PlanDiff as PlanDiff
from ._diff import ValueChange as ValueChange
from ._diff import diff as diff
from ._fit import fit as fit
from ._fit_result import Fit as Fit
from ._fit_result import FitSize as FitSize
from ._plan import Plan as Plan
from ._plan import load_plan as load_plan
from ._record import PlanMismatch as PlanMismatch
from ._settle import InfeasibleBudget as InfeasibleBudget
from ._sweep import sweep as sweep
from ._sweep_points import SweepPoint as SweepPoint
from ._sweep_result import Sweep as Sweep
from ._sweep_result import load_sweep as load_sweep
from ._targets import TargetUnavailable as TargetUnavailable
from ._version import __version__ as __version__
