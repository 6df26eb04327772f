"""The ops that XLA will run for one stage's forward and backward, and the values it will keep.

What the traced stage fuses away is no value (see `ir/primitives`); what remains becomes ops:

    forward    an equation that writes a primal value
    backward   an equation that depends on a cotangent, or prepares something only for one that does

The result, a `Joint`, names values by local numbers, so that isomorphic stages can share it.
"""

import collections
import dataclasses
from collections.abc import Collection, Sequence, Set

import jax

from ..compiler.backend import (
    Backend,
    copied_operand,
    spread_bytes,
    widened_operands,
    workspace_bytes,
)
from ..ir import compat
from ..ir.arrays.kernels import copied_for_both
from ..ir.arrays.materialised import counter_bytes, is_sum_of_dropped
from ..ir.arrays.row_reductions import reduced_in
from ..ir.primitives import PRODUCTS, Kind, is_in_place, kind_of, must_run_once
from ..ir.program import Equation, Program, dependents, flatten
from ..ir.stage import Stage
from ..operators import is_hook
from ..seconds.prices import ByRoofline, Prices
from .fusion import Fusion, Fusions
from .implementations import with_encoders
from .local_ops import (
    LocalOp,
    each_after_its_inputs,
    with_copies,
    with_kept_again,
    with_kernels_later,
    with_kernels_transposed,
    with_reuse,
    with_spread,
    with_what_forward_ops_need,
)
from .step_costs import price_of, seconds_of
from .traced_stage import TracedStage, residuals, shared_inside, traced_stage, waiting_bytes


@dataclasses.dataclass(frozen=True)
class Joint:
    """A stage's value and gradient as ops.

    Attributes:
        program: the flat joint program.
        ops: forward ops in order, then backward ops in order.
        primal: joint value -> primal value of the stage that it is.
        fleeting: as in `TracedStage.fleeting`; a plan does not save these.
        inputs: joint value for each input of the stage.
        outputs: joint value (or None) for each output of the stage.
        cotangents: joint value for each differentiated output of the stage.
        gradients: joint value (or None) for each differentiated input of the stage.
        residual_bytes: of what JAX saves of a stage in a loop, see `traced_stage.residuals`.
        residual_seconds: what ops take more where they write and read all of that.
        waiting_bytes: that the compiler keeps for backward ops, see `traced_stage.waiting_bytes`.
    """

    program: Program
    ops: tuple[LocalOp, ...]
    primal: dict[int, int]
    fleeting: Set[int]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    cotangents: tuple[int, ...]
    gradients: tuple[int | None, ...]
    residual_bytes: int
    residual_seconds: float
    waiting_bytes: int


def joint_of(
    program: Program,
    stage: Stage,
    prices: Prices,
    backend: Backend,
    pinned: Collection[int] = frozenset(),
    invariant: Collection[int] | None = None,
    at_once: bool = False,
) -> Joint:
    """Trace a stage's value and gradient and find its ops.

    Arguments:
        program: the program of the stage.
        stage: to trace.
        prices, backend: of the target.
        pinned: values that are never fused.
        invariant: of a stage in a loop, values that are the same in every iteration; None where
            what JAX saves of the stage is not asked for.
    """
    trace = traced_stage(program, stage, prices, backend, pinned, at_once)
    ops, root = _ops(trace), trace.fusions.root
    outputs = [root(i) if isinstance(i, int) else None for i in trace.program.outputs]
    split = len(stage.outputs)
    given = trace.program.inputs[: len(stage.inputs)]
    saved = set[int]() if invariant is None else residuals(trace, invariant)
    return Joint(
        trace.program,
        with_reuse(ops, trace.program, {*outputs, *given}, backend),
        trace.primal,
        trace.fleeting,
        given,
        tuple(outputs[:split]),
        trace.cotangents,
        tuple(outputs[split:]),
        sum(map(trace.program.nbytes, saved)),
        _more_seconds(trace, saved) if saved else 0.0,
        waiting_bytes(trace),
    )


