"""Finds the `jax.checkpoint` policies that say what a plan saves, and what they leave unsaid.

A policy says for all iterations of a scan what is saved, so a plan can be told like that where all
iterations are alike. Where the model gives a saved value no `checkpoint_name`, a name is made up.
"""

import collections
import itertools as it
import re
from collections.abc import Iterator, Sequence

from planners.plan import Region

from ..compiler.budget import format_bytes
from ..plans.record import LoopRow, PlanRecord, ValueRow
from .peak import NO_MODULE
from .policies import Policies, Policy, SavedName
from .values import common_path, shorten_source

#: Primitives whose derivative JAX writes with their result. A name is given to a copy of it.
READ_BY_THEIR_DERIVATIVE = frozenset(
    "cbrt exp exp2 logistic reduce_max reduce_min rsqrt sqrt tan tanh".split()
)


def policies_of(plan: PlanRecord) -> Policies:
    """A plan as policies of names."""
    if plan.decisions is None:
        return Policies((), (), ())
    found, said = list[Policy](), list(_never_expressed(plan))
    for loop in plan.loops:
        blocks = _blocks(plan, loop)
        rows = [_saved_in_iteration(plan, regions) for regions in blocks]
        where = f"the scan at {shorten_source(loop.source) or 'an unknown line'}"
        if any(_placed(*x) != _placed(blocks[0], rows[0]) for x in zip(blocks, rows, strict=True)):
            said.append(_uneven(where, loop, rows))
        elif not all(region.alone for region in blocks[0]):
            label = f"Around the body of {where}, {sum(loop.trips)} iterations"
            found.append(Policy(label, True, named(rows[:1])))
            said += _of_body(where, blocks[0])
    found += _of_stages(plan)
    said += [x for policy in found for x in _doubtful(plan, policy)]
    return Policies(tuple(found), tuple(dict.fromkeys(said)))


def named(groups: Sequence[Sequence[ValueRow]]) -> tuple[SavedName, ...]:
    """Names of the values of equal iterations or regions: the model's own, or made-up ones."""
    found: dict[str, SavedName] = {}
    for rows in groups:
        lines = collections.Counter[str]()
        for row in rows:
            line = f"{row.primitive}_{row.source.rpartition(':')[2] or row.name}"
            lines[line] += 1
            nth = f"_{lines[line]}" if lines[line] > 1 else ""
            name = row.checkpoint_name or line + nth
            found.setdefault(name, SavedName(name, bool(row.checkpoint_name), row))
    return tuple(found.values())


# ----------------------------------------------------------------------------------------- loops


def _blocks(plan: PlanRecord, loop: LoopRow) -> list[list[Region]]:
    """The regions of each block of iterations."""
    assert plan.decisions is not None
    regions = plan.decisions.regions
    firsts = range(loop.first, _stop(loop), loop.length)
    return [[x for x in regions if first <= x.first < first + loop.length] for first in firsts]


def _stop(loop: LoopRow) -> int:
    return loop.first + loop.length * len(loop.trips)


def _placed(regions: Sequence[Region], saved: Sequence[ValueRow]) -> tuple:
    """The decisions of an iteration, without names and numbers that tell iterations apart."""
    first = regions[0].first
    spans = [(x.first - first, x.last - first, x.alone, bool(x.inner)) for x in regions]
    return spans, [(row.stage - first, row.place) for row in saved]


def _saved_in_iteration(plan: PlanRecord, regions: Sequence[Region]) -> list[ValueRow]:
    """What one iteration saves, in order, with what its regions pass to one another."""
    span = range(regions[0].first, regions[-1].last + 1)
    return [
        row
        for row in _rows(plan, span)
        if row.decision in ("saved", "kept") or (row.decision == "passed" and row.reader in span)
    ]


def _rows(plan: PlanRecord, span: range) -> list[ValueRow]:
    """The values of some stages that are stored as they are, in order."""
    rows = (row for row in plan.values if row.stage in span and row.operator == "exact")
    return sorted(rows, key=lambda row: (row.stage, row.place))


def _uneven(where: str, loop: LoopRow, rows: Sequence[Sequence[ValueRow]]) -> str:
    """What a scan's iterations save, where they differ."""
    parts = []
    pairs = ((trips, _listed(some)) for trips, some in zip(loop.trips, rows, strict=True))
    for what, same in it.groupby(pairs, lambda pair: pair[1]):
        parts.append(f"{sum(trips for trips, _ in same)} save {what}")
    return (
        f"the iterations of {where} differ ({', then '.join(parts)}), and one policy holds for all "
        'of them. Plan with operators="none", which gives all iterations one plan'
    )


