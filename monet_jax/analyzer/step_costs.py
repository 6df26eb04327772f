"""Counts the FLOPs and the seconds of any traced training step, planned or not.

The bodies of `jax.checkpoint` regions are inlined and dead code is removed, so that a recomputation
counts where it runs and a residual that nothing reads does not.

The ops of a `scan`'s body count once for each trip, and so do copies: of what a loop collects into
the stack that it returns, and of slices that a product or another call reads; a fusion reads slices
where they lie. On an H100, two scanned transformers of which everything is recomputed took 0.81 and
0.85 of the plain step's time (docs/measurements/device-h100.json); a roofline says more than 1
without these copies, and 0.83 and 0.78 with them.

A fusion that reads a value computes it anew. Where several do, and the value follows from more
bytes than its own, writing it once and reading it is less traffic, and compilers do so: a residual
stream, to which each block adds, would otherwise be summed up from the first block in every
normalization. Where it takes less than the launch of an op, it is computed anew: a scale of a
normalization, say.
"""

import collections
import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..compiler.backend import Backend
from ..ir import compat
from ..ir.costs import Work, flops_of
from ..ir.primitives import Kind, kind_of
from ..ir.program import Equation, Program, flatten, without_dead_code
from ..seconds.group import reads_slice
from ..seconds.prices import ROOFLINE, Price, Prices
from .fusion import Fusion, Fusions, group_of, reads_whole

#: What is written changes who reads what; after so many rounds, nothing does in the models seen.
_ROUNDS = 3
#: Fused equations that read another element than the one that they write: an op may compute an
#: operand once for each of them.
_MOVES = "concatenate dynamic_slice pad rev slice split stack tile unstack".split()


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
    """The costs of a closed jaxpr; of what a `shard_map` maps, those of one device."""
    program = _without_casts_back(flatten(jaxpr, inline_checkpoints=True, inline_mapped=True))
    seconds = seconds_of(fusions_of(program, prices, backend), prices)
    return StepCosts(flops_of(program.equations), seconds)


def _without_casts_back(program: Program) -> Program:
    """The program, where a float that is cast to a wider dtype and back is itself, as to XLA."""
    instead, widened, equations = dict[int, int](), dict[int, int](), list[Equation]()

    def read(atom: Any) -> Any:
        return instead.get(atom, atom) if isinstance(atom, int) else atom

    for equation in program.equations:
        equation = dataclasses.replace(equation, inputs=tuple(map(read, equation.inputs)))
        if equation.primitive == "convert_element_type" and isinstance(equation.inputs[0], int):
            (given,), (made,) = equation.inputs, equation.outputs
            before, after = program.avals[given], program.avals[made]
            first = widened.get(given)
            if first is not None and program.avals[first].dtype == after.dtype:
                instead[made] = first
                continue
            floats = compat.is_float(before) and compat.is_float(after)
            if floats and after.dtype.itemsize > before.dtype.itemsize:
                widened[made] = given
        equations.append(equation)
    outputs = tuple(map(read, program.outputs))
    kept = without_dead_code(equations, outputs)
    return dataclasses.replace(program, equations=kept, outputs=outputs)


def seconds_of(fusions: Fusions, prices: Prices) -> float:
    """Seconds of all ops of a program."""
    return sum(price_of(fusions, fusion, prices).seconds for fusion in fusions.all())


def fusions_of(program: Program, prices: Prices, backend: Backend) -> Fusions:
    """The ops of a step's program, such that little is moved to memory and back."""
    roofline = prices.roofline
    launch_bytes = roofline.launch_seconds * roofline.bandwidth_bytes_per_second
    written: frozenset[int] = frozenset()
    fusions = Fusions(program, backend)
    for _ in range(_ROUNDS):
        found = _worth_writing(fusions, written, launch_bytes)
        if found == written:
            break
        written, fusions = found, Fusions(program, backend, found)
    return fusions


def price_of(fusions: Fusions, fusion: Fusion, prices: Prices) -> Price:
    """The price of one op of a program; a roofline sees a loop's trips, not what it reads."""
    price, eqn = prices.of(group_of(fusions, fusion)), fusion.equation.eqn
    if fusion.equation.primitive != "scan" or price.source != ROOFLINE:
        return price
    (body,) = compat.subjaxprs(eqn)
    trip = _with_sunk(fusions, fusion.equation, flatten(body, inline_checkpoints=True))
    # What is saved by its name in a loop is copied once more: its rounding stands for that.
    backend = dataclasses.replace(fusions.backend, drops_idle_rounding=False)
    inside = fusions_of(trip, prices, backend)
    copying = copying_seconds(_copied_bytes(eqn, inside), prices)
    seconds = eqn.params["length"] * (seconds_of(inside, prices) + copying)
    return dataclasses.replace(price, seconds=seconds)


