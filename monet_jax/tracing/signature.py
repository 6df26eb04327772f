"""Separates a call into arrays to trace and static parts.

Arrays, typed keys, tracers, `ShapeDtypeStruct`s and int, float and complex scalars are traced.
Everything else in the arguments' pytrees (bool, str, None, any other object) is static, as are the
arguments named by `static_argnums` and `static_argnames`.
"""

import dataclasses
import enum
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jax.sharding import AxisType

from ..ir import compat


@dataclasses.dataclass(frozen=True)
class Options:
    """How a function's arguments are meant.

    Attributes:
        argnums: positions of the arguments to differentiate.
        argnames: their names, where the function has them.
        static_argnums: positions of arguments that are not arrays.
        static_argnames: names of such arguments.
        given: `argnums`, `static_argnums` and `static_argnames` as the user gave them.
    """

    argnums: tuple[int, ...]
    argnames: tuple[str, ...]
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    given: tuple[Any, Any, Any]

    def of(self, fun: Callable[..., Any]) -> "Options":
        """The same options for another function: a bound method, say, which lacks `self`."""
        return make_options(fun, *self.given)

    def after_self(self) -> "Options":
        """The same of a method whose first argument, to be differentiated, was not counted."""

        def moved(places: Iterable[int]) -> tuple[int, ...]:
            return tuple(n + 1 if n >= 0 else n for n in places)

        argnums, static = (0, *moved(self.argnums)), moved(self.static_argnums)
        return dataclasses.replace(self, argnums=argnums, static_argnums=static)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call, taken apart.

    Attributes:
        leaves: the traced leaves, in order.
        differentiated: for each of them, whether `argnums` covers it.
        signature: equal for calls that may share a plan: structure, static parts, avals.
        is_final: whether calls of an equal signature may share a trace as well. Static parts that
            are not hashable, or are what they are by identity, may change from call to call.
        rebuild: traced leaves -> `(args, kwargs)`.
        params: what `argnums` covers, as an optimizer takes it: one argument, or a tuple of them.
        key: of what the function reads beside the leaves, or None, as `closure_key` has it; None
            where all that it closes over counts.
    """

    leaves: tuple[Any, ...]
    differentiated: tuple[bool, ...]
    signature: Hashable
    rebuild: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    params: Any
    is_final: bool = True
    key: Callable[[], Hashable | None] | None = None


def make_options(fun: Callable[..., Any], argnums, static_argnums, static_argnames) -> Options:
    """Normalised options; positions and names of static arguments complete each other.

    Raises:
        TypeError: there is no function, or an option is not an int, a str, or a sequence of them.
        ValueError: an argument is both static and differentiated, or does not exist.
    """
    if not callable(fun):
        raise TypeError(f"Only a function can be planned; got {fun!r}.")
    nums = _as_tuple("argnums", argnums, int)
    static = set(_as_tuple("static_argnums", static_argnums, int))
    names = set(_as_tuple("static_argnames", static_argnames, str))
    if overlap := set(nums) & static:
        raise _both(sorted(overlap))
    positional, is_open = _positional_names(fun)
    if not is_open and len(_named(positional, nums)) < len(nums):
        raise ValueError(
            f"`argnums` is {argnums!r}, but the positional arguments are only {positional}."
        )
    static |= {n for n, name in enumerate(positional) if name in names}
    names |= set(_named(positional, static))
    return Options(
        nums,
        tuple(_named(positional, nums)),
        tuple(sorted(static)),
        tuple(sorted(names)),
        (argnums, static_argnums, static_argnames),
    )


def has_positional(fun: Callable[..., Any]) -> bool:
    """Whether a function takes an argument by position."""
    positional, is_open = _positional_names(fun)
    return is_open or bool(positional)


def _both(places: Sequence[Any]) -> ValueError:
    return ValueError(
        f"Arguments {places} are in both `argnums` and `static_argnums` (or `static_argnames`); "
        "a static argument has no gradient. Remove them from one of the two."
    )


def _named(positional: Sequence[str], places: Iterable[int]) -> list[str]:
    return [positional[n] for n in places if -len(positional) <= n < len(positional)]


def _as_tuple(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    values = (value,) if isinstance(value, kind) else value
    if not isinstance(values, Sequence | set | frozenset) or isinstance(values, str):
        raise TypeError(f"`{name}` must be {kind.__name__} or a sequence of them; got {value!r}.")
    if not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
        raise TypeError(f"`{name}` must hold {kind.__name__}s only; got {value!r}.")
    return tuple(values)


def _positional_names(fun: Callable[..., Any]) -> tuple[list[str], bool]:
    """The names of the positional arguments, and whether there may be more of them."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature
        return [], True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    is_open = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return [p.name for p in parameters if p.kind in kinds], is_open


