"""A plan's regions, with the regions of each loop and each conditional together."""

import dataclasses
from collections.abc import Sequence

from planners.plan import Region

from ..tracing.branches import Branch, Choice
from ..tracing.loops import Loop
from ..tracing.origins import value_name, value_number


@dataclasses.dataclass(frozen=True)
class PlannedLoop:
    """A loop, and the regions of its body in each block of iterations."""

    loop: Loop
    blocks: tuple[tuple[Region, ...], ...]


@dataclasses.dataclass(frozen=True)
class PlannedChoice:
    """A choice, and what each of its branches runs."""

    choice: Choice
    branches: tuple[tuple["Part", ...], ...]


Part = Region | PlannedLoop | PlannedChoice


def parts_of(
    regions: Sequence[Region], loops: Sequence[Loop], choices: Sequence[Choice]
) -> list[Part]:
    """The regions of a plan, with the regions of each loop and each choice together."""
    parts: list[Part] = []
    remaining = list(regions)
    for whole in sorted((*loops, *choices), key=lambda whole: whole.first):
        parts += [x for x in remaining if x.first < whole.first]
        own = [x for x in remaining if whole.first <= x.first < whole.stop]
        is_loop = isinstance(whole, Loop)
        parts.append(_planned_loop(whole, own) if is_loop else _planned_choice(whole, own))
        remaining = [x for x in remaining if x.first >= whole.stop]
    return parts + remaining


def _planned_choice(choice: Choice, regions: Sequence[Region]) -> PlannedChoice:
    """A choice with the regions of each branch."""

    def parts(branch: Branch) -> tuple[Part, ...]:
        own = [x for x in regions if branch.first <= x.first < branch.stop]
        return tuple(parts_of(own, (), branch.choices))

    return PlannedChoice(choice, tuple(map(parts, choice.branches)))


def _planned_loop(loop: Loop, regions: Sequence[Region]) -> PlannedLoop:
    """A loop with its regions as if every block were the body itself."""
    blocks: list[list[Region]] = [[] for _ in range(loop.blocks)]
    length = len(loop.stages)
    for region in regions:
        k = (region.first - loop.first) // length
        blocks[k].append(_in_body(region, loop.first + k * length, loop.offsets[k]))
    return PlannedLoop(loop, tuple(map(tuple, blocks)))


def _in_body(region: Region, first: int, offset: int) -> Region:
    """A region of a block, by the body's own stages and values."""
    return Region(
        region.first - first,
        region.last - first,
        tuple(value_name(value_number(name) - offset) for name in region.saved),
        region.alone,
        tuple(_in_body(inner, first, offset) for inner in region.inner),
    )
