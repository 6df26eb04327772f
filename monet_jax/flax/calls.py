"""From a call with modules among its arguments to a call on arrays."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax

from ..tracing.closures import closure_key
from ..tracing.signature import Call, Options, describe, is_hashable, is_traced, roles


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of modules.

    Attributes:
        fun: the function as it was written.
        options: the roles of its arguments; for a method, `self` is the first.
        is_method: whether its first argument is `self`.
    """

    fun: Callable[..., Any]
    options: Options
    is_method: bool


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of a call.

    Attributes:
        places: position or name of each that is not static.
        values: the arguments at these places.
        differentiated: for each of them, whether `argnums` covers it.
        static: position or name -> static argument.
    """

    places: tuple[int | str, ...]
    values: tuple[Any, ...]
    differentiated: tuple[bool, ...]
    static: Mapping[int | str, Any]

    def with_values(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments, with other values."""
        every = {**dict(zip(self.places, values, strict=True)), **self.static}
        positions = sorted(place for place in every if isinstance(place, int))
        names = [place for place in every if isinstance(place, str)]
        return [every[n] for n in positions], {name: every[name] for name in names}


def arguments_of(options: Options, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a call, told apart.

    Raises:
        ValueError: an argument is both static and differentiated.
    """
    static, differentiated = roles(options, args, kwargs)
    every: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    places = tuple(place for place in every if place not in static)
    return Arguments(
        places,
        tuple(every[place] for place in places),
        tuple(place in differentiated for place in places),
        {place: every[place] for place in static},
    )


@dataclasses.dataclass(frozen=True)
class _Unchanged:
    """A result that is an argument: it is neither computed nor returned."""

    place: int


@dataclasses.dataclass(frozen=True)
class FlatCall:
    """A call as a call on a list of arrays.

    Attributes:
        fun: list of arrays -> results, except those that are arguments.
        call: the call of it, for `run_planned` and `plan_call`.
        finish: results of `fun` -> results of the original function.
    """

    fun: Callable[..., Any]
    call: Call
    finish: Callable[[Any], Any]


def flat_call(
    fun: Callable[[Any], Any],
    value: Any,
    differentiated: Sequence[bool],
    params: Any,
    written: Callable[..., Any],
    reads: Callable[..., Any] | None = None,
) -> FlatCall:
    """The call `fun(value)` on the arrays of `value`.

    Arguments:
        fun: pure; it returns a pytree.
        value: a pytree; leaves that are no arrays are fixed.
        differentiated: for each leaf, whether the gradient is taken with respect to it.
        params: the parameters, as an optimizer takes them.
        written: the original function.
        reads: a function such that `fun` reads what it reads, and what `value` and its structure
            say; None where modules may change from call to call.
    """
    leaves, structure = jax.tree.flatten(value)
    places = [n for n, leaf in enumerate(leaves) if is_traced(leaf)]
    arrays = tuple(leaves[n] for n in places)

    @functools.wraps(written, updated=())
    def on_arrays(inputs: Sequence[Any]) -> Any:
        filled = list(leaves)
        for n, array in zip(places, inputs, strict=True):
            filled[n] = array
        known = {id(array): n for n, array in zip(places, inputs, strict=True)}
        result = fun(jax.tree.unflatten(structure, filled))
        return jax.tree.map(lambda x: _Unchanged(known[id(x)]) if id(x) in known else x, result)

    def finish(result: Any) -> Any:
        return jax.tree.map(lambda x: leaves[x.place] if isinstance(x, _Unchanged) else x, result)

    fixed = functools.partial(reads or written, [x for x in leaves if not is_traced(x)])

    def key() -> Hashable | None:
        found = closure_key(fixed)
        return found and (found, structure, tuple(places))

    call = Call(
        arrays,
        tuple(differentiated[n] for n in places),
        tuple(map(describe, arrays)),
        lambda inputs: ((inputs,), {}),
        params,
        is_final=reads is not None and is_hashable(structure),
        key=key,
    )
    return FlatCall(on_arrays, call, finish)
