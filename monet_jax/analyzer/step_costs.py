"""Counts the FLOPs and the seconds of any traced training step, planned or not.

The bodies of `jax.checkpoint` regions are inlined and dead code is removed, so that a recomputation
counts where it runs and a residual that nothing reads does not.

The ops of a `scan`'s body count once for each trip, and so do copies: of what a loop collects into
the stack that it returns, and out of the stacks that it reads. On an H100, two scanned transformers
of which everything is recomputed took 0.81 and 0.85 of the plain step's time
(docs/measurements/device-h100.json); a roofline says more than 1 without these copies, and 0.77
and 0.73 with them.

A fusion that reads a value computes it anew. Where several do, and the value follows from more
bytes than its own, writing it once and reading it is less traffic, and compilers do so: a residual
stream, to which each block adds, would otherwise be summed up from the first block in every
normalization.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..compiler.backend import Backend
from ..ir import compat
from ..ir.costs import Work, flops_of
from ..ir.primitives import Kind, kind_of
from ..ir.program import Equation, Program, flatten
from ..seconds.prices import Prices
from .fusion import Fusion, Fusions, group_of

#: What is written changes who reads what; after so many rounds, nothing does in the models seen.
_ROUNDS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class StepCosts:
    """The cost of one step.

    Attributes:
        flops: of products and convolutions, loops times their trips.
        seconds: of all ops.
    """

    flops: int
    seconds: float


def step_costs(
    step: Callable[..., Any], args: Sequence[Any], prices: Prices, backend: Backend
) -> StepCosts:
    """The costs of `step(*args)`, traced on abstract values."""
    return program_costs(jax.make_jaxpr(step)(*args), prices, backend)


def program_costs(jaxpr: Any, prices: Prices, backend: Backend) -> StepCosts:
    """The costs of a closed jaxpr."""
    program = flatten(jaxpr, inline_checkpoints=True)
    return StepCosts(flops_of(program.equations), _seconds(program, prices, backend))


def _seconds(program: Program, prices: Prices, backend: Backend) -> float:
    fusions = fusions_of(program, backend)
    return sum(op_seconds(fusions, fusion, prices, backend) for fusion in fusions.all())


def fusions_of(program: Program, backend: Backend) -> Fusions:
    """The ops of a step's program, such that little is moved to memory and back."""
    written: frozenset[int] = frozenset()
    fusions = Fusions(program, backend)
    for _ in range(_ROUNDS):
        found = _worth_writing(fusions, written)
        if found == written:
            break
        written, fusions = found, Fusions(program, backend, found)
    return fusions


def op_seconds(fusions: Fusions, fusion: Fusion, prices: Prices, backend: Backend) -> float:
    """The seconds of one op of a program; of a loop, with all its trips."""
    eqn = fusion.equation.eqn
    if fusion.equation.primitive != "scan":
        return prices.of(group_of(fusions, fusion)).seconds
    (body,) = compat.subjaxprs(eqn)
    trip = flatten(body, inline_checkpoints=True)
    copying = prices.of_work(Work(), 2 * _stacked_bytes(eqn, trip))
    return eqn.params["length"] * (_seconds(trip, prices, backend) + copying)


def _stacked_bytes(scan: Any, trip: Program) -> int:
    """Bytes of the slices that a trip reads from stacks, and of those that it adds to stacks."""
    constants, carried, _ = compat.scan_counts(scan)
    collected = (i for i in trip.outputs[carried:] if isinstance(i, int))
    return sum(map(trip.nbytes, (*trip.inputs[constants + carried :], *collected)))


def _readers(fusions: Fusions) -> Mapping[int, int]:
    """Value -> how many ops read it, or compute it again."""
    ops: collections.Counter[int] = collections.Counter()
    for equation in reversed(fusions.program.equations):
        if _is_view(equation):
            continue
        runs = 1 if _is_op(fusions, equation) else sum(ops[i] for i in equation.outputs)
        for i in {fusions.root(i) for i in equation.reads}:
            ops[i] += runs
    return ops


def _worth_writing(fusions: Fusions, written: frozenset[int]) -> frozenset[int]:
    """The fused values that are cheaper to write, given what else is written."""
    program, ops, chosen = fusions.program, _readers(fusions), set[int]()
    behind: dict[int, frozenset[int]] = {}  # what a fused value is computed from
    for equation in program.equations:
        if _is_view(equation):
            continue
        reads = frozenset[int]().union(
            *(behind.get(fusions.root(i), {fusions.root(i)}) for i in equation.reads)
        )
        for i in equation.outputs:
            if fusions.is_kept(i) and i not in written:
                continue
            source, own = sum(map(program.nbytes, reads)), program.nbytes(i)
            if ops[i] * source > source + (1 + ops[i]) * own:
                chosen.add(i)
            else:
                behind[i] = reads
    return frozenset(chosen)


def _is_op(fusions: Fusions, equation: Equation) -> bool:
    return bool(equation.eqn.effects) or any(map(fusions.is_kept, equation.outputs))


def _is_view(equation: Equation) -> bool:
    return kind_of(equation) is Kind.VIEW
