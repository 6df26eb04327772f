"""A tap: what a derivative reads of the forward pass, made a value that a plan may keep otherwise.

An operator rewrites an equation so that its derivative reads a *residual*, and passes that residual
through a tap. The planner sees which backward ops reach their operands through the tap alone, and
may have them read one of its *forms* instead: a code of fewer bytes, or other values from which
the residual follows. Where a plan saves none of the forms, a tap is the identity, and the program
is the one that JAX would have made. A code that a derivative can read as it is (`windows`) is
passed on undecoded.

What a derived form reads may be saved for another reason. A *mark*, of no elements, is among what
the plan saves where the derivative is to read it; no program has it.

| form | what is kept | what the derivative reads |
|---|---|---|
| `Stored` | the code of the residual | the decoded residual |
| `Derived` | another value of the program, and a mark | the residual, computed from it |
| `Decoded` | codes that other taps write | the residual, computed from what they decode to |
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from ..ir import compat
from ..ir.program import Equation, values_of
from .codecs import Codec, Kind, arrays, fold
from .compression.windows import Direct, Undecoded

#: What equations of this kind are called.
NAME = "monet_hook"
#: What is said of second derivatives.
TWICE = (
    "a plan that keeps lossy codes cannot be differentiated twice: what a code decodes to has no "
    'derivative. Plan with operators="exact".'
)
#: An array that is nothing but a name to save.
_MARK = jax.ShapeDtypeStruct((0,), jnp.uint8)
#: Elements of a value, at most, that decide on the noise of its code.
_SAMPLED = 1024


@dataclasses.dataclass(frozen=True)
class Stored:
    """A residual is kept as its code.

    Attributes:
        codec: how.
    """

    codec: Codec

    def arrays(self, aval: Any) -> Sequence[jax.ShapeDtypeStruct]:
        """The arrays of the code of a residual."""
        return arrays(self.codec, aval)


@dataclasses.dataclass(frozen=True)
class Derived:
    """A residual is computed from another value, which may be kept for more than one reason.

    Attributes:
        compute: the residual from that value. A function of a module, or data, so that it can be
            compared; its derivative is that of the residual.
        operand: the place of the value among the operands of the tap.
    """

    compute: Callable[[jax.Array], jax.Array]
    operand: int = 1

    def arrays(self, aval: Any) -> Sequence[jax.ShapeDtypeStruct]:
        """The mark."""
        del aval
        return (_MARK,)


@dataclasses.dataclass(frozen=True)
class Decoded:
    """A residual is computed from codes that other taps write, and from what is kept anyway.

    Attributes:
        codec: of the first code; others are exact.
        compute: the residual from the codes and the other values. Its `repr` says what it does.
        codes: the places of the codes' arrays among the operands of the tap.
        others: the places of the other values.
        direct: how the derivative reads the codes as they are, if it can; then it does so.
    """

    codec: Codec
    compute: Callable[..., jax.Array]
    codes: tuple[int, ...]
    others: tuple[int, ...] = ()
    direct: Direct | None = dataclasses.field(default=None, repr=False)

    def arrays(self, aval: Any) -> Sequence[jax.ShapeDtypeStruct]:
        """None that would not be there otherwise."""
        del aval
        return ()


Representation = Stored | Derived | Decoded


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How codes are written and read while a plan is emitted.

    Attributes:
        words: two words, uint32 of shape [2], from which noise is drawn; zeros if None.
        compiled_plan: first value of a lossy code -> 0 or 1: whether it is read, to find out what
        it does;
            None reads all.
    """

    words: jax.Array | None = None
    compiled_plan: Mapping[int, jax.Array] | None = None

    def renamed(self, number: Callable[[int], int], values: Iterable[int]) -> "Encoding":
        """The same by other numbers of some values."""
        if self.compiled_plan is None:
            return self
        compiled_plan = {
            i: self.compiled_plan[number(i)] for i in values if number(i) in self.compiled_plan
        }
        return Encoding(self.words, compiled_plan)