def _with_sunk(fusions: Fusions, scan: Equation, trip: Program) -> Program:
    """The body of a loop; XLA moves broadcasts of one number into it, that JAX moved out of it."""
    constants, _, _ = compat.scan_counts(scan.eqn)
    avals, inputs, sunk = [*trip.avals], [*trip.inputs], list[Equation]()
    for place, given in enumerate(scan.inputs[:constants]):
        producer = fusions.producer.get(given) if isinstance(given, int) else None
        if producer is not None and producer.primitive == "broadcast_in_dim":
            operand = producer.eqn.invars[0].aval
            if operand.size == 1:
                number, whole = len(avals), trip.inputs[place]
                sunk.append(dataclasses.replace(producer, inputs=(number,), outputs=(whole,)))
                avals.append(operand)
                inputs[place] = number
    equations = (*sunk, *trip.equations)
    return dataclasses.replace(trip, equations=equations, inputs=tuple(inputs), avals=tuple(avals))


def copying_seconds(nbytes: int, prices: Prices) -> float:
    """Seconds of a copy into a loop's stack, or out of one."""
    return prices.of_work(Work(), 2 * nbytes)


def _copied_bytes(scan: Any, trip: Fusions) -> int:
    """Bytes of the slices that a trip adds to stacks, and of those that it copies out of them."""
    constants, carried, _ = compat.scan_counts(scan)
    program, whole = trip.program, _read_whole(trip)
    collected = (i for i in program.outputs[carried:] if isinstance(i, int))
    copied = (i for i in program.inputs[constants + carried :] if i in whole)
    return sum(map(program.nbytes, (*collected, *copied)))


def _readers(fusions: Fusions) -> Mapping[int, int]:
    """Value -> how often ops read it or compute it again: each once, but for each of its slices."""
    times = collections.defaultdict[int, collections.Counter[int]](collections.Counter)
    for equation in reversed(fusions.program.equations):
        if _is_view(equation):
            continue
        by_op = collections.Counter({id(equation): 1})
        if not _is_op(fusions, equation):
            of_outputs = (times[i] for i in equation.outputs)
            by_op = functools.reduce(operator.or_, of_outputs, collections.Counter[int]())
        joined = operator.add if equation.primitive in _MOVES else operator.or_
        for i in {fusions.root(i) for i in equation.reads}:
            times[i] = joined(times[i], by_op)
    return collections.Counter({i: by_op.total() for i, by_op in times.items()})


def _worth_writing(
    fusions: Fusions, written: frozenset[int], launch_bytes: float
) -> frozenset[int]:
    """The fused values that are cheaper to write, given what else is written.

    Arguments:
        fusions: the ops so far.
        written: fused values that they write.
        launch_bytes: what the memory moves in the time of a launch.
    """
    program, ops, chosen = fusions.program, _readers(fusions), set[int]()
    behind: dict[int, Mapping[int, int]] = {}  # what a fused value is computed from
    for equation in program.equations:
        if _is_view(equation):
            continue
        reads = _bytes_behind(fusions, equation, behind)
        for i in equation.outputs:
            if fusions.is_kept(i) and i not in written:
                continue
            source, own = sum(reads.values()), program.nbytes(i)
            if ops[i] * source > source + (1 + ops[i]) * own + launch_bytes:
                chosen.add(i)
            else:
                behind[i] = reads
    return frozenset(chosen)


def _bytes_behind(
    fusions: Fusions, equation: Equation, behind: Mapping[int, Mapping[int, int]]
) -> Mapping[int, int]:
    """Value in memory -> the bytes of it that an equation is computed from: of slices, no more."""
    found, nbytes = collections.Counter[int](), fusions.program.nbytes
    for place, i in enumerate(equation.inputs):
        if isinstance(i, int):
            root, is_sliced = fusions.root(i), reads_slice(equation, place)
            for source, whole in behind.get(root, {root: nbytes(root)}).items():
                read = min(whole, nbytes(equation.outputs[0])) if is_sliced else whole
                found[source] = min(found[source] + read, nbytes(source))
    return found


def _is_op(fusions: Fusions, equation: Equation) -> bool:
    return compat.has_effects(equation.eqn) or any(map(fusions.is_kept, equation.outputs))


def _is_view(equation: Equation) -> bool:
    return kind_of(equation) is Kind.VIEW


def _read_whole(fusions: Fusions) -> set[int]:
    """What ops read that are no fusions: of a stack, these read the copy of a slice."""
    reading = (e for e in fusions.program.equations if reads_whole(e.primitive, fusions.backend))
    return {fusions.root(i) for e in reading for i in e.reads}
