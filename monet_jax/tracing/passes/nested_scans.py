"""Two-level checkpointing of scans (Chen et al., 2016, section 4.2): a scan of scans.

A loop of T iterations saves its carry for each of them, whatever else runs again. As an outer scan
over T / n inner scans of n iterations, each under `jax.checkpoint`, it saves the carries between
inner scans, and while one of them runs backward, the carries within it: about 2 sqrt(T) carries in
place of T for one more forward pass. To the planner the inner scans are iterations like any other:
the plan decides which are saved and which run again.

A loop in a loop, or in a branch, is one operation to the planner. Its iterations run under
`jax.checkpoint` then, so that while it runs again it saves its carries and nothing else.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ...ir import compat
from ...ir.places import filled
from ...ir.primitives import runs_once
from ...ir.program import Equation, Program, Replacement, aval_nbytes, shape_of, with_replaced
from ...ir.stage import Differentiation, active_values
from .draft import Draft
from .loops import may_be_planned


@dataclasses.dataclass(frozen=True)
class Chunking:
    """The lengths of a program's inner scans.

    Attributes:
        lengths: iterations of the inner scans for every `scan` of the program, in order; 0 where
            the loop stays as it is.
        spared_bytes: saved carries that are no longer saved, and residuals of loops inside. It is
            a count: the compiler may save more or less.
    """

    lengths: tuple[int, ...]
    spared_bytes: int


def chunking(program: Program, derivative: Differentiation) -> Chunking:
    """The inner length of each loop with which it saves the fewest bytes."""
    active = active_values(program, derivative)
    found = [
        _best_length(e) if may_be_planned(e, active) else (0, 0)
        for e in program.equations
        if e.primitive == "scan"
    ]
    planned = (e for e in program.equations if active.intersection(e.outputs))
    inside = sum(_residual_bytes_inside(eqn) for e in planned for eqn in _inner_loops(e.eqn))
    return Chunking(tuple(n for n, _ in found), sum(gained for _, gained in found) + inside)


def nest_scans(draft: Draft) -> None:
    """Runs loops as scans of scans, where lengths of the inner ones are given."""
    if draft.nested_lengths is not None:
        draft.program = as_nested_scans(draft.program, draft.nested_lengths)


def as_nested_scans(program: Program, lengths: Sequence[int]) -> Program:
    """A program whose loops run as scans of scans.

    Arguments:
        program: the program.
        lengths: as in `Chunking`.

    Returns:
        A program with the same inputs, results and constants, by the same numbers. Loops in the
        bodies of others and in branches have their iterations under `jax.checkpoint`.
    """
    loops = (n for n, e in enumerate(program.equations) if e.primitive == "scan")
    inner = dict(zip(loops, lengths, strict=True))
    replacements = [
        _as_nested_scan(e.eqn, inner[n]) if inner.get(n) else None
        for n, e in enumerate(program.equations)
    ]
    made = with_replaced(program, replacements)
    inside = functools.partial(_inner_replacement, program.rewrite.equation)
    return dataclasses.replace(made, rewrite=dataclasses.replace(made.rewrite, equation=inside))


def _inner_replacement(
    otherwise: Callable[[Any], Replacement | None], eqn: Any
) -> Replacement | None:
    """What replaces an equation in the body of a loop, or in a branch."""
    return (
        _as_nested_scan(eqn, eqn.params["length"]) if _may_be_checkpointed(eqn) else otherwise(eqn)
    )


def _may_be_checkpointed(eqn: Any) -> bool:
    """Whether an equation is a loop whose body may run under a `jax.checkpoint`, and does not."""
    if compat.primitive_name(eqn) != "scan" or runs_once(eqn) or _has_placed(eqn):
        return False
    return not eqn.params["jaxpr"].consts and not _is_checkpointed(eqn.params["jaxpr"])


def _inner_loops(eqn: Any) -> Iterator[Any]:
    """The loops in a loop's body, or in branches, that would save less."""
    if compat.primitive_name(eqn) not in ("scan", "cond", "jit"):
        return
    for jaxpr in compat.subjaxprs(eqn):
        for inner in jaxpr.jaxpr.eqns:
            if _may_be_checkpointed(inner):
                yield inner
            elif compat.primitive_name(inner) != "scan":
                yield from _inner_loops(inner)


def _residual_bytes_inside(eqn: Any) -> int:
    """Bytes of residuals that a loop saves beside its operands and carries.

    They count as none where its body cannot be differentiated by all of its floats: it is
    differentiated by some of them, or not at all.
    """
    consts, carry, _ = compat.scan_counts(eqn)
    jaxpr = eqn.params["jaxpr"]
    avals = [var.aval for var in jaxpr.jaxpr.invars]
    places = [n for n, aval in enumerate(avals) if compat.is_float(aval)]

    def pulled(*operands):
        chosen = [operands[n] for n in places]
        body = compat.as_function(jaxpr)
        return jax.vjp(lambda some: body(*filled(operands, places, some)), chosen)[1]

    try:
        kept = jax.tree.leaves(jax.eval_shape(pulled, *map(shape_of, avals)))
    except compat.NOT_DIFFERENTIABLE:  # a `while`, say
        return 0
    slices = [*avals[:consts], *avals[consts + carry :]]
    saved_bytes = sum(map(aval_nbytes, kept)) - sum(
        map(aval_nbytes, (*slices, *avals[consts:][:carry]))
    )
    return max(0, saved_bytes) * eqn.params["length"]


