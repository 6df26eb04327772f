"""Runs functions of NNX modules as planned.

As in `nnx.remat`, the state of the modules becomes arguments, and changed state becomes results, by
NNX's own split and merge. So the planned function is pure, and a module that is used twice stays
one.
"""

import contextlib
import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from flax import nnx

from .. import _api
from ..tracing.modules import OnArrays
from . import names
from .calls import Arguments, FlatCall, Function, arguments_of, flat_call

_TAG = "monet_jax"


def is_state(x: Any) -> bool:
    """Whether NNX keeps track of an object: a module, `Rngs`, a variable."""
    return nnx.graph.is_graph_node(x) or isinstance(x, nnx.Variable)


def holds_state(args: Sequence[Any], kwargs: Any) -> bool:
    """Whether there is such an object among the arguments of a call."""
    return any(map(is_state, jax.tree.leaves((args, kwargs), is_leaf=is_state)))


def run(planned: _api.Source, function: Function, args: Sequence[Any], kwargs: Any) -> Any:
    """The result of a function, computed as planned; its modules are updated in place."""
    if _api.runs_as_it_is():
        return function.fun(*args, **kwargs)
    with _flattened(function, args, kwargs) as flat:
        out, after = flat.finish(_api.run_planned(planned, flat.fun, flat.call))
        _, out = nnx.from_tree((after, out), ctxtag=_TAG, is_inner=False)
        return out


def on_arrays(function: Function, args: Sequence[Any], kwargs: Any) -> OnArrays:
    """A function and a call of it, on arrays; the modules' new state is among its results."""
    with _flattened(function, args, kwargs) as flat:
        return flat.fun, flat.call


@contextlib.contextmanager
def _flattened(function: Function, args: Sequence[Any], kwargs: Any) -> Iterator[FlatCall]:
    """The call on arrays, while NNX remembers the objects among the arguments."""
    arguments = arguments_of(function.options, args, kwargs)
    with nnx.update_context(_TAG):
        values = nnx.to_tree(arguments.values, ctxtag=_TAG)

        def pure(values: Any) -> Any:
            # A context of its own: `pure` may be traced more than once, and after the call.
            with nnx.update_context(_TAG):
                inner = nnx.from_tree(values, ctxtag=_TAG, is_inner=True)
                args, kwargs = arguments.with_values(inner)
                with names.named(inner, args[0] if function.is_method else None):
                    out = function.fun(*args, **kwargs)
                after, out = nnx.to_tree((state_only(inner), out), ctxtag=_TAG)
                return out, after

        flags, params = _flags(arguments, values), _for_optimizer(arguments)
        static = functools.partial(function.fun, arguments.static)
        yield flat_call(pure, values, flags, params, function.fun, static)


def state_only(values: Any) -> Any:
    """The NNX objects of a pytree, None in the places of all else."""
    return jax.tree.map(lambda x: x if is_state(x) else None, values, is_leaf=is_state)


def _flags(arguments: Arguments, values: Sequence[Any]) -> list[bool]:
    """For each leaf, whether it is differentiated: only the parameters of a module's state are.

    A variable that is an argument itself, or stands in a pytree of variables, is differentiated
    whatever its type, as in `nnx.grad`.
    """
    flags = []
    for argument, value, differentiated in zip(
        arguments.values, values, arguments.differentiated, strict=True
    ):
        nodes, structure = jax.tree.flatten(argument, is_leaf=is_state)
        for node, tree in zip(nodes, structure.flatten_up_to(value), strict=True):
            for x in jax.tree.leaves(tree, is_leaf=_is_variable):
                is_state_of_module = _is_variable(x) and not isinstance(x, nnx.Param)
                chosen = differentiated and (_is_variable(node) or not is_state_of_module)
                flags += [chosen] * len(jax.tree.leaves(x))
    return flags


def _is_variable(x: Any) -> bool:
    return isinstance(x, nnx.Variable)


def _for_optimizer(arguments: Arguments) -> Any:
    """The differentiated NNX objects, as `nnx.Optimizer` takes them; modules by parameters."""
    pairs = zip(arguments.values, arguments.differentiated, strict=True)
    chosen = [value for value, differentiated in pairs if differentiated]
    nodes = [x for x in jax.tree.leaves(chosen, is_leaf=_is_whole) if _is_whole(x)]
    found = [
        x if isinstance(x, nnx.Variable | nnx.State) else nnx.state(x, nnx.Param) for x in nodes
    ]
    return found[0] if len(found) == 1 else tuple(found)


def _is_whole(x: Any) -> bool:
    return is_state(x) or isinstance(x, nnx.State)


def with_class(module: nnx.Module, planned_class: type) -> nnx.Module:
    """A module of another class that shares all state with this one."""
    shared = copy.copy(module)
    object.__setattr__(shared, "__class__", planned_class)
    return shared