def _listed(rows: Sequence[ValueRow]) -> str:
    return ", ".join(x.name for x in named([rows])) or "nothing"


def _of_body(where: str, regions: Sequence[Region]) -> Iterator[str]:
    """What one policy for a body does not say of its regions."""
    if len(regions) > 1:
        yield (
            f"an iteration of {where} runs again in {len(regions)} parts, one after the other, and "
            "under one `jax.checkpoint` all at once, which takes more memory"
        )
    if any(region.alone for region in regions):
        yield (
            f"parts of {where} are saved whole; a policy saves named values only, and what "
            "derivatives make of them runs again"
        )


# ---------------------------------------------------------------------------- stages outside loops


def _of_stages(plan: PlanRecord) -> Iterator[Policy]:
    """A policy for each kind of region outside of loops: equal stages with equal decisions."""
    assert plan.decisions is not None
    in_loops = {s for loop in plan.loops for s in range(loop.first, _stop(loop))}
    kinds = collections.defaultdict[tuple, list[Region]](list)
    for region in plan.decisions.regions:
        if not region.alone and region.first not in in_loops:
            keys = tuple(plan.stages[s].key or s for s in range(region.first, region.last + 1))
            saved = _saved_in_iteration(plan, [region])
            kinds[keys, *_placed([region], saved)[1]].append(region)
    for same in kinds.values():
        where = f"Around what computes stage {', '.join(map(_span, same))}"
        places = sorted({_place(plan, region) for region in same})
        saved = [_saved_in_iteration(plan, [region]) for region in same]
        yield Policy(f"{where}: {_joined(places)}", False, named(saved))


def _place(plan: PlanRecord, region: Region) -> str:
    """The module of a region; or where the first of its values comes from."""
    title = plan.stages[region.first].title
    rows = _rows(plan, range(region.first, region.last + 1))
    return shorten_source(rows[0].source) if title == NO_MODULE and rows else title


def _span(region: Region) -> str:
    return f"{region.first}-{region.last}" if region.last > region.first else f"{region.first}"


def _joined(titles: Sequence[str]) -> str:
    """Module paths that differ in numbers only as one, others side by side."""
    groups = collections.defaultdict[str, list[str]](list)
    for title in titles:
        groups[re.sub(r"\d+", "*", title)].append(title)
    return ", ".join(map(common_path, groups.values()))


# --------------------------------------------------------------------------- what no policy can say


def _never_expressed(plan: PlanRecord) -> Iterator[str]:
    """What a plan does beyond saving values as they are."""
    assert plan.decisions is not None
    if plan.chunks is not None:
        yield "loops run in chunks, as nested scans, which save their carries between chunks only"
    waiting = [row for row in plan.values if row.decision not in ("recomputed", "unread")]
    codes = [row for row in waiting if row.operator != "exact"]
    if codes:
        size = format_bytes(sum(row.nbytes for row in codes))
        kinds = ", ".join(sorted({row.operator for row in codes}))
        yield f"{size} are saved in compressed form ({kinds}); what they stand for runs again"
    if any(row.decision == "host" for row in plan.values):
        yield f"{format_bytes(plan.decisions.host_bytes)} wait in the host's memory; they run again"
    if any(region.inner for region in plan.decisions.regions):
        yield "regions inside regions, which run again twice"


def _doubtful(plan: PlanRecord, policy: Policy) -> Iterator[str]:
    """Names of a policy by which JAX saves more than the plan, or runs again what it saves."""
    again = [x for x in policy.saved if x.value.primitive in READ_BY_THEIR_DERIVATIVE]
    if again:
        yield (
            f"{', '.join(x.name for x in again)}: JAX's derivative reads the result of "
            f"{', '.join(sorted({x.value.primitive for x in again}))} itself, not the named copy, "
            "and runs it again"
        )
    stages = {x.value.stage for x in policy.saved}
    given = {x.name for x in policy.saved if x.is_given}
    others = {
        row.checkpoint_name
        for row in plan.values
        if row.stage in stages and row.decision in ("recomputed", "unread")
    }
    for name in sorted(given & others):
        yield f"`{name}` also names values that the plan does not save; the policy saves them too"
