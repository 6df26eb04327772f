"""Mistakes that no budget mends: they are found before anything is planned or compiled.

A function that returns its own gradient is found by its jaxpr: JAX names the equations that it
transposes, and the results that depend on them have the shapes of all differentiated inputs.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any

from ..compiler.budget import format_bytes
from ..ir.gradient import has_loss
from ..ir.program import Program, dependents, device_nbytes, mutable_references
from ..tracing.traced import Traced
from .failures import BadArgument, InfeasibleBudget

#: The mistake of a function for which `returns_own_gradient` holds.
OWN_GRADIENT = (
    "it contains its own gradient, which it returns: put `monet_jax.remat` around the loss inside "
    "it, or plan the loss"
)


def budget_by_keyword[Decorator: Callable[..., Any]](decorator: Decorator) -> Decorator:
    """A decorator that says so where a budget is given by position."""

    @functools.wraps(decorator)
    def checked(*args: Any, **options: Any) -> Any:
        budget = args[1] if len(args) > 1 else args[0] if args else None
        is_amount = isinstance(budget, int | float | str)
        if len(args) > 1 or (is_amount and "budget" not in options):
            example = budget if is_amount else "12GiB"
            raise TypeError(
                f"`budget` is a keyword of `{decorator.__name__}`: write `budget={example!r}`."
            )
        return decorator(*args, **options)

    return checked  # type: ignore[return-value]


def missing_gradient(traced: Traced) -> str | None:
    """Why a function has no gradient to plan, in words; None where it has one."""
    if not traced.derivative.outputs:
        return "it has no differentiable output: none of its results is an array of floats"
    if not traced.derivative.inputs:
        return (
            "the arguments of `argnums` hold no floats, so that there is no gradient with respect "
            "to them. Name the position of the parameters, as in `argnums=1`"
        )
    if mutable_references(traced.program):
        return "it reads or writes mutable references that it is given or closes over"
    return None


def refuse(traced: Traced, name: str) -> None:
    """Refuse to plan a function that has no gradient to plan, or that returns it.

    Raises:
        ValueError: it is such a function.
    """
    mistake = missing_gradient(traced)
    if mistake is None and returns_own_gradient(traced):
        mistake = OWN_GRADIENT
    if mistake is not None:
        raise BadArgument(f"`{name}` cannot be planned: {mistake}.")


def returns_own_gradient(traced: Traced) -> bool:
    """Whether a function is a value and gradient, or a whole training step.

    A loss that contains a gradient, such as a gradient penalty, is neither.
    """
    program = traced.program
    transposed = [i for e in program.equations if _is_transposed(e) for i in e.outputs]
    if not transposed:
        return False
    reached = dependents(program.equations, transposed)
    returned = [i for i in program.outputs if isinstance(i, int)]
    if has_loss(program) and program.outputs[0] in reached:
        return False
    found = collections.Counter(_shape(program, i) for i in returned if i in reached)
    differentiated = collections.Counter(_shape(program, i) for i in traced.derivative.inputs)
    return differentiated <= found


def _is_transposed(equation: Any) -> bool:
    return "transpose(" in str(equation.name_stack)


def _shape(program: Program, value: int) -> tuple[Any, ...]:
    aval = program.avals[value]
    return aval.shape, aval.dtype


def refuse_reserved(budget_bytes: int, reserved: int) -> None:
    """Refuse to reserve all of a budget.

    Raises:
        ValueError: nothing is left of it.
    """
    if reserved >= budget_bytes:
        raise BadArgument(
            f"`reserved` alone, {format_bytes(reserved)}, takes the whole budget of "
            f"{format_bytes(budget_bytes)}. Raise `budget`, or reserve less."
        )


def refuse_budget(traced: Traced, budget_bytes: int, reserved: int, minimum: Any) -> None:
    """Refuse a budget that arguments and results alone exceed.

    Arguments:
        traced: the function.
        budget_bytes: the budget.
        reserved: the part of it that is for other things.
        minimum: finds the smallest budget that can be kept; called when somebody reads it.

    Raises:
        ValueError: nothing is left of the budget.
        InfeasibleBudget: less is left than arguments and results take.
    """
    refuse_reserved(budget_bytes, reserved)
    least = least_bytes(traced)
    if least > budget_bytes - reserved:
        aside = f" beside {format_bytes(reserved)} reserved" if reserved else ""
        raise InfeasibleBudget(
            f"No plan fits in {format_bytes(budget_bytes)}{aside}: arguments, results and "
            f"gradients alone take {format_bytes(least)} ({least:,} bytes), which no plan changes. "
            "Raise `budget` above that, or reduce the batch.",
            minimum,
        )


def least_bytes(traced: Traced) -> int:
    """Bytes of the arguments that are read, of the results and of the gradient, on one device.

    Where arguments are sharded over several devices, the bytes of the arguments alone.
    """
    program = traced.program
    read = {i for e in program.equations for i in e.reads}
    read.update(i for i in program.outputs if isinstance(i, int))
    used = [aval for i, aval in zip(program.inputs, traced.avals, strict=True) if i in read]
    arguments = sum(map(device_nbytes, used))
    if any(_is_sharded(aval) for aval in traced.avals):
        return arguments
    results = {i for i in program.outputs if isinstance(i, int)}.difference(program.inputs)
    gradients = traced.derivative.inputs.intersection(program.inputs)
    return arguments + sum(map(program.nbytes, (*results, *gradients)))


def _is_sharded(aval: Any) -> bool:
    return getattr(aval, "sharding", None) is not None
