"""Reads jaxprs and the parameters of their equations."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.interpreters.partial_eval import convert_constvars_jaxpr
from jax.extend import core

Jaxpr = core.Jaxpr
JaxprEqn = core.JaxprEqn
Literal = core.Literal
Var = core.Var

jit_p = core.primitives.jit_p
name_p = core.primitives.name_p
remat_p = core.primitives.remat_p


def jaxpr_inputs(jaxpr: Any) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The constant variables of a (closed) jaxpr, their values, and its argument variables."""
    # JAX >= 0.11: `Jaxpr` carries its constants, also in `remat_p`; `.jaxpr` is itself.
    return jaxpr.jaxpr.constvars, jaxpr.consts, jaxpr.jaxpr.invars


def as_function(jaxpr: Any) -> Callable[..., list[Any]]:
    """A closed jaxpr as a function of its arguments."""
    return core.jaxpr_as_fun(jaxpr)


def of_constants(jaxpr: Any) -> Any:
    """A closed jaxpr as one of its constants, which come first, and its inputs."""
    return convert_constvars_jaxpr(jaxpr.jaxpr)


def integers_of(eqn: Any) -> list[Any]:
    """The parameters of an equation that are integers, or nested tuples of them, by no name."""

    def is_integer(value: Any) -> bool:
        if isinstance(value, tuple):
            return bool(value) and all(map(is_integer, value))
        return isinstance(value, int) and not isinstance(value, bool)

    return [x for _, x in sorted(eqn.params.items()) if is_integer(x)]


def subjaxprs(eqn: Any) -> list[Any]:
    """The jaxprs among the parameters of an equation, including a hijax primitive's parameters."""
    found = []
    hidden = getattr(eqn.params.get("_prim"), "params", None) or {}
    for value in (*eqn.params.values(), *hidden.values()):
        for item in value if isinstance(value, tuple | list) else (value,):
            # With `jax_custom_vjp3` a `custom_vjp` holds its function in that form.
            body = item.jaxpr if isinstance(item, jax.stages.Traced) else item
            if isinstance(body, Jaxpr):
                found.append(body)
    return found


def scan_counts(eqn: Any) -> tuple[int, int, int]:
    """How many of a `scan` equation's operands are constants, carried, and stacked."""
    consts, carry, stacked = map(list, eqn.params["ft_in"].update(eqn.invars).unpack())
    return len(consts), len(carry), len(stacked)


def primitive_name(eqn: Any) -> str:
    """The name of an equation's primitive."""
    # With `jax_remat3`, a `checkpoint_name` is a hijax primitive.
    hidden = eqn.params.get("_prim")
    return "name" if type(hidden).__name__ == "CheckpointName" else eqn.primitive.name


def checkpointed(eqn: Any) -> Any:
    """The jaxpr of a region of `jax.checkpoint`; None where an equation is none."""
    # With `jax_remat3` it is a hijax primitive.
    hidden = eqn.params.get("_prim")
    if type(hidden).__name__ == "RematTraced":
        return hidden.jaxpr
    return eqn.params["jaxpr"] if eqn.primitive is remat_p else None


def checkpoint_name_of(eqn: Any) -> str:
    """The name that a `checkpoint_name` equation gives; "" where it is another equation."""
    if primitive_name(eqn) != "name":
        return ""
    return str(eqn.params["name"] if "name" in eqn.params else eqn.params["_prim"].name)


def has_effects(eqn: Any) -> bool:
    """Whether running an equation is noticed: a print, a callback, a reference that is written.

    That it runs under some mapped axes is an effect to JAX as well, and none here.
    """
    return any(type(e).__name__ != "NamedAxisEffect" for e in eqn.effects)


def outer_axes(eqn: Any) -> list[str]:
    """The mapped axes of outer transformations that an equation uses, as in `psum(x, "i")`."""
    return [str(e.name) for e in eqn.effects if type(e).__name__ == "NamedAxisEffect"]