def _best_length(equation: Equation) -> tuple[int, int]:
    """Iterations of the inner scans, and the bytes gained; zeros where nothing is gained."""
    eqn = equation.eqn
    consts, carry, _ = compat.scan_counts(eqn)
    trips, ends = eqn.params["length"], consts + carry
    if _has_placed(eqn):
        return 0, 0  # what is stacked would be gathered to be reshaped
    if runs_once(eqn):
        return 0, 0  # inner scans run again as wholes
    if any(_inner_loops(eqn)):
        return 0, 0  # those keep more than is carried, wherever they do not run in a loop's body
    carried = _nbytes(eqn.invars[consts:ends])
    sliced = (_nbytes(eqn.invars[ends:]) + _nbytes(eqn.outvars[carry:])) // trips

    def kept(n: int) -> int:
        """Bytes of carries, and of copies: an inner scan's slices and their gradients."""
        uneven = 2 * trips * sliced if trips % n else 0
        return math.ceil(trips / n) * carried + n * (carried + 2 * sliced) + uneven

    least = min(range(2, trips // 2 + 1), key=kept, default=0)
    gained = trips * carried - kept(least) if least else 0
    return (least, gained) if gained > 0 else (0, 0)


def _has_placed(eqn: Any) -> bool:
    """Whether operands are sharded by explicit axes."""
    return any(compat.is_placed(var.aval) for var in eqn.invars)


def _nbytes(variables: Iterable[Any]) -> int:
    return sum(aval_nbytes(var.aval) for var in variables)


def _as_nested_scan(eqn: Any, n: int) -> Replacement:
    """A scan as one over inner scans of `n` iterations; iterations left over run before."""
    avals = [shape_of(var.aval) for var in eqn.invars]
    return Replacement(compat.traced_like(eqn, _runner(eqn, n), avals), changes_what_is_kept=True)


def _runner(eqn: Any, n: int) -> Callable[..., list[Any]]:
    """A function of a scan's operands that runs it as a scan of scans."""
    consts, carried, _ = compat.scan_counts(eqn)
    reverse, trips = eqn.params["reverse"], eqn.params["length"]
    body = compat.as_function(eqn.params["jaxpr"])

    def run(*operands):
        given, carry = operands[:consts], list(operands[consts : consts + carried])

        def step(carry, slices):
            results = body(*given, *carry, *slices)
            return results[:carried], results[carried:]

        if not _is_checkpointed(eqn.params["jaxpr"]):
            step = jax.checkpoint(step, prevent_cse=False)  # a loop keeps its iterations apart

        loop = functools.partial(lax.scan, step, reverse=reverse, unroll=eqn.params["unroll"])
        stacked, results = operands[consts + carried :], []
        if n == trips:
            carry, ys = loop(carry, stacked, length=trips)
            return [*carry, *ys]
        for part in _parts(stacked, trips, n, reverse):
            inner = functools.partial(loop, length=part.length)
            carry, ys = lax.scan(inner, carry, part.reshaped(), part.outer, reverse=reverse)
            results.append([y.reshape(part.outer * part.length, *y.shape[2:]) for y in ys])
        ordered = results[::-1] if reverse else results
        ys = [x[0] if len(x) == 1 else jnp.concatenate(x) for x in zip(*ordered, strict=True)]
        return [*carry, *ys]

    return run


def _is_checkpointed(jaxpr: Any) -> bool:
    """Whether all that a body runs is in a `jax.checkpoint` of the user's."""
    eqns = jaxpr.jaxpr.eqns
    return len(eqns) == 1 and compat.checkpointed(eqns[0]) is not None


@dataclasses.dataclass(frozen=True)
class _Part:
    """Iterations in `outer` inner scans of one length, and the arrays that they take slices of."""

    stacked: Sequence[jax.Array]
    outer: int
    length: int

    def reshaped(self) -> list[jax.Array]:
        """The arrays that the inner scans take slices of, stacked."""
        return [x.reshape(self.outer, self.length, *x.shape[1:]) for x in self.stacked]


def _parts(stacked: Sequence[jax.Array], trips: int, n: int, reverse: bool) -> list[_Part]:
    """Parts of a loop in order of execution: iterations left over, if any, come first."""
    rest = trips % n
    if not rest:
        return [_Part(stacked, trips // n, n)]
    cut = trips - rest if reverse else rest
    low, high = [x[:cut] for x in stacked], [x[cut:] for x in stacked]
    first, others = (high, low) if reverse else (low, high)
    return [_Part(first, 1, rest), _Part(others, trips // n, n)]
