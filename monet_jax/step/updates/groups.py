"""Finds the updates of a step in its program, by the dataflow from gradients to results.

A gradient is what a backward pass writes and the rest of the step reads. Results belong to the
gradients that reach them through arrays: small values, as a global norm, join nothing. Results that
share a gradient are one update.
"""

import dataclasses
import itertools as it
from collections.abc import Collection, Iterable, Mapping, Sequence

from ...ir import compat
from ...ir.program import Equation, Program, aval_nbytes, flatten, mutable_references
from ..timeline.liveness import BACKWARD, BOTH, OUTSIDE, part_of

#: In bytes: smaller values join no results, and their updates are not ordered. A norm takes 4, a
#: norm for each of a thousand leaves 4,000; a bias that is left out takes less than a page of a
#: thousandth of a device. Half or double of it changed nothing in the steps of the tests.
SMALL = 2**14
_VIEWS = {"convert_element_type", "reshape", "transpose", "squeeze", "copy", "optimization_barrier"}


@dataclasses.dataclass(frozen=True)
class Update:
    """An update: of a parameter in most steps, with its optimizer's state.

    Attributes:
        gradients: value numbers of what it takes from backward passes.
        results: positions of its results among those of the step.
        position: of the equation that computes the last of its gradients, casts left out; behind
            that of a `shard_map`, the one of the equation inside.
    """

    gradients: tuple[int, ...]
    results: tuple[int, ...]
    position: tuple[int, ...]


def updates_of(program: Program) -> tuple[Update, ...]:
    """The updates of a step, in the order in which their gradients are there.

    None of a program with effects, or with mutable references, which must run in its own order.
    """
    if mutable_references(program) or any(compat.has_effects(e.eqn) for e in program.equations):
        return ()
    parts = [part_of(equation) for equation in program.equations]
    joined = _Joined()
    sources = _gradients(program, parts)
    reached = _reached(program, parts, sources)
    for found in map(reached.get, _values(program.outputs)):
        joined.join(found or ())
    members: dict[int, tuple[list[int], list[int]]] = {}
    for source in sources:
        members.setdefault(joined.root(source), ([], []))[0].append(source)
    for n, value in enumerate(program.outputs):
        if isinstance(value, int) and (found := reached.get(value)):
            members[joined.root(next(iter(found)))][1].append(n)
    computed = _computed(program)
    updates = (
        Update(tuple(gradients), tuple(results), max(computed[i] for i in gradients))
        for gradients, results in members.values()
        if results
    )
    return tuple(sorted(updates, key=lambda update: (update.position, update.results)))


def is_large(program: Program, value: int) -> bool:
    """Whether a value is an array that joins results."""
    return aval_nbytes(program.avals[value]) >= SMALL


def _values(atoms: Iterable[object]) -> Iterable[int]:
    return (i for i in atoms if isinstance(i, int))


def _gradients(program: Program, parts: Sequence[str]) -> list[int]:
    """The large values that a backward pass writes, and that are read outside of it."""
    outside = (e.reads for e, part in zip(program.equations, parts, strict=True) if part == OUTSIDE)
    read = {*it.chain.from_iterable(outside), *_values(program.outputs)}
    pairs = zip(program.equations, parts, strict=True)
    written = (i for e, part in pairs if part in (BACKWARD, BOTH) for i in e.outputs)
    return [i for i in written if i in read and is_large(program, i)]


def _computed(program: Program) -> Mapping[int, tuple[int, ...]]:
    """Value -> the equation that computes it; a cast or a view of a value is there with it.

    The casts of all gradients stand at the end of a backward pass in half precision.
    """
    found: dict[int, tuple[int, ...]] = {}
    for n, equation in enumerate(program.equations):
        if equation.primitive == "shard_map":
            found.update(zip(equation.outputs, _computed_inside(n, equation), strict=True))
            continue
        large = [i for i in equation.reads if i in found and is_large(program, i)]
        is_view = equation.primitive in _VIEWS and len(large) == 1
        found.update(dict.fromkeys(equation.outputs, found[large[0]] if is_view else (n,)))
    return found


def _computed_inside(n: int, equation: Equation) -> list[tuple[int, ...]]:
    """Where the results of a `shard_map` are computed, which is the n-th equation."""
    (body,) = compat.subjaxprs(equation.eqn)
    inside = flatten(body)
    found = _computed(inside)
    return [(n, *found.get(i, ())) if isinstance(i, int) else (n,) for i in inside.outputs]


def _reached(
    program: Program, parts: Sequence[str], sources: Collection[int]
) -> Mapping[int, frozenset[int]]:
    """Value -> the gradients that reach it through large values, outside of gradients."""
    found = {i: frozenset([i]) for i in sources}
    for equation, part in zip(program.equations, parts, strict=True):
        if part == OUTSIDE:
            reaching = frozenset[int]().union(*(found.get(i, ()) for i in equation.reads))
            large = (i for i in equation.outputs if is_large(program, i))
            found.update(dict.fromkeys(large, reaching))
    return {i: reaching for i, reaching in found.items() if reaching}


class _Joined:
    """Sets of values that are one set where they share a value."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def root(self, value: int) -> int:
        """The value that stands for the set of a value."""
        while (parent := self._parents.get(value, value)) != value:
            value = parent
        return value

    def join(self, values: Iterable[int]) -> None:
        """Make one set of those of some values."""
        roots = [self.root(i) for i in values]
        self._parents.update(dict.fromkeys(roots[1:], roots[0]) if roots else {})
