"""Rules by which an equation runs on slices of its operands along one axis.

A *cut* of an equation says along which axis each operand and each result is sliced, or that it is
whole. The equation run on slices gives slices of its results; or, where it sums over the axis,
terms of its results. A primitive without a rule here has no cut.

| index | means |
|---|---|
| `n` | a place among the operands of an equation |
| `axis`, `d` | an axis of an array; None where the array is whole |
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from ...ir import compat
from ...ir.program import Equation
from .division import Division

#: An equation's results from its operands, sliced as a cut says.
Function = Callable[[Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True)
class Cut:
    """A slicing of an equation.

    Attributes:
        inputs: the axis of each operand.
        outputs: the axis of each result.
        is_sum: whether slices give terms of the results, which are whole, instead of slices.
        params: the parameters that differ for slices.
        function: runs instead of the primitive, if it is not None.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    is_sum: bool = False
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    function: Function | None = None

    def run(self, equation: Equation, inputs: Sequence[Any]) -> list[Any]:
        """The results for slices of the operands."""
        if self.function is not None:
            return self.function(inputs)
        eqn = equation.eqn
        if self.params:
            eqn = eqn.replace(params={**eqn.params, **self.params})
        return compat.bind(eqn, inputs, compat.current_name_stack() + equation.name_stack)


def cuts_of(eqn: Any, division: Division) -> Iterator[Cut]:
    """The known cuts of an equation whose axes are divided in some way."""
    name = compat.primitive_name(eqn)
    if name in _RULES and not compat.has_effects(eqn):
        yield from _RULES[name](eqn, division)


def whole(eqn: Any) -> Cut:
    """The cut that leaves an equation whole."""
    return Cut((None,) * len(eqn.invars), (None,) * len(eqn.outvars))


def summed_in(dtype: Any) -> Any:
    """The dtype in which terms of slices are added: float32 at least, if they are floats."""
    is_half = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return jnp.dtype(jnp.float32 if is_half else dtype)


def _elementwise(eqn: Any, division: Division) -> Iterator[Cut]:
    shape = eqn.outvars[0].aval.shape
    for d, size in enumerate(shape):
        if division.divides(size):
            inputs = (v.aval.shape for v in eqn.invars)
            cut = (d if len(s) == len(shape) and s[d] == size else None for s in inputs)
            yield Cut(tuple(cut), (d,) * len(eqn.outvars))


def _broadcast(eqn: Any, division: Division) -> Iterator[Cut]:
    operand, shape = eqn.invars[0].aval.shape, eqn.params["shape"]
    places = eqn.params["broadcast_dimensions"]
    for d, size in enumerate(shape):
        if division.divides(size):
            axis = places.index(d) if d in places else None
            axis = axis if axis is not None and operand[axis] == size else None
            yield Cut((axis,), (d,), params={"shape": division.resized(shape, d)})


def _iota(eqn: Any, division: Division) -> Iterator[Cut]:
    shape = eqn.params["shape"]
    for d, size in enumerate(shape):
        if division.divides(size) and d != eqn.params["dimension"]:
            yield Cut((), (d,), params={"shape": division.resized(shape, d)})


def _reshape(eqn: Any, division: Division) -> Iterator[Cut]:
    """Slices stay slices where the sizes before the axis, and so behind it, have equal products."""
    if eqn.params["dimensions"] is not None:
        return
    old, new = eqn.invars[0].aval.shape, eqn.params["new_sizes"]
    for axis, d in ((a, b) for a in range(len(old)) for b in range(len(new))):
        same = math.prod(old[:axis]) == math.prod(new[:d])
        if same and division.divides(old[axis]) and division.divides(new[d]):
            yield Cut((axis,), (d,), params={"new_sizes": division.resized(new, d)})


def _squeeze(eqn: Any, division: Division) -> Iterator[Cut]:
    shape = eqn.invars[0].aval.shape
    kept = [n for n in range(len(shape)) if n not in eqn.params["dimensions"]]
    yield from (Cut((axis,), (d,)) for d, axis in enumerate(kept) if division.divides(shape[axis]))


def _transpose(eqn: Any, division: Division) -> Iterator[Cut]:
    shape = eqn.outvars[0].aval.shape
    for d, axis in enumerate(eqn.params["permutation"]):
        if division.divides(shape[d]):
            yield Cut((axis,), (d,))