#: All codes are read, and the noise is that of the data alone.
AS_PLANNED = Encoding()


def hook(
    residual: jax.Array, *operands: jax.Array, representations: Sequence[Representation]
) -> jax.Array:
    """The residual, as a derivative is to read it. No tangent passes.

    Arguments:
        residual: what the derivative reads.
        *operands: the values from which `Derived` and `Decoded` forms are computed.
        representations: in order of preference, the best one last.
    """
    return _hook_p.bind(residual, *operands, representations=tuple(representations))[0]


def encoded(value: jax.Array, codecs: Sequence[Codec]) -> list[jax.Array]:
    """The arrays of a value's codes, one codec after the other, for `Decoded` forms of taps."""
    return _hook_p.bind(value, representations=tuple(map(Stored, codecs)))[1:]


def _results(
    residual: Any, *operands: Any, representations: tuple[Representation, ...]
) -> list[Any]:
    """The residual, and what each form writes."""
    del operands
    return [
        residual,
        *(array for representation in representations for array in representation.arrays(residual)),
    ]


_hook_p = compat.abstract_primitive(NAME, _results)


def is_hook(equation: Equation) -> bool:
    """Whether an equation is a tap."""
    return equation.primitive == NAME


def representations_of(equation: Equation) -> Iterator[tuple[Representation, tuple[int, ...]]]:
    """The forms of a tap, each with the values that a plan saves to use it."""
    codes = iter(equation.outputs[1:])
    residual = equation.eqn.outvars[0].aval
    for representation in equation.eqn.params["representations"]:
        match representation:
            case Derived():
                mark, operand = next(codes), _numbers(equation, [representation.operand])
                yield representation, (*operand, mark) if operand else ()
            case Decoded():
                yield representation, _numbers(equation, representation.codes)
            case Stored():
                yield representation, tuple(next(codes) for _ in representation.arrays(residual))


def others_of(representation: Representation, equation: Equation) -> tuple[int, ...]:
    """What a form of a tap is computed from beside what a plan saves to use it."""
    return _numbers(equation, representation.others) if isinstance(representation, Decoded) else ()


def _numbers(equation: Equation, places: Sequence[int]) -> tuple[int, ...]:
    operands = (equation.inputs[place] for place in places)
    return tuple(i for i in operands if isinstance(i, int))


def representation_name(equation: Equation, value: int) -> str:
    """How a value is stored that an equation writes: by which codec, or "exact".

    A mark, which has a derivative read a result, goes by "result".
    """
    match _representation_of(equation, value):
        case Stored(codec):
            return codec.name
        case Derived():
            return "result"
        case _:
            return "exact"


def is_lossy_code(equation: Equation, value: int) -> bool:
    """Whether a value that an equation writes is an array of a code that is not exact."""
    representation = _representation_of(equation, value)
    return isinstance(representation, Stored) and representation.codec.kind.is_lossy


def _representation_of(equation: Equation, value: int) -> Representation | None:
    """The form of a tap that a value is for which it writes, if it is for one."""
    representations = representations_of(equation) if is_hook(equation) else ()
    return next(
        (representation for representation, values in representations if value in values), None
    )