def _more_seconds(trace: TracedStage, written: Set[int]) -> float:
    """What ops take more by the roofline where some values are written that would be fused.

    One kernel writes several of these, so that they cost no launches.
    """
    prices = ByRoofline(dataclasses.replace(trace.prices.roofline, launch_seconds=0.0))
    known = {i for i in trace.hooked if trace.fusions.is_kept(i)}
    fusions = Fusions(trace.program, trace.backend, known | written)
    return seconds_of(fusions, prices) - seconds_of(trace.fusions, prices)


def _ops(trace: TracedStage) -> tuple[LocalOp, ...]:
    fusions = list(trace.fusions.all())
    copies = copied_for_both(trace.program) if trace.backend.keeps_kernels else set[int]()
    made = with_what_forward_ops_need([_op(trace, fusion, copies) for fusion in fusions])
    if any(map(is_hook, trace.program.equations)):
        made = with_encoders(trace, made, fusions)
    made = with_spread(trace, with_copies(trace, made))
    forward = [op for op in made if op.forward]
    later = [op for op in made if not op.forward]
    pulled = [op for op in later if trace.backward.intersection(op.outputs)]
    backward = each_after_its_inputs(pulled, later)
    if trace.backend.kernels_come_last:
        backward = with_kernels_later(backward, trace.backward)
    elif trace.backend.keeps_kernels:
        backward = with_kernels_transposed(trace, backward)
    return (*with_kept_again(forward, backward, shared_inside(trace)), *backward)


def _op(trace: TracedStage, fusion: Fusion, copies: Set[int]) -> LocalOp:
    equation, outputs = fusion.equation, fusion.outputs
    members = *fusion.fused, equation
    drawn_from = counter_bytes(trace.program, members) if trace.backend.rolls_threefry else 0
    is_split = trace.backend.splits_dropped_softmax and is_sum_of_dropped(trace.program, equation)
    copied = max(0, 2 * drawn_from - sum(map(trace.program.nbytes, outputs)))
    has_effects = compat.has_effects(equation.eqn)
    is_primal = has_effects or any(i in trace.primal for i in outputs)
    scratch = trace.backend.needs_scratch
    is_early = equation.primitive == "rev" and (scratch or id(equation) in copies)
    price = price_of(trace.fusions, fusion, trace.prices)
    return LocalOp(
        equation.primitive,
        fusion.inputs,
        outputs,
        price.seconds,
        fusion.work.flops,
        (is_primal or is_early) and not trace.backward.intersection(outputs),
        not (any(map(must_run_once, members)) or is_split),
        has_effects,
        is_in_place(equation),
        _carries(trace, equation),
        _narrowed(trace, equation),
        frozenset(reduced_in(members, trace.fusions.root)),
        copied_operand(equation) if scratch else None,
        max(copied, _workspace_bytes(trace, equation)),
        source=compat.source_of(equation.eqn),
        priced_by=price.source,
        counter_bytes=drawn_from,
    )


def _workspace_bytes(trace: TracedStage, equation: Equation) -> int:
    """What an op takes beside its operands and results; the body of a loop has temporaries.

    They are counted for loops that only add up, such as a chunked loss. Those of loops that JAX
    differentiates are small beside what these stack; counted, they only blur the smallest budgets.
    """
    if equation.primitive == "scan" and _only_adds_up(trace, equation):
        (body,) = map(flatten, compat.subjaxprs(equation.eqn))
        constants, _, _ = compat.scan_counts(equation.eqn)
        return _temporary_bytes(body, trace.backend, body.inputs[constants:])
    if equation.primitive == "dot_general":
        across = equation.outputs if id(equation) in trace.fusions.across else ()
        copied = _copied_bytes(equation, trace.fusions, trace.backward)
        return trace.backend.product_bytes + copied + sum(map(trace.program.nbytes, across))
    if trace.backend.copies_spread:
        return spread_bytes(equation, trace.fusions.producer)
    return workspace_bytes(equation) if trace.backend.needs_scratch else 0


