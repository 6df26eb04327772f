"""Softmax with a derivative that reads its weights alone.

Of weights `y = exp(z) / sum(exp(z))` the derivative is `y * (t - sum(y * t))`, where `t` is the
tangent of `z`. It reads the weights, which the product behind them saves for its own derivative.
JAX differentiates the parts, so that the scores are saved beside the weights, or all of it is
computed again. Values are the same bit for bit. Each element of a gradient, for these weights, is
right within 4 units in the last place plus the rounding of one sum, of `y * (|c| + sum(y * |c|))`
for a cotangent `c`.

A softmax is found by what it computes, whoever wrote it: over any axes, its scores shifted or not,
masked or not. Where another differentiated value reads the exponentials or their sum, their own
derivatives go on serving that.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..ir import compat
from ..ir.primitives import STOPS
from ..ir.program import Equation, listed, positions_of
from ..ir.stage import Replaced, Stage
from .context import Context
from .hooks import is_hook

#: Equations whose results hold the numbers of the operand, perhaps rounded, in another shape.
_MOVES = ("broadcast_in_dim", "convert_element_type", "copy", "copy_p", "reshape", "squeeze")

#: For each axis of an array, the axis of the exponentials that it is; None where the array is
#: constant along it.
_Places = tuple[int | None, ...]


def rewrite(stage: Stage, avals: list[Any], context: Context) -> Replaced:
    """The stage, with softmaxes whose derivatives read their weights.

    Arguments:
        stage: its equations.
        avals: of all values; avals of new values are added.
        context: the target of the function.
    """
    del context
    instead: dict[int, list[Equation]] = {}
    weights: dict[int, int] = {}
    position = positions_of(stage.equations)
    for found in _Finder(stage, avals).softmaxes():
        new = found.replaced(avals)
        instead[position[found.division.outputs[0]]] = new
        weights[found.division.outputs[0]] = new[-1].reads[0]
    return Replaced.of(stage, instead, weights)


@dataclasses.dataclass(frozen=True)
class _Sum:
    """How an array is summed.

    Attributes:
        axes: the axes that are summed over.
        masks: booleans, each with the one of its two values for which elements count.
    """

    axes: tuple[int, ...]
    masks: tuple[tuple[int, bool], ...]


@dataclasses.dataclass(frozen=True)
class _Softmax:
    """A softmax.

    Attributes:
        division: computes the weights.
        exponents: the weights are their exponentials, over the sum.
        sum: how the exponentials are summed.
    """

    division: Equation
    exponents: int
    sum: _Sum

    def replaced(self, avals: list[Any]) -> list[Equation]:
        """The division, and behind it the equation that has the derivative of the softmax."""
        masks = [mask for mask, _ in self.sum.masks]
        operands = [*self.division.inputs, self.exponents, *masks]
        return listed(self._weights, operands, self.division, avals, self.division.outputs)

    def _weights(self, exponentials, total, exponents, *masks) -> jax.Array:
        (weights,) = compat.bind_here(self.division.eqn, [exponentials, total])
        return _with_derivative(self.sum)(weights, exponents, *masks)


def _with_derivative(sum_: _Sum) -> Any:
    """A function of weights, exponents and masks: the weights, as a function of the exponents."""

    @jax.custom_jvp
    def joined(weights, exponents, *masks):
        return weights

    @joined.defjvp
    def rule(primals, tangents):
        weights, _, *masks = primals
        pushed = _pushed if jnp.finfo(weights.dtype).bits >= 32 else _pushed_wide
        return weights, pushed(sum_, weights, tangents[1], masks)

    return joined


def _pushed(
    sum_: _Sum, weights: jax.Array, tangent: jax.Array, masks: Sequence[jax.Array]
) -> jax.Array:
    """The tangent of weights, from the tangent of the exponents."""
    return weights * (tangent - _mean(sum_, weights * tangent, masks))


def _pushed_wide(
    sum_: _Sum, weights: jax.Array, tangent: jax.Array, masks: Sequence[jax.Array]
) -> jax.Array:
    """The same for weights of 16 bits, in float32.

    The weights add up to one but for their rounding, by which the mean of large tangents that are
    nearly equal is off by more than they differ. So the mean is subtracted from the tangents, and
    then the mean of the differences.
    """
    # The product converts: no residual of a loop may be wider than the weights.
    times = functools.partial(lax.mul, weights, out_dtype=jnp.float32)
    tangent = tangent.astype(jnp.float32)
    for _ in range(2):
        tangent -= _mean(sum_, times(tangent), masks)
    return times(tangent).astype(weights.dtype)


def _mean(sum_: _Sum, parts: jax.Array, masks: Sequence[jax.Array]) -> jax.Array:
    """The sum of the parts of a mean that count, repeated for each part."""
    for mask, (_, counts) in zip(masks, sum_.masks, strict=True):
        parts = jnp.where(mask == counts, parts, 0)
    return jnp.broadcast_to(jnp.sum(parts, sum_.axes, keepdims=True), parts.shape)


@dataclasses.dataclass(frozen=True)
class _Step:
    """An equation between exponentials and their sum.

    Attributes:
        equation: the equation.
        reads: the operand that it sums, masks or reshapes.
        mask: as in `_Sum`.
    """

    equation: Equation
    reads: Any
    mask: tuple[int, bool] | None = None


class _Finder:
    """The softmaxes of a stage."""

    def __init__(self, stage: Stage, avals: Sequence[Any]):
        self.stage, self.avals = stage, avals
        self.writer = {i: e for e in stage.equations for i in e.outputs}

    def softmaxes(self) -> Iterator[_Softmax]:
        """The softmaxes through which tangents pass."""
        active = set(self.stage.differentiated_inputs)
        for e in self.stage.equations:
            if e.primitive not in STOPS and active.intersection(e.reads):
                active.update(i for i in e.outputs if compat.is_float(self.avals[i]))
            if e.primitive == "div" and active.issuperset(e.outputs):
                found = self._softmax(e)
                if found is not None and found.exponents in active:
                    yield found

    def _softmax(self, division: Equation) -> _Softmax | None:
        """The softmax whose weights a division computes, if there is one."""
        parts, total = division.inputs
        exponents = self._exponents(parts)
        if exponents is None:
            return None
        aval, result = self.avals[exponents], self.avals[division.outputs[0]]
        if not _is_real(aval) or aval.shape != result.shape or 0 in aval.shape:
            return None
        found = None if compat.is_placed(aval) else self._sum(total, exponents)
        return found and _Softmax(division, exponents, found)

    def _exponents(self, atom: Any) -> int | None:
        """The operand of an exponential; None for other values."""
        e = self.writer.get(atom) if isinstance(atom, int) else None
        return e.reads[0] if e is not None and e.primitive == "exp" and e.reads else None

    def _sum(self, total: Any, exponents: int) -> _Sum | None:
        """How a value sums exponentials; None if it is no sum, or lies elsewhere on other axes."""
        shape = self.avals[exponents].shape
        whole: _Places = tuple(a if size > 1 else None for a, size in enumerate(shape))
        places: _Places | None = whole
        steps = self._path(total, exponents)
        if steps is None:
            return None
        for x in steps:
            if x.mask is not None and (places != whole or self.avals[x.mask[0]].shape != shape):
                return None
            places = _moved(x.equation.eqn, places)
            if places is None:
                return None
        places = places or (None,) * len(shape)  # one number divides all
        # All weights of a sum are divided by it: along the other axes, it lies in its own place.
        if len(places) != len(shape) or any(p not in (a, None) for a, p in enumerate(places)):
            return None
        axes = tuple(a for a, place in enumerate(places) if place is None)
        return _Sum(axes, tuple(x.mask for x in steps if x.mask is not None)) if axes else None

    def _path(self, total: Any, exponents: int) -> Sequence[_Step] | None:
        """The equations from exponentials to a value; None if the value depends on more."""
        found: list[_Step] = []
        while self._exponents(total) != exponents:
            e = self.writer.get(self._unmasked(total)) if isinstance(total, int) else None
            step = None if e is None or not _is_real(self.avals[e.outputs[0]]) else self._step(e)
            if step is None:
                return None
            found.append(step)
            total = step.reads
        return found[::-1]

    def _step(self, equation: Equation) -> _Step | None:
        """The part of a sum that an equation computes, if any."""
        match equation.primitive, equation.inputs:
            case "select_n", (int(which), first, second):
                if self._is_zero(first):
                    return _Step(equation, second, (which, True))
                return _Step(equation, first, (which, False)) if self._is_zero(second) else None
            case name, (only,) if name in (*_MOVES, "reduce_sum"):
                return _Step(equation, only)
        return None

    def _unmasked(self, value: int) -> int:
        """The value to which `masks` has given another derivative; else the value itself."""
        e = self.writer.get(value)
        if e is None or e.primitive != "custom_jvp_call" or len(e.reads) < 2:
            return value
        hooked = self.writer.get(e.reads[1])
        return e.reads[0] if hooked is not None and is_hook(hooked) else value

    def _is_zero(self, atom: Any) -> bool:
        """Whether an operand is zero, or a broadcast of it."""
        if not isinstance(atom, int):
            return np.ndim(atom.val) == 0 and atom.val == 0
        e = self.writer.get(atom)
        return e is not None and e.primitive in _MOVES and self._is_zero(e.inputs[0])


def _moved(eqn: Any, places: _Places) -> _Places | None:
    """The places of a result, by the places of the operand; None where they are not known."""
    operand, result = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    match eqn.primitive.name:
        case "reduce_sum":
            summed = eqn.params["axes"]
            repeated = any(places[n] is None and operand[n] > 1 for n in summed)
            return None if repeated else tuple(a for n, a in enumerate(places) if n not in summed)
        case "broadcast_in_dim":
            moved = dict(zip(eqn.params["broadcast_dimensions"], places, strict=True))
            return tuple(moved.get(n) for n in range(len(result)))
        case "reshape" | "squeeze":
            if [n for n in operand if n > 1] != [n for n in result if n > 1]:
                return None
            kept = iter([a for a, n in zip(places, operand, strict=True) if n > 1])
            return tuple(next(kept) if n > 1 else None for n in result)
        case _:
            return places


def _is_real(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.floating)