def run_hook(
    equation: Equation,
    env: dict[int, Any],
    names: Mapping[int, str],
    active: Set[int] = frozenset(),
    encoding: Encoding = AS_PLANNED,
) -> None:
    """Run a tap as a plan says, reading and writing `env`.

    Arguments:
        equation: the tap.
        env: value number -> array.
        names: value number -> name, of what the plan saves.
        active: values that are differentiated.
        encoding: how codes are written and read.
    """
    (residual,) = values_of(env, equation.inputs[:1])
    representations = [
        (x, some) for x, some in representations_of(equation) if some and names.keys() >= {*some}
    ]
    if any(
        isinstance(representation, Stored) and representation.codec.kind.is_lossy
        for representation, _ in representations
    ):
        # A code is made in several passes, and for each XLA:CPU would compute a copy of the value.
        residual = jax.lax.optimization_barrier(residual)
        env.update({i: residual for i in equation.inputs[:1] if isinstance(i, int)})
    env[equation.outputs[0]] = residual
    for representation, values in representations:
        if isinstance(representation, Stored):
            env.update(_encoded(representation.codec, values, residual, names, encoding.words))
        is_active = not active.isdisjoint(equation.reads[:1]) and isinstance(
            representation, Decoded
        )
        witness = env[_witness(values[0])] if is_active else None
        if (
            encoding.compiled_plan is None
            and isinstance(representation, Decoded)
            and representation.direct is not None
        ):
            code = tuple(jax.lax.stop_gradient(env[i]) for i in values)
            if is_active:
                code = tuple(_instead(x, x, witness) for x in code)
            env[equation.outputs[0]] = Undecoded(code, representation.direct)
            continue
        found = _by(representation, values, equation, env)
        if encoding.compiled_plan is not None and isinstance(representation, Decoded):
            found = jnp.where(encoding.compiled_plan[values[0]], found, env[equation.outputs[0]])
        env[equation.outputs[0]] = _instead(residual, found, witness) if is_active else found


def _encoded(codec: Codec, values: tuple[int, ...], residual: Any, names, words) -> dict[int, Any]:
    """The code of a residual, named."""
    fixed, noise = jax.lax.stop_gradient(residual), None
    if codec.kind is Kind.UNBIASED:
        # Computed once: under `vmap`, LLVM takes minutes over what hashes words for each element.
        noise = jax.lax.optimization_barrier(fold(_words_by(fixed, words), values[0]))
    # Cut before it is flattened: an array that is spread over devices might be gathered otherwise.
    witness = residual[(slice(1),) * residual.ndim].reshape(-1)
    code = _whole(codec.encode)(fixed, noise)
    # Behind the barrier, what is decoded is not what was encoded, whatever the compiler knows.
    *code, witness = jax.lax.optimization_barrier((*code, witness))
    found = {i: checkpoint_name(x, names[i]) for x, i in zip(code, values, strict=True)}
    return found | {_witness(values[0]): checkpoint_name(witness, names[values[0]])}


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that JAX runs as a whole where it is, and takes nothing out of.

    Of a loop that it differentiates, JAX computes before it whatever follows from no operand, the
    index of each element and zeros of each array's size, say, and keeps them.
    """
    whole = jax.custom_batching.custom_vmap(function)

    @whole.def_vmap
    def batched(size, is_batched, *args):
        axes = jax.tree.map(lambda some: 0 if some else None, is_batched)
        results = jax.vmap(function, axes, axis_size=size)(*args)
        return results, jax.tree.map(lambda _: True, results)

    return whole


def _witness(code: int) -> int:
    """Under which number an element waits that tells whether what a code is of has a tangent."""
    return ~code


def _words_by(value: jax.Array, words: jax.Array | None) -> jax.Array:
    """Other words for other data, so that no two steps and no two devices draw the same."""
    words = jnp.zeros(2, jnp.uint32) if words is None else words
    some = _sample(value).reshape(-1).astype(jnp.float32)
    drawn = jax.lax.bitcast_convert_type(some, jnp.uint32)
    places = jnp.arange(some.size, dtype=jnp.uint32) * 2 + 1
    return fold(words, jnp.sum(drawn * places, dtype=jnp.uint32))


def _sample(value: jax.Array) -> jax.Array:
    """Some elements from all over an array, by steps along its axes.

    Not of the flat array: on a TPU that is a copy, which takes twice the memory of the array.
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
    """The residual by one of its forms."""
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
    """What was decoded, with the tangent of the residual; but that is not differentiated again."""
    del residual, witness
    return decoded


@_instead.defjvp
def _instead_jvp(primals, tangents):
    _, decoded, witness = primals
    return compat.constant_p.bind(decoded, witness, message=TWICE), tangents[0]