def _reduce(eqn: Any, division: Division) -> Iterator[Cut]:
    shape, axes = eqn.invars[0].aval.shape, eqn.params["axes"]
    kept = [n for n in range(len(shape)) if n not in axes]
    yield from (Cut((axis,), (d,)) for d, axis in enumerate(kept) if division.divides(shape[axis]))


def _reduce_sum(eqn: Any, division: Division) -> Iterator[Cut]:
    yield from _reduce(eqn, division)
    shape = eqn.invars[0].aval.shape
    for axis in eqn.params["axes"]:
        if division.divides(shape[axis]):
            yield Cut((axis,), (None,), is_sum=True)


def _along(name: str) -> Callable[[Any, Division], Iterator[Cut]]:
    """The rule of primitives that run along one axis, named by a parameter."""

    def rule(eqn: Any, division: Division) -> Iterator[Cut]:
        shape = eqn.outvars[0].aval.shape
        for d, size in enumerate(shape):
            if division.divides(size) and d != eqn.params.get(name, -1) % len(shape):
                yield Cut((d,) * len(eqn.invars), (d,) * len(eqn.outvars))

    return rule


def _slice(eqn: Any, division: Division) -> Iterator[Cut]:
    operand, limits = eqn.invars[0].aval.shape, eqn.params["limit_indices"]
    for d, size in enumerate(eqn.outvars[0].aval.shape):
        if division.divides(size) and operand[d] == size:
            yield Cut((d,), (d,), params={"limit_indices": division.resized(limits, d)})


def _pad(eqn: Any, division: Division) -> Iterator[Cut]:
    for d, size in enumerate(eqn.outvars[0].aval.shape):
        if division.divides(size) and eqn.params["padding_config"][d] == (0, 0, 0):
            yield Cut((d, None), (d,))


def _product(eqn: Any, division: Division) -> Iterator[Cut]:
    """One operand is whole, or both are sliced along a batch axis or a contracted axis."""
    (contracted, batch), shape = eqn.params["dimension_numbers"], eqn.outvars[0].aval.shape
    free = [
        [d for d in range(len(v.aval.shape)) if d not in (*some, *together)]
        for v, some, together in zip(eqn.invars, contracted, batch, strict=True)
    ]
    axes = [*zip(*batch, strict=True), *((d, None) for d in free[0]), *((None, d) for d in free[1])]
    for d, inputs in enumerate(axes):
        if division.divides(shape[d]):
            yield Cut(inputs, (d,))
    for inputs in zip(*contracted, strict=True):
        if division.divides(eqn.invars[0].aval.shape[inputs[0]]):
            yield Cut(inputs, (None,), is_sum=True)


def _gather(eqn: Any, division: Division) -> Iterator[Cut]:
    """Slices of the indices, of batch axes with them, or of axes that are taken whole."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand, indices = (v.aval.shape for v in eqn.invars)
    result = eqn.outvars[0].aval.shape
    together = dict(
        zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    looked_up = [d for d in range(len(result)) if d not in numbers.offset_dims]
    for axis, d in enumerate(looked_up):
        if division.divides(indices[axis]):
            yield Cut((together.get(axis), axis), (d,))
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    taken = [axis for axis in range(len(operand)) if axis not in dropped]
    for axis, d in zip(taken, numbers.offset_dims, strict=True):
        is_all = sizes[axis] == operand[axis] and axis not in numbers.start_index_map
        if is_all and division.divides(operand[axis]):
            yield Cut((axis, None), (d,), params={"slice_sizes": division.resized(sizes, axis)})


_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp
convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor
ge gt integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min mul ne neg nextafter
not one_minus_square or polygamma population_count pow reduce_precision rem round rsqrt select_n
shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub
tan tanh xor
""".split()

_RULES: dict[str, Callable[[Any, Division], Iterator[Cut]]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(
        ("reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"), _reduce
    ),
    **dict.fromkeys(("argmax", "argmin"), _reduce),
    **{name: _along("axis") for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    "top_k": _along("axis"),
    "sort": _along("dimension"),
    "concatenate": _along("dimension"),
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "reduce_sum": _reduce_sum,
    "slice": _slice,
    "split": _along("axis"),
    "pad": _pad,
    "dot_general": _product,
    "gather": _gather,
}
