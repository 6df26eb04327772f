"""What sets a function apart from the one that a plan was made for, in words."""

from collections.abc import Sequence

from ..ir import compat
from ..ir.fingerprint import difference, has_program_hash, summary
from ..tracing.staged import StagedProgram
from ..tracing.traced import Traced
from .record import PlanRecord, ValueRow


def mismatch(traced: Traced, plan: PlanRecord) -> str:
    """What a plan was made for, where that is not the traced function as it is cut; else "".

    A plan without decisions is of no stages: its function runs as it is.
    """
    if not has_program_hash(plan.fingerprint, traced.program_hash):
        now, then = summary(traced.program), (plan.inputs, plan.equations)
        is_alike = now[0] == then[0]
        first = _first_difference(traced.staged(), plan.values) if is_alike else ""
        return f"another function: {difference(now, then)}{first}"
    if plan.decisions is None:
        return ""
    staged = traced.staged(plan.chunks)
    if staged.fingerprint == plan.fingerprint:
        return ""
    return (
        f"the same program, cut into other stages ({len(staged.stages)} here, "
        f"{len(plan.stages)} then), by another version of monet_jax"
        f"{_first_difference(staged, plan.values)}"
    )


def _first_difference(staged: StagedProgram, rows: Sequence[ValueRow]) -> str:
    """The first value in which a program differs from a plan's, in words; "" without one."""
    order = {name: n for n, name in enumerate(staged.values)}
    for row in sorted(rows, key=lambda row: (row.stage, order.get(row.name, len(order)))):
        was = f"`{row.primitive}` {row.dtype}{list(row.shape)} of {row.source or 'no known line'}"
        value = staged.values.get(row.name)
        if value is None:
            return f"; the plan's {was} is not in stage {row.stage} any more"
        equation, aval = staged.writer[value], staged.program.avals[value]
        now = equation.primitive, tuple(aval.shape), str(aval.dtype)
        if now != (row.primitive, row.shape, row.dtype):
            here = compat.source_of(equation.eqn) or "no known line"
            found = f"`{equation.primitive}` {aval.dtype}{list(aval.shape)} of {here}"
            return f"; first, {found} stands where the plan has {was}"
    return ""
