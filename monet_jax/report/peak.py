"""What is in memory at the peak of a timeline: by value, and by module and kind."""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ..plans.record import StageRow, ValueRow
from ..plans.timeline import KINDS, Band, Timeline
from .values import common_path, shorten_source

#: Module of values whose model gives none, and of those too small to be named.
NO_MODULE, SMALL_VALUES = "(no module)", "(small values)"
#: Rows of a table; the others are summed in one.
_ROWS = 14


class Tables(Protocol):
    """What has the tables of a report, as a plan."""

    @property
    def values(self) -> Sequence[ValueRow]:
        """The values of the forward pass."""
        ...

    @property
    def stages(self) -> Sequence[StageRow]:
        """The stages in order."""
        ...


@dataclasses.dataclass(frozen=True)
class PeakValue:
    """A value, or several of equal layers, in memory at the peak.

    Attributes:
        kind: of `KINDS`.
        nbytes: of all of them.
        count: how many they are.
        label: name and type of one of them.
        module: its module path, with `*` for numbers that differ.
        source: `file:line`.
    """

    kind: str
    nbytes: int
    count: int
    label: str
    module: str
    source: str


@dataclasses.dataclass(frozen=True)
class ModuleBytes:
    """Bytes at the peak of one module.

    Attributes:
        module: its path, with `*` for numbers that differ.
        by_kind: kind -> bytes.
    """

    module: str
    by_kind: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Of all kinds."""
        return sum(self.by_kind.values())


def values_at_peak(plan: Tables, timeline: Timeline) -> list[PeakValue]:
    """The values in memory at the peak, largest first; equal ones of equal layers are one."""
    rows, shown = {row.name: row for row in plan.values}, _shown_paths(plan)
    groups: dict[tuple[str, ...], list[Band]] = collections.defaultdict(list)
    for band in _bands(timeline):
        label, source = _label(band, rows), _source(band, rows)
        module = shown(_module(band, plan, rows))
        groups[band.kind, module, source, label.partition(" ")[2]].append(band)
    found = [
        PeakValue(
            kind, sum(b.nbytes for b in bands), len(bands), _label(bands[0], rows), module, source
        )
        for (kind, module, source, _), bands in groups.items()
    ]
    return sorted(found, key=lambda value: -value.nbytes)[:_ROWS]


def modules_at_peak(plan: Tables, timeline: Timeline) -> list[ModuleBytes]:
    """Bytes at the peak by module and kind, largest module first."""
    rows, shown = {row.name: row for row in plan.values}, _shown_paths(plan)
    sums: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for band in _bands(timeline):
        sums[shown(_module(band, plan, rows))][band.kind] += band.nbytes
    for kind, nbytes in timeline.rest:
        if nbytes[timeline.peak]:
            sums[SMALL_VALUES][kind] += nbytes[timeline.peak]
    made = sorted((ModuleBytes(m, dict(s)) for m, s in sums.items()), key=lambda row: -row.nbytes)
    return [*made[:_ROWS], *_sum_of(made[_ROWS:])]


def kinds_at_peak(modules: list[ModuleBytes]) -> list[str]:
    """The kinds that some module has, in the order of a chart."""
    return [kind for kind in KINDS if any(row.by_kind.get(kind) for row in modules)]


def _sum_of(rows: list[ModuleBytes]) -> Iterator[ModuleBytes]:
    if rows:
        total: collections.Counter[str] = collections.Counter()
        for row in rows:
            total.update(row.by_kind)
        yield ModuleBytes(f"({len(rows)} more modules)", dict(total))


def _bands(timeline: Timeline) -> Iterator[Band]:
    at = timeline.peak
    return (band for band in timeline.bands if band.start <= at <= band.stop)


def _module(band: Band, plan: Tables, rows: dict[str, ValueRow]) -> str:
    """The module of a value; else that of its stage, or of what the stage saves beside."""
    row = rows.get(band.name)
    path = row.path if row else "" if band.name else band.op
    if not path and band.stage < len(plan.stages):
        path = plan.stages[band.stage].title
    return path or NO_MODULE


def _shown_paths(plan: Tables) -> Callable[[str], str]:
    """The path of a module -> that of all modules which differ from it in numbers only."""
    known = {row.path for row in plan.values} | {row.title for row in plan.stages}
    groups: dict[str, set[str]] = collections.defaultdict(set)
    for path in known:
        groups[re.sub(r"\d+", "*", path)].add(path)

    def shown(path: str) -> str:
        return common_path(groups.get(re.sub(r"\d+", "*", path), {path}))

    return shown


def _label(band: Band, rows: dict[str, ValueRow]) -> str:
    row = rows.get(band.name)
    if row is not None:
        return f"{row.name} {row.dtype}[{','.join(map(str, row.shape))}]"
    if band.name:
        return f"{band.name} written by {band.op}"
    return f"workspace of {band.op}" if band.kind == "workspace" else "other residuals of its stage"


def _source(band: Band, rows: dict[str, ValueRow]) -> str:
    row = rows.get(band.name)
    return shorten_source(row.source if row is not None else band.source)
