"""How XLA's compilers differ in what they keep in memory.

Observed in the buffer assignments of the compilers themselves, on the models of the zoo.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import jax
import numpy as np

from ..ir.primitives import traits_of
from ..ir.program import Equation, aval_nbytes


@dataclasses.dataclass(frozen=True, slots=True)
class Backend:
    """One of XLA's compilers.

    Attributes:
        needs_scratch: whether ops take memory beside their inputs and outputs: `workspace_bytes`.
        narrows_operands: whether float32 values that only products read, at default precision, are
            kept as bfloat16.
        fuses_into_gathers: whether a gather computes the elements that it takes, instead of reading
            an operand from memory: the logits of the labels, say, widened to float32.
        fuses_into_products: whether products compute elementwise operands, random bits among them,
            instead of reading them from memory.
        fuses_row_reductions: whether a reduction of rows runs inside the fusion that reads both it
            and the rows, as in a softmax.
        lends_results: whether temporaries may lie in the memory of a result that is not yet
            written.
        on_chip_bytes: an array of more bytes that is added up in a loop, and is only a part of a
            result, has memory of its own; a smaller one is kept on the chip. Without end where it
            lies in the memory of the result.
        leaves_reductions: whether a library computes sums and extremes, which reads arrays where
            others read the same (see `ir/arrays/library_reductions`).
        computes_once: whether it computes nothing costly, an exponential say, for several fusions
            that read it, but keeps an array.
        kernels_come_last: whether the gradient of a convolution's or a product's kernel is computed
            when that of its operand is there, and not before.
        writes_for_each_view: whether what is cheap, a `relu` say, is computed for each shape in
            which it is read, in memory of its own, also where it is saved.
        recomputes_late: whether what a region runs again is run just before what reads it, and not
            all at the region's start.
        expands_pooling: whether the gradient of max pooling takes several times its operand, so
            that another implementation is better (see `operators/pooling`).
        sums_for_each_reader: whether a sum that several ops read, the parts of a concatenation say,
            is computed for each of them, from terms that are arrays in memory: nine of a pooling
            over windows of 3 x 3.
        copies_summed_axes: whether an operand of a product that sums over several axes is copied
            into another layout, at a cost beyond that of the product (see `operators/matrices`).
        fuses_gradients: whether what is computed again for a gradient is fused with other gradients
            that read the same, which are then computed early and kept.
        sums_what_it_writes: whether a sum runs in the op that writes its terms, or in one that
            reads them as well: these are then written over no operand, and nothing over them.
        drops_idle_rounding: whether a rounding to the precision that a value has is no op, which
            `jax.checkpoint` adds to what it saves.
        makes_zeros_early: whether zeros that gradients are added to are made when the program
            starts, and wait.
        zeroes_results_first: whether a result that begins as zeros, the gradient of a table or of
            what a loop reads, does so when the program starts: nothing lies there before.
        rolls_threefry: whether the rounds that draw random bits are a loop of their own, which
            copies the two words of each element that it carries. Of those that a user's loops
            draw, the counters are made before, once for all loops that draw as many.
        splits_dropped_softmax: whether a softmax that is dropped out runs in several fusions where
            its sums are not kept, which read the counters of random bits as arrays.
        fetches_at_once: whether an array that is on the host comes back as soon as it is there,
            whatever barrier it passes; a slice of a stack there comes when its index is known.
        copies_spread: whether a convolution that spreads an operand out reads a copy of it, with
            what the operand is made of computed inside: all but gradients (`spread_bytes`).
        adds_products_in_place: whether a product is added to an array where that lies, and has no
            array of its own: cuBLAS's `beta`.
        sums_in_one_order: whether a kernel that sums reads operands that lie in the same order of
            axes, and one that lies in another is written in that first (see `ir/arrays/layouts`).
        casts_before_loops: whether what a loop casts slices of is cast as a whole before it.
        side_multiple: a product of 16-bit floats reads its operands with zeros added to sides that
            are no multiples of it: tensor cores take no others.
        product_bytes: what a product takes beside its operands and result while it runs: cuBLAS's
            workspace, of products of any shape and dtype.
        tile: rows and columns of the tiles that arrays are padded to, if they are.
        chip_fills: a temporary that is live for no longer than it takes to fill `on_chip_bytes` so
            many times stays on the chip, as far as these go.
    """

    needs_scratch: bool = False
    narrows_operands: bool = False
    fuses_into_gathers: bool = False
    fuses_into_products: bool = False
    fuses_row_reductions: bool = False
    lends_results: bool = True
    on_chip_bytes: float = math.inf
    leaves_reductions: bool = False
    computes_once: bool = False
    kernels_come_last: bool = False
    writes_for_each_view: bool = False
    recomputes_late: bool = True
    expands_pooling: bool = True
    sums_for_each_reader: bool = False
    copies_summed_axes: bool = False
    fuses_gradients: bool = False
    sums_what_it_writes: bool = False
    drops_idle_rounding: bool = False
    makes_zeros_early: bool = False
    zeroes_results_first: bool = False
    rolls_threefry: bool = False
    splits_dropped_softmax: bool = False
    fetches_at_once: bool = False
    copies_spread: bool = False
    adds_products_in_place: bool = False
    keeps_kernels: bool = False
    sums_in_one_order: bool = False
    casts_before_loops: bool = False
    side_multiple: int = 1
    product_bytes: int = 0
    tile: tuple[int, int] | None = None
    chip_fills: float = 0.0


#: What XLA gives cuBLAS on a Hopper card, ahead of time.
_CUBLAS_BYTES = (4 if jax.__version_info__ >= (0, 12) else 32) * 2**20


_BACKENDS = {
    "cpu": Backend(
        needs_scratch=True,
        leaves_reductions=True,
        computes_once=True,
        kernels_come_last=True,
        writes_for_each_view=True,
        recomputes_late=False,
        sums_for_each_reader=True,
        copies_summed_axes=True,
        zeroes_results_first=True,
        rolls_threefry=True,
    ),
    "gpu": Backend(
        fuses_into_gathers=True,
        fuses_row_reductions=True,
        fuses_gradients=True,
        sums_what_it_writes=True,
        drops_idle_rounding=True,
        makes_zeros_early=True,
        copies_spread=True,
        adds_products_in_place=True,
        keeps_kernels=True,
        sums_in_one_order=True,
        side_multiple=8,
        product_bytes=_CUBLAS_BYTES,
    ),
    "tpu": Backend(
        narrows_operands=True,
        fuses_into_products=True,
        lends_results=False,
        on_chip_bytes=128 * 2**20,  # as large as a v5e's vector memory
        expands_pooling=False,
        splits_dropped_softmax=True,
        fetches_at_once=True,
        casts_before_loops=True,
        tile=(8, 128),  # sublanes by lanes of a vector register
        chip_fills=6.1,  # by the temporaries of ViTs on a v5e, as `docs/how/targets.md` says
    ),
}


def backend_of(target: str) -> Backend:
    """The compiler for a target, by its name: "cpu", "gpu:h100", "tpu:v5e".

    A platform that is not known counts as a GPU, as it does in `targets`.
    """
    return _BACKENDS.get(target.partition(":")[0], _BACKENDS["gpu"])


def workspace_bytes(equation: Equation) -> int:
    """Bytes that XLA:CPU needs for an equation only while it runs: copies of operands and result.

    It convolves batch-first, feature-last; a gradient with respect to a kernel sums over the batch,
    so its operands are copied into another layout, the cotangent while the original is there. One
    of a convolution in groups is computed as if there were none, and then a block for each group is
    chosen from that, when the copies are gone. Other backends fuse or stream what is counted here.
    """
    if not _is_transposed(equation):
        return 0
    groups = equation.eqn.params["batch_group_count"]
    (result,) = (aval_nbytes(v.aval) for v in equation.eqn.outvars)
    operand, cotangent = (aval_nbytes(v.aval) for v in equation.eqn.invars)
    ungrouped = groups * result
    chosen_from = 2 * ungrouped - operand - cotangent if groups > 1 else 0
    return operand + max(cotangent, ungrouped, chosen_from)


def spread_bytes(equation: Equation, producer: Mapping[int, Equation]) -> int:
    """Bytes of the copies that XLA:GPU makes for a convolution that spreads its operand out.

    Transposed convolutions do so, which upsample images: the operand is copied with zeros between
    its elements. cuDNN has none but the gradient of another convolution, which XLA:GPU knows by its
    reversed kernel. Where the gradient of a kernel is computed, by a convolution over the batch,
    both operands are copied, with the batch last. 0 of others.

    Arguments:
        equation: of the program.
        producer: value -> the equation that makes it.
    """
    if equation.primitive != "conv_general_dilated":
        return 0
    kernel = equation.inputs[1]
    if isinstance(kernel, int) and kernel in producer and producer[kernel].primitive == "rev":
        return 0
    params, (operand, other) = equation.eqn.params, (v.aval for v in equation.eqn.invars)
    if all(n == 1 for n in params["lhs_dilation"]):
        return 0
    if params["dimension_numbers"].lhs_spec[0] != 0:
        return aval_nbytes(operand) + aval_nbytes(other)
    sides = [*operand.shape]
    spatial = params["dimension_numbers"].lhs_spec[2:]
    for axis, gap, pads in zip(spatial, params["lhs_dilation"], params["padding"], strict=True):
        sides[axis] = (sides[axis] - 1) * gap + 1 + sum(pads)
    return math.prod(sides) * operand.dtype.itemsize


def widened_operands(equation: Equation, multiple: int) -> Iterator[tuple[int, int]]:
    """The operands of a product whose sides are made multiples of some number, and their bytes.

    XLA:GPU does so to those of 16-bit floats: a vocabulary of 50,257 words, say, or 197 tokens.
    Axes that the product runs along one by one, its batch axes, stay as they are.
    """
    if equation.primitive != "dot_general":
        return
    _, batch = equation.eqn.params["dimension_numbers"]
    for i, v, apart in zip(equation.inputs, equation.eqn.invars, batch, strict=True):
        shape, size = v.aval.shape, v.aval.dtype.itemsize
        sides = [n if d in apart else -(-n // multiple) * multiple for d, n in enumerate(shape)]
        if isinstance(i, int) and size == 2 and sides != [*shape]:
            yield i, size * math.prod(sides)


def scattering_bytes(equation: Equation) -> int:
    """Bytes that XLA:CPU keeps for an equation of a backward pass, beside what it reads.

    The gradient of max pooling is a scatter into zeros, as large as the padded operand. Both these
    and the places that it adds to, one int32 for each window and axis, are computed early.
    """
    if not traits_of(equation.primitive).compares_windows:
        return 0
    cotangent, operand = (v.aval for v in equation.eqn.invars[:2])
    sides = zip(operand.shape, equation.eqn.params["padding"], strict=True)
    zeros = math.prod(n + sum(pads) for n, pads in sides) * operand.dtype.itemsize
    return zeros + cotangent.size * cotangent.ndim * np.dtype(np.int32).itemsize


def copied_operand(equation: Equation) -> int | None:
    """The value that an equation reads in another layout than it is in, as its left operand."""
    if not _is_transposed(equation):
        return None
    operand = equation.inputs[0]
    return operand if isinstance(operand, int) else None


def _is_transposed(equation: Equation) -> bool:
    if equation.primitive != "conv_general_dilated":
        return False
    lhs, _, _ = equation.eqn.params["dimension_numbers"]
    return not (lhs[0] == 0 and lhs[1] == len(lhs) - 1)
