"""The bytes of a budget that are reserved for values outside the planned function."""

import numbers
from typing import Any, Protocol

import jax

from ..compiler.budget import parse_bytes
from ..ir.program import aval_nbytes, device_nbytes
from ..tracing.signature import abstract_leaf, is_traced


class Optimizer(Protocol):
    """An optimizer: it makes its state from parameters, as an `optax.GradientTransformation`."""

    def init(self, params: Any, /) -> Any:
        """The state for some parameters."""

    def update(self, updates: Any, state: Any, params: Any = None, /) -> Any:
        """What to add to the parameters, and the next state."""


def as_reserved(reserved: Any) -> Any:
    """The bytes of `reserved`, or an optimizer, whose state depends on the parameters of a call.

    Arguments:
        reserved: bytes; an amount such as "2GiB"; an optimizer; or an optimizer's state, or what
            holds one as `opt_state` (an `nnx.Optimizer`, a `TrainState`), for its bytes on one
            device.

    Raises:
        TypeError: it is none of them.
        ValueError: it is negative, or no amount of memory.
    """
    if isinstance(reserved, str):
        return _amount(reserved)
    if isinstance(reserved, numbers.Integral) and not isinstance(reserved, bool):
        if reserved < 0:
            raise ValueError(f"`reserved` must be 0 bytes or more; got {reserved!r}.")
        return int(reserved)
    state = getattr(reserved, "opt_state", reserved)
    leaves = jax.tree.leaves(state)
    is_number = hasattr(reserved, "dtype")  # it could be meant as a number of bytes
    if leaves and not is_number and all(hasattr(x, "dtype") for x in leaves):
        return sum(map(device_nbytes, leaves))
    if isinstance(reserved, type) or not _is_optimizer(reserved):
        # Its type only: it may hold arrays.
        kind = reserved.__name__ if isinstance(reserved, type) else type(reserved).__name__
        raise TypeError(
            '`reserved` must be bytes, an amount such as "2GiB", an optimizer with `init` and '
            "`update` such as `optax.adamw(1e-3)`, or an optimizer's state; got "
            f"{'the class' if isinstance(reserved, type) else 'an object of type'} `{kind}`."
        )
    return reserved


def _amount(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:
        raise ValueError(
            f'`reserved` must be bytes or an amount such as "2GiB"; got {text!r}.'
        ) from None


def _is_optimizer(x: Any) -> bool:
    return callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))


def reserved_bytes(reserved: int | Optimizer, params: Any) -> int:
    """The bytes to reserve; for an optimizer, the bytes of its state for some parameters.

    Where the parameters are sharded, they are the bytes on one device: a part of the state with a
    parameter's shape counts as sharded like the parameter, all else as replicated.

    Arguments:
        reserved: bytes, or an optimizer.
        params: the parameters, as the optimizer takes them: arrays, tracers or their shapes.

    Raises:
        ValueError: the optimizer cannot make a state from these parameters.
    """
    if isinstance(reserved, int):
        return reserved
    params = jax.tree.map(lambda x: abstract_leaf(x) if is_traced(x) else x, params)
    if not jax.tree.leaves(params):
        raise ValueError(
            "`reserved` is an optimizer, but the arguments of `argnums` hold no parameters for it. "
            "Give its bytes, or pass the parameters as an argument."
        )
    try:
        state = jax.eval_shape(reserved.init, params)
    except Exception as error:  # of the user's optimizer, whatever that raises
        raise ValueError(
            "`reserved` is an optimizer that cannot make a state from the arguments of `argnums` "
            f"({type(error).__name__}: {error}). Give its bytes, or the `argnums` it is for."
        ) from error
    if any(getattr(p, "sharding", None) is not None for p in jax.tree.leaves(params)):
        import optax

        state = optax.tree_map_params(reserved.init, _of_one_device, state, params)
    return sum(aval_nbytes(leaf) for leaf in jax.tree.leaves(state))


def _of_one_device(part: Any, param: Any) -> Any:
    if param.sharding is None or part.shape != param.shape:
        return part
    return jax.ShapeDtypeStruct(param.sharding.shard_shape(part.shape), part.dtype)
