"""Flattens a jaxpr to one list of equations.

Nested `jit` calls are inlined as data: their equations are listed where the call stood, with
fresh value numbers. Nothing is retraced, so every equation keeps its own source line, module path
and differentiation rules. `Jaxpr` objects are read, never built (FACTS: JAX changes them often).
An equation may be replaced by others, which then stand for its source line and module path.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .. import compat
from .dataflow import without_dead_code
from .program import Equation, Program, Replacement, Rewrite, shape_of, unchanged


def has_checkpoints(jaxpr: Any) -> bool:
    """Whether a closed jaxpr, or one inside it, has regions of `jax.checkpoint`."""
    return any(
        compat.checkpointed(eqn) is not None or any(map(has_checkpoints, compat.subjaxprs(eqn)))
        for eqn in jaxpr.jaxpr.eqns
    )


def flatten(
    jaxpr: Any,
    *,
    rewrite: Rewrite = unchanged,
    inline_checkpoints: bool = False,
    inline_mapped: bool = False,
    closed_over: Sequence[Any] = (),
    caller: Any = None,
) -> Program:
    """The flat program of a closed jaxpr.

    Arguments:
        jaxpr: what `jax.make_jaxpr` returns.
        rewrite: what to list in the place of an equation. It does not apply to the bodies of loops,
            branches and calls with their own derivative rules.
        inline_checkpoints: also inline `jax.checkpoint` regions. Run as it is, such a program
            recomputes nothing.
        inline_mapped: also inline what a `shard_map` maps. Such a program cannot be run: what goes
            in and what is inside are the parts of one device.
        closed_over: values of the first of the jaxpr's inputs, which are constants of the program.
        caller: the equation that the jaxpr is the body of, for the lines of those without one.
    """
    jaxpr = compat.without_references(jaxpr)
    flattener = _Flattener(rewrite, inline_checkpoints, inline_mapped)
    constvars, consts, invars = compat.jaxpr_inputs(jaxpr)
    numbers = [flattener.new(var.aval) for var in invars]
    env = dict(zip(invars, numbers, strict=True))
    inputs = tuple(numbers[len(closed_over) :])
    flattener.constants.update(zip(numbers, closed_over, strict=False))
    outputs = flattener.inline(jaxpr, env, constvars, consts, None, caller)
    equations = without_dead_code(flattener.equations, outputs)
    return Program(
        tuple(flattener.avals),
        inputs,
        flattener.constants,
        equations,
        tuple(outputs),
        frozenset((*inputs, *flattener.constants)),
        rewrite,
        flattener.keeps_other or inline_checkpoints,
        inline_checkpoints,
    )


def with_replaced(program: Program, replacements: Sequence[Replacement | None]) -> Program:
    """A program with other equations in the places of some; None leaves an equation as it is.

    Inputs and constants keep their numbers.
    """
    flattener = _Flattener(unchanged, program.inlines_checkpoints)
    flattener.avals, flattener.constants = list(program.avals), dict(program.constants)
    flattener.keeps_other = program.keeps_other
    instead: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return instead.get(atom, atom) if isinstance(atom, int) else atom

    for equation, found in zip(program.equations, replacements, strict=True):
        inputs = tuple(map(read, equation.inputs))
        if found is None:
            flattener.equations.append(dataclasses.replace(equation, inputs=inputs))
        else:
            stack = equation.name_stack
            results = flattener._inline_replacement(found, equation.eqn, inputs, stack)
            instead.update(zip(equation.outputs, results, strict=True))
    outputs = tuple(map(read, program.outputs))
    return dataclasses.replace(
        program,
        avals=tuple(flattener.avals),
        constants=flattener.constants,
        equations=without_dead_code(flattener.equations, outputs),
        outputs=outputs,
        given=program.given | flattener.constants.keys(),
        keeps_other=flattener.keeps_other,
    )


class _Flattener:
    """The state of one flattening: values and equations so far."""

    def __init__(self, rewrite: Rewrite, inline_checkpoints: bool, inline_mapped: bool = False):
        self.rewrite, self.inline_checkpoints = rewrite, inline_checkpoints
        self.inline_mapped = inline_mapped
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.equations: list[Equation] = []
        self.keeps_other = False

    def new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def inline(self, jaxpr, env: dict[Any, Any], constvars, consts, outer, caller) -> list[Any]:
        """List the equations of `jaxpr`; returns its outputs as value numbers or literals."""

        def read(atom):
            return atom if isinstance(atom, compat.Literal) else env[atom]

        for var, value in zip(constvars, consts, strict=True):
            env[var] = self.new(var.aval)
            self.constants[env[var]] = value
        for own in jaxpr.jaxpr.eqns:
            eqn = compat.sourced_by(own, caller)
            inputs = tuple(map(read, eqn.invars))
            stack = compat.name_stack_of(eqn)
            stack = stack if outer is None else outer + stack
            if (body := self._body(eqn)) is not None:
                results = self._inline_call(body, inputs, stack, eqn)
            elif self.inline_mapped and compat.primitive_name(eqn) == "shard_map":
                results = self._inline_mapped(eqn, inputs, stack)
            elif (replacement := self.rewrite.equation(eqn)) is not None:
                results = self._inline_replacement(replacement, eqn, inputs, stack)
            else:
                results = [self.new(var.aval) for var in eqn.outvars]
                self.equations.append(Equation(eqn, inputs, tuple(results), stack))
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(var) for var in jaxpr.jaxpr.outvars]

    def _body(self, eqn) -> Any:
        """The jaxpr to list in the place of an equation; None where that stands as it is."""
        if _is_plain_call(eqn):
            return eqn.params["jaxpr"]
        return compat.checkpointed(eqn) if self.inline_checkpoints else None

    def _inline_replacement(self, replacement: Replacement, eqn, inputs, stack) -> list[Any]:
        """List what stands for an equation, which is itself not replaced again."""
        self.keeps_other |= replacement.changes_what_is_kept
        inside = _Flattener(unchanged, self.inline_checkpoints)
        inside.avals, inside.constants = self.avals, self.constants
        results = inside._inline_call(replacement.jaxpr, inputs, stack, None)
        self.equations += [
            dataclasses.replace(e, eqn=compat.placed_like(e.eqn, eqn), name_stack=stack)
            for e in inside.equations
        ]
        return results

    def _inline_call(self, inner, inputs, stack, call) -> list[Any]:
        constvars, consts, invars = compat.jaxpr_inputs(inner)
        env = dict(zip(invars, inputs, strict=True))
        return self.inline(inner, env, constvars, consts, stack, call)

    def _inline_mapped(self, eqn, inputs, stack) -> list[Any]:
        (body,) = compat.subjaxprs(eqn)
        _, _, invars = compat.jaxpr_inputs(body)
        for var, i in zip(invars, inputs, strict=True):
            if isinstance(i, int):
                self.avals[i] = var.aval
        return self._inline_call(body, inputs, stack, eqn)


def _is_plain_call(eqn: Any) -> bool:
    """Whether an equation is a `jit` call that says nothing about placement."""
    if eqn.primitive is not compat.jit_p:
        return False
    placed = (*eqn.params["in_shardings"], *eqn.params["out_shardings"])
    layouts = (*eqn.params["in_layouts"], *eqn.params["out_layouts"])
    return (
        all(type(s).__name__ == "UnspecifiedValue" for s in placed)
        and all(layout is None for layout in layouts)
        and not eqn.params["compiler_options_kvs"]
    )


def listed(
    function: Callable[..., Any],
    operands: Sequence[Any],
    like: Equation,
    avals: list[Any],
    outputs: Sequence[int] = (),
) -> list[Equation]:
    """The equations of a function of some values, in the place of another equation.

    Arguments:
        function: of arrays.
        operands: value numbers and literals, for its arguments.
        like: an equation whose source line and module path they have.
        avals: of all values; new values are added.
        outputs: the numbers of its results, where these have some already.
    """
    shapes = [shape_of(avals[i] if isinstance(i, int) else i.aval) for i in operands]
    inner = flatten(jax.make_jaxpr(function)(*shapes))
    known = dict(zip(inner.inputs, operands, strict=True))
    known |= dict(zip(inner.outputs, outputs, strict=False))
    for e in inner.equations:
        for i in e.outputs:
            if i not in known:
                known[i] = len(avals)
                avals.append(inner.avals[i])
    return [
        Equation(
            compat.placed_like(e.eqn, like.eqn),
            tuple(known[i] if isinstance(i, int) else i for i in e.inputs),
            tuple(known[i] for i in e.outputs),
            like.name_stack,
        )
        for e in inner.equations
    ]