def take_apart(options: Options, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Separate a call into traced leaves and the rest.

    Raises:
        ValueError: an argument is both static and differentiated.
    """
    static, differentiated = roles(options, args, kwargs)
    parts = [(n, arg, n in static) for n, arg in enumerate(args)]
    parts += [(k, kwargs[k], k in static) for k in sorted(kwargs)]
    leaves, flags, described, templates = [], [], [], []
    is_final = True
    for place, value, is_static in parts:
        flat, tree = ([value], None) if is_static else jax.tree.flatten(value)
        slots = [_STATIC if is_static or not is_traced(leaf) else _TRACED for leaf in flat]
        filled = [_Hole if s is _TRACED else x for s, x in zip(slots, flat, strict=True)]
        templates.append((place, tree, filled))
        for slot, leaf in zip(slots, flat, strict=True):
            if slot is _TRACED:
                leaves.append(leaf)
                flags.append(place in differentiated)
                described.append(describe(leaf))
            else:
                described.append(_as_key(leaf))
                is_final &= _is_final(leaf)
        described.append((place, _as_key(tree)))
        is_final &= _is_final(tree)
    chosen = [value for place, value, _ in parts if place in differentiated]
    params = chosen[0] if len(chosen) == 1 else tuple(chosen)
    rebuild = _rebuilder(templates)
    return Call(tuple(leaves), tuple(flags), tuple(described), rebuild, params, is_final)


def roles(
    options: Options, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[set[int | str], set[int | str]]:
    """Which arguments of a call are static, and which are differentiated.

    They are given by position, or by name where they are passed as keywords.

    Raises:
        ValueError: an argument is both.
    """
    static = _places(args, kwargs, options.static_argnums, options.static_argnames)
    differentiated = _places(args, kwargs, options.argnums, options.argnames)
    if overlap := static & differentiated:
        raise _both(sorted(overlap, key=str))
    return static, differentiated


def _places(args, kwargs, positions: Iterable[int], names: Iterable[str]) -> set[int | str]:
    """Where arguments stand in a call: by position or by keyword."""
    count = len(args)
    return {n % count for n in positions if -count <= n < count} | (set(kwargs) & set(names))


class _Hole:
    """Stands where a traced leaf goes."""


_STATIC, _TRACED = object(), object()


def is_traced(leaf: Any) -> bool:
    """Whether a leaf is an array, a key, a tracer, its description, or a number."""
    if isinstance(leaf, bool | str | bytes | enum.Enum):
        return False
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"  # objects, text and dates; bfloat16 is a "V"
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return True
    return isinstance(leaf, int | float | complex)


def describe(leaf: Any) -> Hashable:
    """What a trace depends on of a leaf: shape, dtype, weak type, sharding where it is known."""
    spec = abstract_leaf(leaf)
    return spec.shape, str(spec.dtype), spec.weak_type, spec.sharding


def abstract_leaf(leaf: Any) -> Any:
    """The `ShapeDtypeStruct` of a traced leaf, with its sharding where that spans devices."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    aval = jax.typeof(leaf)
    sharding = None
    if isinstance(leaf, jax.core.Tracer):
        sharding = aval.sharding if _is_explicit(aval.sharding.mesh) else None
    elif isinstance(leaf, jax.Array):
        sharding = leaf.sharding if len(leaf.sharding.device_set) > 1 else None
    return compat.shape_on_axes(aval, sharding, aval.weak_type)


def _is_explicit(mesh: Any) -> bool:
    """Whether types say how arrays lie on a mesh; inside a `shard_map` they are of one device."""
    kinds = set(mesh.axis_types)
    return AxisType.Explicit in kinds and AxisType.Manual not in kinds


def _as_key(static: Any) -> Hashable:
    """What stands for a static part in a signature: itself, or its type where it has no hash.

    A plan is for a program, which is traced for each such call anew: it need not be told apart.
    """
    return type(static), static if is_hashable(static) else None


def is_hashable(x: Any) -> bool:
    """Whether an object has a hash."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _is_final(static: Any) -> bool:
    """Whether what equals a static part is the same for ever.

    An object that may be changed is not final: one without a hash, or with `object`'s hash.
    Functions and classes count as what they were when they were first called, as for `jax.jit`.
    """
    if not is_hashable(static):
        return False
    if isinstance(static, tuple | frozenset):
        return all(map(_is_final, static))
    if isinstance(static, type | enum.Enum) or type(static).__eq__ is not object.__eq__:
        return True
    return callable(static) and hasattr(static, "__qualname__")


def _rebuilder(templates):
    def rebuild(leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        remaining = iter(leaves)
        args, kwargs = [], {}
        for place, tree, slots in templates:
            flat = [next(remaining) if slot is _Hole else slot for slot in slots]
            value = flat[0] if tree is None else jax.tree.unflatten(tree, flat)
            if isinstance(place, int):
                args.append(value)
            else:
                kwargs[place] = value
        return tuple(args), kwargs

    return rebuild