def _copied_bytes(equation: Equation, fusions: Fusions, late: Set[int]) -> int:
    """Bytes of copies of operands with wider sides.

    What is there before, for several products, is copied for each. A fusion writes `late` values,
    cotangents or what a loop computes anew, wider at once, and so what products alone read.
    """

    def is_copied(value: int) -> bool:
        made_by = fusions.producer.get(root := fusions.root(value))
        is_wide = root in late or root not in fusions.read_elsewhere
        return not is_wide or made_by is None or kind_of(made_by) is not Kind.FUSED

    operands = widened_operands(equation, fusions.backend.side_multiple)
    return sum(nbytes for i, nbytes in operands if is_copied(i))


def _temporary_bytes(program: Program, backend: Backend, varying: Sequence[int]) -> int:
    """The most bytes that ops of a loop's body keep at once, inputs and results left out.

    An op that updates an operand, or is elementwise, writes its result over one that ends there.
    A product that is added to an array in place takes none.

    Arguments:
        program: the body.
        backend: the compiler.
        varying: inputs that are others in each iteration.
    """
    fusions, anew = Fusions(program, backend), dependents(program.equations, varying)
    ops = list(fusions.all())
    outside = {fusions.root(i) for i in program.outputs if isinstance(i, int)} | program.given
    outside |= _added_in_place(ops) if backend.adds_products_in_place else set()
    last = {i: n for n, op in enumerate(ops) for i in op.inputs}
    live, most = 0, 0
    for n, op in enumerate(ops):
        written = sum(program.nbytes(i) for i in op.outputs if i not in outside)
        ending = [i for i in op.inputs if last[i] == n and i not in outside]
        over = set(ending) - reduced_in((*op.fused, op.equation), fusions.root)
        room = max(map(program.nbytes, over), default=0)
        reused = written if is_in_place(op.equation) and written <= room else 0
        copied = _copied_bytes(op.equation, fusions, anew)
        most = max(most, live + written - reused + copied)
        live += written - sum(map(program.nbytes, ending))
    return most


def _added_in_place(ops: Sequence[Fusion]) -> set[int]:
    """Results of products that no op reads but their sum with another array."""
    reads = collections.Counter(i for op in ops for i in op.inputs)
    sums = [op for op in ops if op.equation.primitive in ("add", "add_any") and not op.fused]
    terms = {i for op in sums if len(set(op.inputs)) == 2 for i in op.inputs if reads[i] == 1}
    products = (op for op in ops if op.equation.primitive == "dot_general")
    return terms.intersection(i for op in products for i in op.outputs)


def _only_adds_up(trace: TracedStage, equation: Equation) -> bool:
    """Whether a loop of the forward pass stacks nothing."""
    _, carried, _ = compat.scan_counts(equation.eqn)
    is_forward = not trace.backward.intersection(equation.outputs)
    return is_forward and len(equation.outputs) == carried


def _carries(trace: TracedStage, equation: Equation) -> tuple[int, ...]:
    """What a loop begins with: inputs whose memory its results take."""
    if equation.primitive != "scan":
        return ()
    constants, carried, _ = compat.scan_counts(equation.eqn)
    carries = equation.inputs[constants : constants + carried]
    return tuple(trace.fusions.root(i) for i in carries if isinstance(i, int))


def _narrowed(trace: TracedStage, equation: Equation) -> tuple[int, ...]:
    """The operands of a product; not what its fusion computes them from."""
    if trace.backend.narrows_operands and _is_default_product(equation):
        return tuple(trace.fusions.root(i) for i in equation.reads)
    return ()


def _is_default_product(equation: Equation) -> bool:
    if equation.primitive not in PRODUCTS:
        return False
    precision = equation.eqn.params["precision"]
    precisions = precision if isinstance(precision, tuple) else (precision,)
    return all(x in (None, jax.lax.Precision.DEFAULT) for x in precisions)
