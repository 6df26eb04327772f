"""The tables of a report: every value and stage with its bytes and its decision."""

import dataclasses
from collections.abc import Iterable

import planners.plan
from planners.graph import Graph, Value
from planners.plan import Region

from ..compiler.budget import format_bytes
from ..ir import compat
from ..ir.program import device_nbytes
from ..operators import representation_name
from ..tracing.staged import StagedProgram
from ..tracing.traced import Traced
from .decisions import Decisions
from .record import FixedRow, LoopRow, StageRow, ValueRow


def value_rows(
    staged: StagedProgram, graph: Graph, decisions: planners.plan.Plan | None
) -> tuple[ValueRow, ...]:
    """A row for each value of the forward pass, saved codes included, largest first."""
    decided = Decisions(graph, _outermost(graph, decisions))
    starts = {loop.first for loop in staged.loops}
    rows = []
    for s, stage in enumerate(graph.stages):
        hoisted = staged.stages[s].hoisted
        if hoisted and s not in starts:
            continue
        written = ((x, i) for x in stage.forward for i in x.outputs)
        for place, (op, i) in enumerate(written):
            value = graph.values[i]
            decision = "recomputed" if hoisted else decided.of(s, i)
            is_left_out = op.optional and decision in ("recomputed", "unread")
            if value.name in staged.values and not is_left_out:
                row = _value_row(staged, value, decision, (s, place))
                seconds = decided.recompute_seconds(s, i)
                costs = {"reader": decided.reader(i), "recompute_seconds": seconds}
                rows.append(dataclasses.replace(row, **costs))
    return tuple(sorted(rows, key=lambda row: (-row.nbytes, row.stage, row.name)))


def _value_row(
    staged: StagedProgram, value: Value, decision: str, where: tuple[int, int]
) -> ValueRow:
    """The row of a value: its decision, and its stage with its place there."""
    number = staged.values[value.name]
    equation, aval = staged.writer[number], staged.program.avals[number]
    return ValueRow(
        value.name,
        staged.program.nbytes(number) * value.copies,
        decision,
        representation_name(equation, number),
        tuple(aval.shape),
        str(aval.dtype),
        equation.primitive,
        str(equation.name_stack),
        compat.source_of(equation.eqn),
        *where,
        next(iter(staged.checkpoint_names.get(number, ())), ""),
    )


def stage_rows(graph: Graph, decisions: planners.plan.Plan | None) -> tuple[StageRow, ...]:
    """A row for each stage, in order."""
    regions = Decisions(graph, _outermost(graph, decisions)).by_stage
    index = graph.index
    return tuple(
        StageRow(
            stage.name,
            "alone" if region.alone else "nested" if region.inner else "checkpoint",
            sum(
                graph.values[index[name]].waiting_bytes
                for name in region.saved
                if any(index[name] in op.outputs for op in stage.forward)
            ),
            sum(
                graph.values[index[name]].waiting_bytes
                for name in region.offloaded
                if graph.values[index[name]].reader == s
            ),
            stage.key or "",
        )
        for s, (stage, region) in enumerate(zip(graph.stages, regions, strict=True))
    )


def fixed_rows(traced: Traced, fixed_bytes: int) -> tuple[FixedRow, ...]:
    """The parts of the bytes of arguments and results."""
    program = traced.program
    read = {i for equation in program.equations for i in equation.reads}
    sizes = {True: 0, False: 0}
    for i, aval in zip(program.inputs, traced.avals, strict=True):
        if i in read:  # XLA is not given the others
            sizes[i in traced.derivative.inputs] += device_nbytes(aval)
    rows = (
        FixedRow("arguments that are differentiated", sizes[True]),
        FixedRow("other arguments", sizes[False]),
        FixedRow("results and gradients", fixed_bytes - sum(sizes.values())),
    )
    return tuple(row for row in rows if row.nbytes > 0)


def describe_values(staged: StagedProgram, names: Iterable[str]) -> str:
    """Values with sizes and source lines, for a message."""
    parts = []
    for name in names:
        number = staged.values[name]
        equation = staged.writer[number]
        where = compat.source_of(equation.eqn) or "unknown source"
        size = format_bytes(staged.program.nbytes(number))
        shape = staged.program.avals[number].str_short()
        parts.append(f"`{equation.primitive}` {shape} ({size}) at {where}")
    return "; ".join(parts) or "gradients only"


def loop_rows(staged: StagedProgram) -> tuple[LoopRow, ...]:
    """A row for each loop whose iterations are stages."""
    return tuple(
        LoopRow(compat.source_of(loop.equation.eqn), loop.first, len(loop.stages), loop.trips)
        for loop in staged.loops
    )


def _outermost(graph: Graph, decisions: planners.plan.Plan | None) -> tuple[Region, ...]:
    """The regions of a plan; where there is none, every stage is left alone."""
    if decisions is None:
        return tuple(Region(s, s, alone=True) for s in range(len(graph.stages)))
    return decisions.regions
