"""Runs residual hooks as a plan says: writes codes, decodes them, recomputes residuals.

A code that a derivative can read as it is (`compression/windows`) is passed on undecoded.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from ..ir import compat
from ..ir.program import Equation, values_of
from .codecs import Codec, Kind, fold
from .compression.windows import Undecoded
from .hooks import representations_of
from .representations import Decoded, Derived, Representation, Stored

#: The message where a second derivative is taken.
TWICE = (
    "a plan that keeps lossy codes cannot be differentiated twice: what a code decodes to has no "
    'derivative. Plan with operators="exact".'
)
#: Elements of a value, at most, that decide on the noise of its code.
_SAMPLED = 1024


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How codes are written and read while a plan is emitted.

    Attributes:
        words: two words, uint32 of shape [2], from which noise is drawn; zeros if None.
        is_read: first value of a lossy code -> 0 or 1: whether the derivative reads the code, to
            find out the error that it makes. None reads all codes.
    """

    words: jax.Array | None = None
    is_read: Mapping[int, jax.Array] | None = None

    def renamed(self, number: Callable[[int], int], values: Iterable[int]) -> "Encoding":
        """The same with other numbers for some values."""
        if self.is_read is None:
            return self
        is_read = {i: self.is_read[number(i)] for i in values if number(i) in self.is_read}
        return Encoding(self.words, is_read)


#: All codes are read, and the noise depends on the data alone.
AS_PLANNED = Encoding()


def run_hook(
    equation: Equation,
    env: dict[int, Any],
    names: Mapping[int, str],
    active: Set[int] = frozenset(),
    encoding: Encoding = AS_PLANNED,
) -> None:
    """Run a residual hook as a plan says, reading and writing `env`.

    Arguments:
        equation: the residual hook.
        env: value number -> array.
        names: value number -> name, of the values that the plan saves.
        active: values that are differentiated.
        encoding: how codes are written and read.
    """
    (residual,) = values_of(env, equation.inputs[:1])
    representations = [
        (x, some) for x, some in representations_of(equation) if some and names.keys() >= {*some}
    ]
    if any(isinstance(x, Stored) and x.codec.kind.is_lossy for x, _ in representations):
        # A code is made in several passes, and for each XLA:CPU would compute a copy of the value.
        residual = jax.lax.optimization_barrier(residual)
        env.update({i: residual for i in equation.inputs[:1] if isinstance(i, int)})
    env[equation.outputs[0]] = residual
    is_active = not active.isdisjoint(equation.reads[:1])
    for representation, values in representations:
        if isinstance(representation, Stored):
            env.update(_encoded(representation.codec, values, residual, names, encoding.words))
        found = (
            _decoded(representation, values, equation, env, encoding, residual, is_active)
            if isinstance(representation, Decoded)
            else _by(representation, values, equation, env)
        )
        env[equation.outputs[0]] = found


def _decoded(
    representation: Decoded,
    values: tuple[int, ...],
    equation: Equation,
    env: Mapping[int, Any],
    encoding: Encoding,
    residual: jax.Array,
    is_active: bool,
) -> Any:
    """The residual by decoded codes; `Undecoded` where the derivative reads the code as it is."""
    witness = env[_witness(values[0])] if is_active else None
    if encoding.is_read is None and representation.direct is not None:
        code = tuple(jax.lax.stop_gradient(env[i]) for i in values)
        if is_active:
            code = tuple(_instead(x, x, witness) for x in code)
        return Undecoded(code, representation.direct)
    found = _by(representation, values, equation, env)
    if encoding.is_read is not None:
        found = jnp.where(encoding.is_read[values[0]], found, env[equation.outputs[0]])
    return _instead(residual, found, witness) if is_active else found


def _encoded(codec: Codec, values: tuple[int, ...], residual: Any, names, words) -> dict[int, Any]:
    """The code of a residual, named."""
    fixed, noise = jax.lax.stop_gradient(residual), None
    if codec.kind is Kind.UNBIASED:
        # Computed once: under `vmap`, LLVM takes minutes over fusions that hash words per element.
        noise = jax.lax.optimization_barrier(fold(_words_by(fixed, words), values[0]))
    # Sliced first: flattening might gather an array that is spread over devices.
    witness = residual[(slice(1),) * residual.ndim].reshape(-1)
    code = _whole(codec.encode)(fixed, noise)
    # The barrier keeps the compiler from replacing the decoded value by the encoded one.
    *code, witness = jax.lax.optimization_barrier((*code, witness))
    found = {i: checkpoint_name(x, names[i]) for x, i in zip(code, values, strict=True)}
    return found | {_witness(values[0]): checkpoint_name(witness, names[values[0]])}


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that JAX runs as a whole where it stands, without hoisting any part of it.

    JAX hoists whatever follows from no operand out of a loop that it differentiates, such as the
    index of each element and zeros of each array's size, and saves it.
    """
    whole = jax.custom_batching.custom_vmap(function)

    @whole.def_vmap
    def batched(size, is_batched, *args):
        axes = jax.tree.map(lambda some: 0 if some else None, is_batched)
        results = jax.vmap(function, axes, axis_size=size)(*args)
        return results, jax.tree.map(lambda _: True, results)

    return whole


def _witness(code: int) -> int:
    """The number of an element of the encoded value, which tells whether that has a tangent."""
    return ~code


def _words_by(value: jax.Array, words: jax.Array | None) -> jax.Array:
    """Words that differ with the data, so that no two steps and no two devices draw the same."""
    words = jnp.zeros(2, jnp.uint32) if words is None else words
    some = _sample(value).reshape(-1).astype(jnp.float32)
    drawn = jax.lax.bitcast_convert_type(some, jnp.uint32)
    places = jnp.arange(some.size, dtype=jnp.uint32) * 2 + 1
    return fold(words, jnp.sum(drawn * places, dtype=jnp.uint32))


def _sample(value: jax.Array) -> jax.Array:
    """Some elements from all over an array, by steps along its axes.

    The array is not made flat: on a TPU that is a copy, which takes twice the array's memory.
    """
    steps, counts = [1] * value.ndim, list(value.shape)
    while math.prod(counts) > _SAMPLED:
        longest = counts.index(max(counts))
        steps[longest] *= 2
        counts[longest] = -(-value.shape[longest] // steps[longest])
    return jax.lax.slice(value, [0] * value.ndim, value.shape, steps)


def _by(
    representation: Representation, values: tuple[int, ...], equation: Equation, env
) -> jax.Array:
    """The residual by one of its representations."""
    match representation:
        case Stored():
            code = tuple(env[i] for i in values)
            aval = equation.eqn.outvars[0].aval
            return _whole(lambda code: representation.codec.decode(code, aval))(code)
        case Derived():
            return representation.compute(env[values[0]])
        case Decoded():
            places = (*representation.codes, *representation.others)
            read = values_of(env, (equation.inputs[place] for place in places))
            return _whole(representation.compute)(*map(jax.lax.stop_gradient, read))


@jax.custom_jvp
def _instead(residual: jax.Array, decoded: jax.Array, witness: jax.Array) -> jax.Array:
    """The decoded residual, with the tangent of the exact one; no second derivative is taken."""
    del residual, witness
    return decoded


@_instead.defjvp
def _instead_jvp(primals, tangents):
    _, decoded, witness = primals
    return compat.constant_p.bind(decoded, witness, message=TWICE), tangents[0]
