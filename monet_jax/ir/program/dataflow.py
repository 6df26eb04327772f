"""Dataflow of equations: dead code, dependents, and running them on arrays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.ad_checkpoint import checkpoint_name

from .. import compat
from .program import Equation, Program


def mutable_references(program: Program) -> bool:
    """Whether a program reads or writes references that it has not made: it must run as it is."""
    return any(compat.uses_references(e.eqn) for e in program.equations)


def parameters_of(eqn: Any) -> str:
    """The parameters of an equation as text, without what only identifies the call."""
    shown = {name: str(v) for name, v in eqn.params.items() if not callable(v)}
    return repr(sorted(shown.items()))


def positions_of(equations: Iterable[Equation]) -> dict[int, int]:
    """Value -> the position of the equation that writes it."""
    return {i: n for n, e in enumerate(equations) for i in e.outputs}


def with_replacements(
    equations: Sequence[Equation], instead: Mapping[int, Sequence[Equation]]
) -> tuple[Equation, ...]:
    """The equations, with others in the places of some: position -> what stands there."""
    return tuple(x for n, e in enumerate(equations) for x in instead.get(n, (e,)))


def without_dead_code(
    equations: Sequence[Equation], outputs: Iterable[Any]
) -> tuple[Equation, ...]:
    """The equations that the outputs need, and those with effects."""
    needed = {i for i in outputs if isinstance(i, int)}
    kept = []
    for equation in reversed(equations):
        if compat.has_effects(equation.eqn) or needed.intersection(equation.outputs):
            needed.update(equation.reads)
            kept.append(equation)
    return tuple(reversed(kept))


def dependents(equations: Iterable[Equation], sources: Iterable[int]) -> set[int]:
    """The values that depend on some sources, and the sources; equations in execution order."""
    found = set(sources)
    for equation in equations:
        if found.intersection(equation.reads):
            found.update(equation.outputs)
    return found


def values_of(env: Mapping[int, Any], atoms: Iterable[Any]) -> list[Any]:
    """What value numbers stand for in `env`, and literals for themselves."""
    return [env[i] if isinstance(i, int) else i.val for i in atoms]


def run(equations: Iterable[Equation], env: dict[int, Any], names: Mapping[int, str]) -> None:
    """Run equations in order, reading and writing `env`.

    Arguments:
        equations: in execution order.
        env: value number -> array; the results are added to it.
        names: value number -> the name to give it with `checkpoint_name`.
    """
    stack = compat.current_name_stack()
    for equation in equations:
        inputs = values_of(env, equation.inputs)
        outputs = compat.bind(equation.eqn, inputs, stack + equation.name_stack)
        for i, output in zip(equation.outputs, outputs, strict=True):
            name = names.get(i)
            env[i] = output if name is None else checkpoint_name(output, name)
