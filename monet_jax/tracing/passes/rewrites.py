"""Lists the equations of a jaxpr, and replaces some of them, before the program is cut.

Calls and, where asked for, regions of `jax.checkpoint` are inlined. An operator that needs several
equations at once, as a chunked loss does, sees the program before single equations are replaced.
"""

import dataclasses
import functools

from ...ir.program import Program, Rewrite, flatten, unchanged, with_replaced
from .draft import Listing


def replace_subprograms(listing: Listing) -> Listing:
    """Replaces several equations by one, where an operator does so; or else lists none yet."""
    if listing.derivative_of is None or not listing.changes:
        return listing
    plain = _listed(listing, unchanged)
    derivative = listing.derivative_of(plain)
    changed = functools.reduce(lambda p, change: change(p, derivative), listing.changes, plain)
    is_changed = changed is not plain
    return dataclasses.replace(listing, program=changed, is_changed=is_changed)


def replace_equations(listing: Listing) -> Listing:
    """Replaces single equations, where an operator does so."""
    rewrite = listing.rewrite
    if listing.is_changed:
        program = listing.program
        found = with_replaced(program, [rewrite.equation(e.eqn) for e in program.equations])
        program = dataclasses.replace(found, rewrite=rewrite)
    else:  # listed anew, so that values are numbered in the order in which they are computed
        program = _listed(listing, rewrite)
    return dataclasses.replace(listing, program=program)


def _listed(listing: Listing, rewrite: Rewrite) -> Program:
    """The equations of the jaxpr, and of the calls in it."""
    return flatten(
        listing.jaxpr,
        rewrite=rewrite,
        inline_checkpoints=listing.inlines_checkpoints,
        closed_over=listing.closed_over,
        caller=listing.caller,
    )
