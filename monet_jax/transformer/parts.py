"""A plan's regions, with the regions of each loop and each conditional together."""

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence

from planners.plan import Region

from ..tracing.conditionals import Branch, Choice
from ..tracing.staged import Loop, StagedProgram


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


def parts_of(staged: StagedProgram, regions: Sequence[Region]) -> list[Part]:
    """The regions of a plan, with the regions of each loop and each choice together."""
    return _parts(staged, regions, (*staged.loops, *staged.choices))


def _parts(
    staged: StagedProgram, regions: Sequence[Region], wholes: Iterable[Loop | Choice]
) -> list[Part]:
    parts: list[Part] = []
    remaining = list(regions)
    for whole in sorted(wholes, key=lambda whole: whole.first):
        parts += [x for x in remaining if x.first < whole.first]
        own = [x for x in remaining if whole.first <= x.first < whole.stop]
        if isinstance(whole, Loop):
            parts.append(_planned_loop(staged, whole, own))
        else:
            parts.append(_planned_choice(staged, whole, own))
        remaining = [x for x in remaining if x.first >= whole.stop]
    return parts + remaining


def _planned_choice(
    staged: StagedProgram, choice: Choice, regions: Sequence[Region]
) -> PlannedChoice:
    """A choice with the regions of each branch."""

    def parts(branch: Branch) -> tuple[Part, ...]:
        own = [x for x in regions if branch.first <= x.first < branch.stop]
        return tuple(_parts(staged, own, branch.choices))

    return PlannedChoice(choice, tuple(map(parts, choice.branches)))


def _planned_loop(staged: StagedProgram, loop: Loop, regions: Sequence[Region]) -> PlannedLoop:
    """A loop with its regions as if every block were the body itself."""
    length, blocks = len(loop.stages), list[tuple[Region, ...]]()
    for k in range(loop.blocks):
        first, names = loop.first + k * length, staged.names_in_body(loop, k)
        own = (x for x in regions if first <= x.first < first + length)
        blocks.append(tuple(_in_body(region, first, names) for region in own))
    if _alike_but_for(loop.carried_inputs, *blocks[:2]):
        blocks[0] = blocks[1]
    return PlannedLoop(loop, tuple(blocks))


def _alike_but_for(names: Container[str], *blocks: Sequence[Region]) -> bool:
    """Whether blocks are the same but for moves to the host of some values.

    What is carried into a loop may be no value of the plan, but an argument. It goes the way of
    what is carried into the later iterations: otherwise the first would be a loop of its own.
    """

    def without(region: Region) -> Region:
        moved = tuple(name for name in region.offloaded if name not in names)
        ahead = region.ahead if moved else 0
        return dataclasses.replace(region, offloaded=moved, ahead=ahead)

    return len({tuple(map(without, block)) for block in blocks}) == 1 and len(blocks) > 1


def _in_body(region: Region, first: int, names: Mapping[str, str]) -> Region:
    """A region of a block, by the body's own stages and values."""
    return Region(
        region.first - first,
        region.last - first,
        tuple(names[name] for name in region.saved),
        region.alone,
        tuple(_in_body(inner, first, names) for inner in region.inner),
        tuple(names[name] for name in region.offloaded),
        region.ahead,
    )
