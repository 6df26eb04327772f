"""Emits a program as a JAX function that runs stage by stage, as a plan says.

A region that recomputes becomes a `jax.checkpoint` whose name policy keeps exactly the planned
values; a nested region becomes one inside another. Every region's inputs pass through one
`optimization_barrier`: its transpose joins all their cotangents, so that a stage's weight gradients
leave together with what it passes on, and the compiled order is the planned order. Without that
barrier the compiler may defer the weight gradients and keep their operands (openxla/xla#45753).
"""

import dataclasses
import itertools as it
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import planners.plan
from planners.plan import Region

from ..ir import compat
from ..ir.barriers import accumulated
from ..ir.program import Equation, Program, aval_of, run, values_of
from ..ir.stage import Stage, active_in
from ..operators import Encoding
from ..operators.codecs import words_of
from ..tracing.conditionals import Branch
from ..tracing.staged import Loop, StagedProgram
from .host import Sent, gate
from .parts import Part, PlannedChoice, PlannedLoop, parts_of
from .regions import Emission, reads_of, run_region, writes_of
from .scan import Run, run_loop
from .scan_operands import Body, Hoisted
from .slices import only_cast


def transform(
    staged: StagedProgram, decisions: planners.plan.Plan, encoding: Encoding | None = None
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """The function `(inputs, constants) -> outputs` of a program, as planned.

    Arguments:
        staged: the program, cut as when the plan was made.
        decisions: what becomes of each value.
        encoding: how lossy codecs encode and decode; by default with noise drawn from the keys that
            the function is given, and from what is encoded.

    Returns:
        A function of the values of `program.inputs` and of `program.constants`, in their order.
        It has the same value and derivatives as the program, up to rounding.
    """
    program = staged.program

    def planned(inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        given = (*program.inputs, *program.constants)
        env = dict(zip(given, accumulated([*inputs, *constants]), strict=True))
        parts = parts_of(staged, decisions.regions)
        emission = Emission(staged, encoding or Encoding(_words(program, env)))
        _run_parts(emission, parts, env, _returned(program), None)
        pairs = zip(values_of(env, program.outputs), program.outputs, strict=True)
        results = [compat.with_weak_type(x, aval_of(program, atom)) for x, atom in pairs]
        return compat.unused(results)

    return planned


def _words(program: Program, env: Mapping[int, Any]) -> jax.Array | None:
    """The seed of lossy codecs' noise: the keys that a function is given, if any."""
    if not program.rewrite.codecs:
        return None
    words = jnp.zeros(2, jnp.uint32)
    for i in program.inputs:
        if compat.is_key(program.avals[i]) and not program.avals[i].shape:
            words = words ^ words_of(env[i])
    return jax.lax.stop_gradient(words)


def _returned(part: Program | Branch) -> set[int]:
    return {i for i in part.outputs if isinstance(i, int)}


def _run_loop(outer: Emission, part: PlannedLoop, env: dict[int, Any]) -> None:
    """Run a loop in `env`, blocks with equal regions together."""
    loop, runs, done = part.loop, list[Run](), 0
    for regions, same in it.groupby(zip(part.blocks, loop.trips, strict=True), lambda x: x[0]):
        trips = sum(some for _, some in same)
        depths = {region.ahead for region in regions if region.offloaded}
        marked = {depth: _body(outer, loop, regions, depth) for depth in sorted(depths)}
        runs.append(Run(_body(outer, loop, regions), done, done + trips, marked))
        done += trips
    equation = loop.equation
    operands = compat.unused(values_of(env, equation.inputs))
    results = run_loop(equation.eqn, operands, runs, _hoisted(loop))
    env.update(zip(equation.outputs, results, strict=True))


def _hoisted(loop: Loop) -> Hoisted | None:
    """What runs before a loop, if anything does."""
    if not loop.hoists:
        return None
    first, inputs = loop.stages[0], loop.body.program.inputs

    def values(consts: Sequence[Any]) -> list[Any]:
        env = dict(zip(inputs, consts, strict=False))
        run(first.equations, env, {})
        return values_of(env, first.outputs)

    def reached(places: Sequence[int]) -> list[int]:
        active = active_in(first.equations, [inputs[n] for n in places])
        return [n for n, i in enumerate(first.outputs) if i in active]

    return Hoisted(values, reached)


def _body(outer: Emission, loop: Loop, regions: Sequence[Region], depth: int | None = None) -> Body:
    """The body of a loop, run as some regions say. What is hoisted follows its constants.

    With a `depth` it is as `Run.marked` has it.
    """
    staged, (consts, carried, _) = loop.body, loop.counts
    program, inputs = staged.program, staged.program.inputs
    if loop.hoists:
        first, *others = staged.stages
        inputs = (*inputs[:consts], *first.outputs, *inputs[consts:])
        staged = dataclasses.replace(staged, stages=(Stage((), (), (), (), ()), *others))
    by = outer.encoding.renamed(lambda v: loop.atom(0, v), staged.writer)
    once = frozenset(inputs) - frozenset(program.inputs)
    slices = [v for _, v in loop.stacked] if program.rewrite.rounds_slices else []
    rounded = only_cast(staged, slices)
    emission = Emission(staged, by, once, loop.carried_inputs, depth, rounded=rounded)
    parts = parts_of(staged, regions)

    def body(consts, carry, slices):
        env = dict(zip(inputs, (*consts, *carry, *slices), strict=True))
        # Where the values themselves pass no barrier, JAX knows which are the loop's own operands.
        _run_parts(emission, parts, env, _returned(program), {})
        results = values_of(env, program.outputs)
        return results[:carried], results[carried:]

    return body


def _run_choice(emission: Emission, part: PlannedChoice, env: dict[int, Any]) -> None:
    """Run a choice in `env`, each branch as planned."""
    equation = part.choice.equation

    def planned(branch: Branch, parts: Sequence[Part]) -> Callable[..., list[Any]]:
        def run(*operands):
            local = dict(zip(branch.inputs, operands, strict=True))
            # As in a loop: what is a branch's own operand is kept as that.
            _run_parts(emission, parts, local, _returned(branch), {})
            results = zip(values_of(local, branch.outputs), equation.eqn.outvars, strict=True)
            return [
                x if isinstance(x, jax.Array) else jnp.asarray(x, v.aval.dtype) for x, v in results
            ]

        return run

    branches = list(map(planned, part.choice.branches, part.branches))
    index, *operands = compat.unused(values_of(env, equation.inputs))
    env.update(zip(equation.outputs, jax.lax.switch(index, branches, *operands), strict=True))


def _run_parts(
    emission: Emission,
    parts: Sequence[Part],
    env: dict[int, Any],
    live: set[int],
    outer: Mapping[int, str] | None,
) -> None:
    """Run consecutive regions, loops and choices in `env`.

    Arguments:
        emission: the program that has them.
        parts: consecutive.
        env: value number -> array; the results are added to it.
        live: values that are read after the last part.
        outer: names by which the enclosing regions save values; None where there are none.
    """
    needed = [set(live)]
    for part in reversed(parts[1:]):
        needed.append(needed[-1] | set(_reads(emission, part)))
    sent = dict[int, Sent]()  # by the part behind which it is fetched
    for n, (part, later) in enumerate(zip(parts, reversed(needed), strict=True)):
        if isinstance(part, Region):
            found = run_region(emission, part, env, later, outer, _run_parts)
            if found is not None:
                sent[min(n + part.ahead, len(parts) - 1)] = found
        elif isinstance(part, PlannedLoop):
            _run_loop(emission, part, env)
        else:
            _run_choice(emission, part, env)
        if n in sent:
            _add_gate(emission, part, env, later, sent.pop(n))


def _add_gate(
    emission: Emission, part: Part, env: dict[int, Any], live: set[int], sent: Sent
) -> None:
    """Fetch what was sent to the host when the cotangents of a part's results have come."""
    results = [i for i in _writes(emission, part) if i in live and i in env]
    floats = [i for i in results if compat.is_float(jax.typeof(env[i]))]
    env.update(zip(floats, gate([env[i] for i in floats], sent), strict=True))


def _reads(emission: Emission, part: Part) -> list[int]:
    return reads_of(emission, part) if isinstance(part, Region) else list(_equation(part).reads)


def _writes(emission: Emission, part: Part) -> list[int]:
    return writes_of(emission, part) if isinstance(part, Region) else list(_equation(part).outputs)


def _equation(part: PlannedLoop | PlannedChoice) -> Equation:
    return part.loop.equation if isinstance(part, PlannedLoop) else part.choice.equation
