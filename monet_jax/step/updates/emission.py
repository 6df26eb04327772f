"""Runs a step such that one update follows the other, with some of its state on the host.

Each update is behind a barrier with the results of the one before, in the order of the gradients.
So a gradient is gone when its parameter is updated, where XLA would otherwise keep all of them
until the backward is over. What lives on the host is fetched behind such a barrier as well, updated
on the device, and sent back before the next update begins: one update's state is on the device.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.core
from jax.lax import optimization_barrier as barrier

from ...ir import compat
from ...ir.memories import on_device, on_host
from ...ir.program import Program, dependents, flatten, positions_of, run, values_of
from ...tracing.signature import abstract_leaf
from .groups import Update, is_large, updates_of
from .layout import UpdateLayout
from .rows import RowUpdate, row_update


def with_layout(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], layout: UpdateLayout
) -> Any:
    """The results of a step under a trace, its updates laid out.

    Arguments:
        fun: the step.
        args, kwargs: its arguments: tracers, and what is static.
        layout: of the updates; what lives on the host are tracers of the host's memory.
    """
    (args, kwargs), leaves = _flat((tuple(args), dict(kwargs)))

    def step(*arrays: Any) -> Any:
        given_args, given_kwargs = _filled((args, kwargs), arrays)
        return fun(*given_args, **given_kwargs)

    jaxpr, shapes = jax.make_jaxpr(step, return_shape=True)(*map(abstract_leaf, leaves))
    results = run_ordered(flatten(jaxpr), leaves, layout)
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def run_ordered(program: Program, inputs: Sequence[Any], layout: UpdateLayout) -> list[Any]:
    """The results of a step's program, its updates laid out."""
    emission = _Emission(program, inputs, layout)
    for update in updates_of(program):
        emission.run_update(update)
    return emission.results()


class _Slot:
    """The place of an array among static parts."""


def _flat(tree: Any) -> tuple[Any, list[Any]]:
    """A pytree with slots in the places of its tracers, and the tracers."""
    leaves: list[Any] = []

    def slot(leaf: Any) -> Any:
        if not isinstance(leaf, jax.core.Tracer):
            return leaf
        leaves.append(leaf)
        return _Slot()

    return jax.tree.map(slot, tree), leaves


def _filled(tree: Any, arrays: Sequence[Any]) -> Any:
    left = iter(arrays)
    return jax.tree.map(lambda leaf: next(left) if isinstance(leaf, _Slot) else leaf, tree)


class _Emission:
    """A program that is run in parts, update after update."""

    def __init__(self, program: Program, inputs: Sequence[Any], layout: UpdateLayout):
        self._program, self._layout = program, layout
        self._env = dict(program.constants) | dict(zip(program.inputs, inputs, strict=True))
        self._writers = positions_of(program.equations)
        self._left = set(range(len(program.equations)))
        self._arrived: tuple[Any, ...] = ()  # the results of the update before
        self._sent: dict[int, Any] = {}  # position among the results -> array on the host

    def run_update(self, update: Update) -> None:
        """Run an update, behind the one before."""
        self._run(update.gradients)
        values = [self._program.outputs[n] for n in update.results]
        own = self._needed(values)
        leaves = [x for x in self._layout.on_host if x.result in update.results]
        stored = {self._program.inputs[x.argument]: x.result for x in leaves}
        rows = self._in_rows(own, stored, values)
        if rows is not None:
            self._run_rows(own, stored, rows)
        else:
            self._fetch(stored, update.gradients)
            self._wait(self._entering(own) - stored.keys())
            self._run(values)
            for n in stored.values():
                array = self._env[self._program.outputs[n]]
                self._sent[n] = on_host(array)
        arrays = zip(update.results, values, strict=True)
        self._arrived = tuple(self._sent.get(n, self._env.get(i)) for n, i in arrays)

    def _in_rows(
        self, own: Sequence[int], stored: Mapping[int, int], values: Sequence[int]
    ) -> RowUpdate | None:
        """The update on slices, if it is to run so and can."""
        if not stored or not self._layout.in_rows:
            return None
        results = {i: self._program.outputs[n] for i, n in stored.items()}
        return row_update(self._program, own, results, values)

    def _run_rows(self, own: Sequence[int], stored: Mapping[int, int], rows: RowUpdate) -> None:
        """Run an update in a loop over rows."""
        self._run(rows.operands)
        self._wait(rows.operands)
        found = rows.run(self._env, stored)
        self._sent.update({n: found.pop(self._program.outputs[n]) for n in stored.values()})
        self._env.update(found)
        reached = dependents((self._program.equations[n] for n in own), stored)
        done = {n for n in own if reached.intersection(self._program.equations[n].outputs)}
        self._left -= done

    def _entering(self, own: Sequence[int]) -> set[int]:
        """What some equations read that others write."""
        written = {i for n in own for i in self._program.equations[n].outputs}
        return {i for n in own for i in self._program.equations[n].reads} - written

    def results(self) -> list[Any]:
        """The results of the program, once all that is left has run."""
        run((self._program.equations[n] for n in sorted(self._left)), self._env, {})
        return [
            self._sent[n] if n in self._sent else values_of(self._env, [atom])[0]
            for n, atom in enumerate(self._program.outputs)
        ]

    def _fetch(self, stored: Collection[int], gradients: Sequence[int]) -> None:
        """Copy values from the host to the device once the update before is over.

        The first ones wait for their gradients; others may come while theirs are computed.
        """
        if not stored:
            return
        awaited = self._arrived or tuple(self._env[i] for i in gradients)
        waiting = tuple(self._env[i] for i in stored)
        _, found = barrier((awaited, waiting))
        for i, array in zip(stored, found, strict=True):
            self._env[i] = on_device(array)

    def _wait(self, values: Iterable[int]) -> None:
        """Put values behind the results of the update before."""
        places = sorted(i for i in values if self._may_wait(i))
        if self._arrived and places:
            waiting = tuple(self._env[i] for i in places)
            _, found = barrier((self._arrived, waiting))
            self._env.update(zip(places, found, strict=True))

    def _may_wait(self, value: int) -> bool:
        """Whether a value is an array that a barrier may hold back; keys need not wait."""
        return is_large(self._program, value) and not compat.is_key(self._program.avals[value])

    def _run(self, values: Iterable[Any]) -> None:
        """Run what some values need and has not run."""
        needed = self._needed(values)
        run((self._program.equations[n] for n in needed), self._env, {})
        self._left -= {*needed}

    def _needed(self, values: Iterable[Any]) -> list[int]:
        """The equations that some values need and that have not run, in order."""
        found = set[int]()
        open_values = [i for i in values if isinstance(i, int)]
        while open_values:
            n = self._writers.get(open_values.pop())
            if n is not None and n in self._left and n not in found:
                found.add(n)
                open_values += self._program.equations[n].reads
        return sorted(found)
