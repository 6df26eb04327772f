"""How does the derivative of a softmax do without what its exponentials are computed from?

Of weights `y = exp(z) / sum(exp(z))` the derivative is `y * (t - sum(y * t))`, where `t` is the
tangent of `z`: it reads the weights alone, which the product behind them keeps for its own
derivative. JAX differentiates the parts, so that the scores are kept beside the weights, or all of
it is computed again. Values are the same bit for bit. Each element of a gradient, given the
weights, is right within 4 units in the last place, and the rounding of one sum, of
`y * (|c| + sum(y * |c|))` for a cotangent `c`.

A softmax is found by what it computes, whoever wrote it: over any axes, its scores shifted or not,
masked or not. Where something else is differentiated that reads the exponentials or their sum,
their own derivatives go on serving that.
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
from ..ir.program import Equation, listed
from ..ir.stage import Replaced, Stage
from .context import Context
from .hooks import is_hook

#: Equations that hand on the numbers that they read, rounded perhaps, in another shape.
_MOVES = ("broadcast_in_dim", "convert_element_type", "copy", "copy_p", "reshape", "squeeze")

#: For each axis of an array, which axis of the exponentials it is; None where nothing changes along
#: it.
_Places = tuple[int | None, ...]


def rewrite(stage: Stage, avals: list[Any], context: Context) -> Replaced:
    """A stage whose softmaxes have derivatives that read their weights.

    Arguments:
        stage: its equations.
        avals: of all values; those of new ones are added.
        context: what the function is planned for.
    """
    del context
    instead: dict[int, list[Equation]] = {}
    weights: dict[int, int] = {}
    for found in _Finder(stage, avals).softmaxes():
        instead[id(found.division)] = new = found.replaced(avals)
        weights[found.division.outputs[0]] = new[-1].reads[0]
    return Replaced.of(stage, instead, weights)


@dataclasses.dataclass(frozen=True)
class _Sum:
    """How an array is summed.

    Attributes:
        axes: that are summed over.
        masks: booleans, each with that of its two values where elements count.
    """

    axes: tuple[int, ...]
    masks: tuple[tuple[int, bool], ...]


@dataclasses.dataclass(frozen=True)
class _Softmax:
    """A softmax.

    Attributes:
        division: computes the weights.
        exponents: of what the weights are the exponentials, over their sum.
        sum: that of the exponentials.
    """

    division: Equation
    exponents: int
    sum: _Sum

    def replaced(self, avals: list[Any]) -> list[Equation]:
        """The division, and behind it what has the derivative of the whole."""
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
    """The tangent of weights, from that of the exponents."""
    return weights * (tangent - _mean(sum_, weights * tangent, masks))


def _pushed_wide(
    sum_: _Sum, weights: jax.Array, tangent: jax.Array, masks: Sequence[jax.Array]
) -> jax.Array:
    """The same for weights of 16 bits, in float32.

    They add up to one but for their rounding: the mean of tangents that are large, and nearly the
    same, is off by more than they differ. So it is taken from them, and the mean of the rest too.
    """
    # It converts where it multiplies: of what a loop keeps nothing may be wider than the weights.
    times = functools.partial(lax.mul, weights, out_dtype=jnp.float32)
    tangent = tangent.astype(jnp.float32)
    for _ in range(2):
        tangent -= _mean(sum_, times(tangent), masks)
    return times(tangent).astype(weights.dtype)


def _mean(sum_: _Sum, parts: jax.Array, masks: Sequence[jax.Array]) -> jax.Array:
    """The sum of those parts of a mean that count, for each of them."""
    for mask, (_, counts) in zip(masks, sum_.masks, strict=True):
        parts = jnp.where(mask == counts, parts, 0)
    return jnp.broadcast_to(jnp.sum(parts, sum_.axes, keepdims=True), parts.shape)


@dataclasses.dataclass(frozen=True)
class _Step:
    """An equation between exponentials and their sum.

    Attributes:
        equation: the equation.
        reads: what it sums, masks or hands on.
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
        """Those through which tangents pass."""
        active = set(self.stage.differentiated_inputs)
        for e in self.stage.equations:
            if e.primitive not in STOPS and active.intersection(e.reads):
                active.update(i for i in e.outputs if compat.is_float(self.avals[i]))
            if e.primitive == "div" and active.issuperset(e.outputs):
                found = self._softmax(e)
                if found is not None and found.exponents in active:
                    yield found

    def _softmax(self, division: Equation) -> _Softmax | None:
        """That of which an equation computes the weights, if it does."""
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
        """What something is the exponential of, if it is one."""
        e = self.writer.get(atom) if isinstance(atom, int) else None
        return e.reads[0] if e is not None and e.primitive == "exp" and e.reads else None

    def _sum(self, total: Any, exponents: int) -> _Sum | None:
        """How a value is a sum of exponentials, and lies along them; None if it is none."""
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
        # Weights that add up to one share their sum: along the other axes, each is in its place.
        if len(places) != len(shape) or any(p not in (a, None) for a, p in enumerate(places)):
            return None
        axes = tuple(a for a, place in enumerate(places) if place is None)
        return _Sum(axes, tuple(x.mask for x in steps if x.mask is not None)) if axes else None

    def _path(self, total: Any, exponents: int) -> Sequence[_Step] | None:
        """The equations by which a value follows from exponentials; None if other things count."""
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
        """What of a sum an equation does, if anything."""
        match equation.primitive, equation.inputs:
            case "select_n", (int(which), first, second):
                if self._is_zero(first):
                    return _Step(equation, second, (which, True))
                return _Step(equation, first, (which, False)) if self._is_zero(second) else None
            case name, (only,) if name in (*_MOVES, "reduce_sum"):
                return _Step(equation, only)
        return None

    def _unmasked(self, value: int) -> int:
        """What `masks` has another derivative for; else the value itself."""
        e = self.writer.get(value)
        if e is None or e.primitive != "custom_jvp_call" or len(e.reads) < 2:
            return value
        tapped = self.writer.get(e.reads[1])
        return e.reads[0] if tapped is not None and is_hook(tapped) else value

    def _is_zero(self, atom: Any) -> bool:
        """Whether something is zeros, spread out perhaps."""
        if not isinstance(atom, int):
            return np.ndim(atom.val) == 0 and atom.val == 0
        e = self.writer.get(atom)
        return e is not None and e.primitive in _MOVES and self._is_zero(e.inputs[0])


def _moved(eqn: Any, places: _Places) -> _Places | None:
    """The places of a result, by those of the operand; None where they are not known."""
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
