"""Mutable references in jaxprs."""

from typing import Any

from jax._src.state.discharge import discharge_state
from jax._src.state.types import AbstractRef

from .jaxprs import subjaxprs


def without_references(jaxpr: Any) -> Any:
    """A closed jaxpr with the mutable references that it makes itself as plain values.

    Where it reads or writes others, or JAX has no rule for that, it is returned as it is.
    """
    own = jaxpr.jaxpr
    given = any(map(is_reference, (*own.invars, *own.constvars)))
    if given or not own.effects or not any(map(has_references, own.eqns)):
        return jaxpr
    try:
        return discharge_state(jaxpr, lower=False)
    except NotImplementedError:
        return jaxpr


def has_references(eqn: Any) -> bool:
    """Whether an equation, or one inside it, makes, reads or writes mutable references."""
    if any(map(is_reference, (*eqn.invars, *eqn.outvars))):
        return True
    return any(has_references(e) for body in subjaxprs(eqn) for e in body.jaxpr.eqns)


def uses_references(eqn: Any) -> bool:
    """Whether an equation, or one inside it, reads or writes mutable references from outside.

    A kernel's operands are arrays, of which the equation itself makes references for its body.
    """
    if any(map(is_reference, (*eqn.invars, *eqn.outvars))):
        return True
    bodies = [body.jaxpr for body in subjaxprs(eqn)]
    given = (body for body in bodies if not any(map(is_reference, body.invars)))
    return any(uses_references(e) for body in given for e in body.eqns)


def is_reference(atom: Any) -> bool:
    """Whether a variable or literal of a jaxpr stands for a mutable reference."""
    return isinstance(atom.aval, AbstractRef)
