"""The tables of a report: every value and stage with its bytes and its decision."""

from collections.abc import Iterable, Sequence

import planners.plan
from planners.graph import Graph
from planners.plan import Region

from ..compiler.budget import format_bytes
from ..ir import compat
from ..operators import representation_name
from ..tracing.staged import StagedProgram
from .record import StageRow, ValueRow


def value_rows(
    staged: StagedProgram, graph: Graph, decisions: planners.plan.Plan | None
) -> tuple[ValueRow, ...]:
    """A row for each value of the forward pass, saved codes included, largest first."""
    decided = _decisions(graph, decisions)
    starts = {loop.first for loop in staged.loops}
    rows = []
    for s, stage in enumerate(graph.stages):
        hoisted = staged.stages[s].hoisted
        if hoisted and s not in starts:
            continue
        for op, i in ((x, i) for x in stage.forward for i in x.outputs):
            value = graph.values[i]
            decision = "recomputed" if hoisted else decided[s](value.name)
            if value.name not in staged.values or (op.optional and decision == "recomputed"):
                continue
            number = staged.values[value.name]
            equation, aval = staged.writer[number], staged.program.avals[number]
            rows.append(
                ValueRow(
                    value.name,
                    staged.program.nbytes(number) * value.copies,
                    decision,
                    representation_name(equation, number),
                    tuple(aval.shape),
                    str(aval.dtype),
                    equation.primitive,
                    str(equation.name_stack),
                    compat.source_of(equation.eqn),
                    s,
                )
            )
    return tuple(sorted(rows, key=lambda row: (-row.nbytes, row.stage, row.name)))


def stage_rows(graph: Graph, decisions: planners.plan.Plan | None) -> tuple[StageRow, ...]:
    """A row for each stage, in order."""
    regions = _regions(graph, decisions)
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


def _regions(graph: Graph, decisions: planners.plan.Plan | None) -> list[Region]:
    """For each stage, the outermost region that covers it."""
    if decisions is None:
        return [Region(s, s, alone=True) for s in range(len(graph.stages))]
    return [r for r in decisions.regions for _ in range(r.first, r.last + 1)]


def _decisions(graph: Graph, decisions: planners.plan.Plan | None) -> Sequence:
    regions = _regions(graph, decisions)
    moved = {name for region in regions for name in region.offloaded}

    def decide(region: Region):
        saved = set(region.saved)

        def decision(name: str) -> str:
            if name in moved:
                return "host"
            return "kept" if region.alone else "saved" if name in saved else "recomputed"

        return decision

    return [decide(region) for region in regions]
