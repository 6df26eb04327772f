"""Lists the equations of a jaxpr, and replaces some of them, before the program is cut.

Calls and, where asked for, regions of `jax.checkpoint` are inlined. An operator that needs several
equations at once, as a chunked loss does, sees the program before single equations are replaced.
"""

import dataclasses
import functools

from ...ir.program import flatten, with_replaced
from .draft import Listing


def inline_calls(listing: Listing) -> Listing:
    """Lists the equations of the jaxpr, and of the calls in it."""
    program = flatten(
        listing.jaxpr,
        inline_checkpoints=listing.inlines_checkpoints,
        closed_over=listing.closed_over,
        caller=listing.caller,
    )
    return dataclasses.replace(listing, program=program)


def replace_subprograms(listing: Listing) -> Listing:
    """Replaces several equations by one, where an operator does so."""
    if listing.derivative_of is None or not listing.changes:
        return listing
    derivative, plain = listing.derivative_of(listing.program), listing.program
    changed = functools.reduce(lambda p, change: change(p, derivative), listing.changes, plain)
    return dataclasses.replace(listing, program=changed, is_changed=changed is not plain)


def replace_equations(listing: Listing) -> Listing:
    """Replaces single equations, where an operator does so."""
    rewrite = listing.rewrite
    if listing.is_changed:
        program = listing.program
        found = with_replaced(program, [rewrite.equation(e.eqn) for e in program.equations])
        program = dataclasses.replace(found, rewrite=rewrite)
    else:  # listed anew, so that values are numbered in the order in which they are computed
        program = flatten(
            listing.jaxpr,
            rewrite=rewrite,
            inline_checkpoints=listing.inlines_checkpoints,
            closed_over=listing.closed_over,
            caller=listing.caller,
        )
    return dataclasses.replace(listing, program=program)
