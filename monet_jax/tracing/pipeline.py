"""From a jaxpr to a staged program: every pass, in the order in which they run.

The same list serves the bodies of loops and the branches of conditionals, which pass through it
when they are listed; `places` says where a pass applies.
"""

from ..ir.program import Program
from ..ir.stage import Differentiation
from .passes.branches import list_branches
from .passes.draft import Draft, Listing, Passes, Place, ProgramPass, StagePass
from .passes.hoist import hoist_invariants
from .passes.loops import unroll_loops
from .passes.nested_scans import nest_scans
from .passes.partition import cut_into_stages
from .passes.rewrites import replace_equations, replace_subprograms
from .passes.stage_rewrites import compress_residuals, rewrite_stages
from .staged import StagedProgram

PASSES = Passes(
    program=(
        ProgramPass("replace several equations by one", replace_subprograms),
        ProgramPass("list all equations, and replace single ones", replace_equations),
    ),
    stages=(
        StagePass("run loops as nested scans", nest_scans, [Place.FUNCTION]),
        StagePass("hoist loop invariants", hoist_invariants, [Place.BODY]),
        StagePass("cut into stages", cut_into_stages),
        StagePass("rewrite stages", rewrite_stages),
        StagePass("compress residuals", compress_residuals),
        StagePass("list branches", list_branches),
        StagePass("unroll loops into blocks", unroll_loops, [Place.FUNCTION]),
    ),
)


def list_program(listing: Listing) -> Program:
    """The flat program of a jaxpr."""
    return PASSES.listed(listing)


def stage(
    program: Program,
    derivative: Differentiation,
    nested_lengths: tuple[int, ...] | None = None,
) -> StagedProgram:
    """A flat program in stages.

    Arguments:
        program: the program.
        derivative: what is planned for.
        nested_lengths: iterations of inner scans, for each `scan` of the program in order; 0 where
            a loop stays as it is. None where all do.
    """
    return PASSES.staged(Draft(program, derivative, Place.FUNCTION, PASSES, nested_lengths))
