"""Finds the leaves of a step's state that can live on the host.

Such a leaf is donated, a large array of floats, read by one update only, and replaced by a result
of that update, at its place in the returned state.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ...ir import compat
from ...ir.program import Program
from .groups import SMALL, Update, updates_of
from .layout import HostLeaf


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A leaf of the arguments or of the results: where it stands, and what it is."""

    path: tuple[Any, ...]
    info: Any

    @property
    def kind(self) -> tuple[tuple[int, ...], str]:
        """Shape and type: a result of the same can take its place."""
        return tuple(self.info.shape), str(self.info.dtype)


def movable_leaves(
    program: Program, traced: jax.stages.Traced, device_shapes: Sequence[Any]
) -> tuple[HostLeaf, ...]:
    """The leaves that can live on the host, those of late updates last.

    Arguments:
        program: the step's, flat.
        traced: the step.
        device_shapes: for each leaf of the arguments, the shape of one device's part.
    """
    arguments = _leaves(traced.args_info)
    pairs = _pairs(arguments, _leaves(traced.out_info))
    updates = updates_of(program)
    needing = _needing(program, updates)
    found = []
    for number, update in enumerate(updates):
        for n, result in sorted(pairs.items()):
            if result in update.results and needing.get(program.inputs[n]) == {number}:
                nbytes = math.prod(device_shapes[n]) * arguments[n].info.dtype.itemsize
                found.append(HostLeaf(path_name(arguments[n].path), n, result, nbytes))
    return tuple(found)


def path_name(path: Sequence[Any]) -> str:
    """What a leaf of the arguments is called: `args[0]['w']`."""
    text = jax.tree_util.keystr(tuple(path))
    return f"args{text.removeprefix('[0]')}" if text.startswith("[0]") else text


def _leaves(tree: Any) -> list[_Leaf]:
    return [_Leaf(path, info) for path, info in jax.tree.flatten_with_path(tree)[0]]


def _pairs(arguments: Sequence[_Leaf], results: Sequence[_Leaf]) -> Mapping[int, int]:
    """Argument -> the result that takes its place in the next step.

    The result stands at the same place in the state: the paths end alike. Where several do, it is
    the one whose whole path, the argument's own number included, is the same.
    """
    found = {}
    for n, leaf in enumerate(arguments):
        if not leaf.info.donated or not _may_move(leaf.info):
            continue
        path, inner = leaf.path[1:], leaf.path[2:]
        alike = [k for k, x in enumerate(results) if x.kind == leaf.kind and _ends(x.path, inner)]
        exact = [k for k in alike if results[k].path == path]
        if len(alike) == 1 or exact:
            found[n] = (exact or alike)[0]
    return found


def _ends(path: Sequence[Any], inner: Sequence[Any]) -> bool:
    return tuple(path[len(path) - len(inner) :]) == tuple(inner)


def _may_move(info: Any) -> bool:
    """Whether an array is one of floats, and large."""
    nbytes = 0 if compat.is_key(info) else math.prod(info.shape) * info.dtype.itemsize
    return nbytes >= SMALL and compat.is_float(info)


def _needing(program: Program, updates: Sequence[Update]) -> Mapping[int, set[int]]:
    """Value -> the numbers of the updates that need it; -1 is all else of the step.

    Gradients are needed by all else, so that an update needs what only the update itself reads.
    """
    found: dict[int, set[int]] = {}

    def need(value: Any, number: int) -> None:
        if isinstance(value, int):
            found.setdefault(value, set()).add(number)

    numbers = {n: number for number, update in enumerate(updates) for n in update.results}
    for n, value in enumerate(program.outputs):
        need(value, numbers.get(n, -1))
    for i in (i for update in updates for i in update.gradients):
        need(i, -1)
    for equation in reversed(program.equations):
        needed = set().union(*(found.get(i, ()) for i in equation.outputs))
        for i in equation.reads:
            found.setdefault(i, set()).update(needed)
    return found
