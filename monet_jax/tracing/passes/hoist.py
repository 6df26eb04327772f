"""Loop-invariant code motion: the equations of a loop's body that run once, before the loop.

An example is weights that every iteration would concatenate or cast. XLA moves such work out of a
loop by itself, but not out of an iteration that runs again, whose operands have passed a barrier:
an LSTM that recomputes would concatenate its weights at every step of its backward. Here it runs
before the loop, and once more before the loop's backward. It is kept neither between the two nor by
each iteration.

Only operands of products, convolutions and the like are moved, since a compiler has to materialise
them. It fuses the rest into what reads it (`ir/primitives`): a bias that is broadcast over a batch
is better not in memory at all.
"""

import dataclasses
from collections.abc import Sequence

from ...ir import compat
from ...ir.primitives import Kind, kind_of, must_run_once
from ...ir.program import Equation, Program, dependents, without_dead_code
from ...ir.stage import Stage, active_values
from .draft import Draft


def hoist_invariants(draft: Draft) -> None:
    """Makes the equations that are hoisted a stage of their own, if there are any."""
    body, consts = draft.program, draft.consts
    before, values = hoisted(body, consts) if consts else ((), ())
    if not before:
        return
    active = active_values(body, draft.derivative)
    reads = sorted({i for e in before for i in e.reads}.intersection(consts))
    draft.hoisted = Stage(
        before,
        tuple(reads),
        values,
        tuple(i for i in reads if i in active),
        tuple(i for i in values if i in active),
        hoisted=True,
    )
    written = {*values}
    rest = [e for e in body.equations if written.isdisjoint(e.outputs)]
    draft.program = dataclasses.replace(
        body,
        inputs=(*body.inputs, *values),
        equations=without_dead_code(rest, body.outputs),
        given=body.given | written,
    )


def hoisted(body: Program, consts: Sequence[int]) -> tuple[tuple[Equation, ...], tuple[int, ...]]:
    """The equations of a loop's body that run before the loop, and which of their values it reads.

    Arguments:
        body: the body.
        consts: its inputs that are the same in every iteration.

    Returns:
        Equations, in order, that read nothing but `consts`; and values that they write. No value
        is larger than the constants that it comes from.
    """
    others = {*body.inputs} - {*consts}
    once = [must_run_once(e) for e in body.equations]
    effects = (i for e in body.equations if compat.has_effects(e.eqn) for i in e.reads)
    fixed = (i for e, o in zip(body.equations, once, strict=True) if o for i in e.outputs)
    varying = dependents(body.equations, [*others, *effects, *fixed])
    candidates = (e for e, o in zip(body.equations, once, strict=True) if not o)
    own = [e for e in candidates if not varying.intersection(e.outputs)]
    written = {i for e in own for i in e.outputs}
    solid = (e for e in body.equations if kind_of(e) is Kind.SOLID)
    read = {i for e in solid if varying.intersection(e.outputs) for i in e.reads} & written
    found = tuple(sorted(i for i in read if _is_worth_it(body, own, {*consts}, i)))
    return without_dead_code(own, found), found


def _is_worth_it(body: Program, own: Sequence[Equation], consts: set[int], value: int) -> bool:
    """Whether a value is more than a view of constants, and takes no more bytes than they do."""
    needed = without_dead_code(own, [value])
    sources = consts.intersection(i for e in needed for i in e.reads)
    is_view = all(kind_of(e) is Kind.VIEW for e in needed)
    return not is_view and body.nbytes(value) <= sum(map(body.nbytes, sources))
