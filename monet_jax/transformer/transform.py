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
from ..ir.barriers import accumulated, cotangents_with_barrier, with_barrier
from ..ir.primitives import must_run_once
from ..ir.program import Program, aval_of, run, values_of
from ..ir.stage import Stage, active_in
from ..operators import Encoding, Stored, is_hook, representations_of
from ..operators.codecs import words_of
from ..tracing.conditionals import Branch
from ..tracing.staged import Loop, StagedProgram
from .names import run_named
from .parts import Part, PlannedChoice, PlannedLoop, parts_of
from .scan import Run, run_loop
from .scan_operands import Body, Hoisted

#: Before every name given here, so that none collides with a name of the user's.
NAME_PREFIX = "monet_jax:"


@dataclasses.dataclass(frozen=True)
class _Emission:
    """A program that is emitted: the whole function, or the body of a loop.

    Attributes:
        staged: the program in stages.
        encoding: how lossy codecs encode and decode.
        hoisted: of the body of a loop, what is computed before the loop.
    """

    staged: StagedProgram
    encoding: Encoding
    hoisted: frozenset[int] = frozenset()


def transform(
    staged: StagedProgram, plan: planners.plan.Plan, encoding: Encoding | None = None
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """The function `(inputs, constants) -> outputs` of a program, as planned.

    Arguments:
        staged: the program, cut as when the plan was made.
        plan: the decisions.
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
        parts = parts_of(staged, plan.regions)
        emission = _Emission(staged, encoding or Encoding(_words(program, env)))
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


def _run_loop(outer: _Emission, part: PlannedLoop, env: dict[int, Any]) -> None:
    """Run a loop in `env`, blocks with equal regions together."""
    loop, runs, done = part.loop, list[Run](), 0
    for regions, same in it.groupby(zip(part.blocks, loop.trips, strict=True), lambda x: x[0]):
        trips = sum(some for _, some in same)
        runs.append(Run(_body(outer, loop, regions), done, done + trips))
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


def _body(outer: _Emission, loop: Loop, regions: Sequence[Region]) -> Body:
    """The body of a loop, run as some regions say. What is hoisted follows its constants."""
    staged, (consts, carried, _) = loop.body, loop.counts
    program, inputs = staged.program, staged.program.inputs
    if loop.hoists:
        first, *others = staged.stages
        inputs = (*inputs[:consts], *first.outputs, *inputs[consts:])
        staged = dataclasses.replace(staged, stages=(Stage((), (), (), (), ()), *others))
    by = outer.encoding.renamed(lambda v: loop.atom(0, v), staged.writer)
    once = frozenset(inputs) - frozenset(program.inputs)
    emission = _Emission(staged, by, once)
    parts = parts_of(staged, regions)

    def body(consts, carry, slices):
        env = dict(zip(inputs, (*consts, *carry, *slices), strict=True))
        # Where the values themselves pass no barrier, JAX knows which are the loop's own operands.
        _run_parts(emission, parts, env, _returned(program), {})
        results = values_of(env, program.outputs)
        return results[:carried], results[carried:]

    return body


def _run_choice(emission: _Emission, part: PlannedChoice, env: dict[int, Any]) -> None:
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
    emission: _Emission,
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
    for part, later in zip(parts, reversed(needed), strict=True):
        if isinstance(part, Region):
            _run_region(emission, part, env, later, outer)
        elif isinstance(part, PlannedLoop):
            _run_loop(emission, part, env)
        else:
            _run_choice(emission, part, env)


def _run_region(
    emission: _Emission,
    region: Region,
    env: dict[int, Any],
    live: set[int],
    outer: Mapping[int, str] | None,
) -> None:
    if not any(stage.equations for stage in _stages(emission, region)):
        return
    reads = _reads(emission, region)
    writes = [i for i in _writes(emission, region) if i in live]
    saved = _saved(emission, region)
    names = {**(outer or {}), **saved}

    def body(inputs: Sequence[Any]) -> list[Any]:
        local = dict(zip(reads, inputs, strict=True))
        if region.inner:
            _run_parts(emission, region.inner, local, live, names)
        else:
            for stage in _stages(emission, region):
                active = active_in(stage.equations, stage.differentiated_inputs)
                rewrite = emission.staged.program.rewrite
                run_named(stage.equations, local, names, active, emission.encoding, rewrite)
                _wait_for_codes(stage, local, names)
        return [local[i] for i in writes]

    if not region.alone:
        policy = jax.checkpoint_policies.save_only_these_names(*saved.values())
        body = jax.checkpoint(body, policy=policy)
    barrier = with_barrier if outer is None else cotangents_with_barrier
    # The cotangent of a value that several stages read passes a barrier in the last of them, where
    # it begins: with a barrier in each stage, its sum would be live twice. An iteration adds the
    # cotangent of what is hoisted to the constants' cotangents at once, and these pass a barrier at
    # the end of the iteration.
    without_barrier = emission.hoisted | (emission.staged.shared & live)
    inputs = barrier([env[i] for i in reads], [i not in without_barrier for i in reads])
    env.update(zip(writes, body(inputs), strict=True))


def _saved(emission: _Emission, region: Region) -> dict[int, str]:
    """Names of the values that a region saves.

    With `jax_remat3` a derivative that reads the result of its own equation reads it anew, even
    where it is saved, and so all that it follows from. What must run once is then saved as well.
    """
    saved = {emission.staged.values[name]: NAME_PREFIX + name for name in region.saved}
    if not jax.config.jax_remat3:
        return saved
    equations = (e for stage in _stages(emission, region) for e in stage.equations)
    once = [i for e in equations if must_run_once(e) for i in e.outputs]
    return saved | {i: NAME_PREFIX + emission.staged.names[i] for i in once}


def _wait_for_codes(stage: Stage, env: dict[int, Any], names: Mapping[int, str]) -> None:
    """Put a stage's outputs behind a barrier with the compressed residuals that it writes.

    XLA would otherwise encode just before the backward, and keep the uncompressed residuals.
    """
    representations = (x for e in stage.equations if is_hook(e) for x in representations_of(e))
    written = (
        i
        for representation, values in representations
        if isinstance(representation, Stored)
        for i in values
    )
    codes = [i for i in written if i in names and i in env]
    outputs = [i for i in stage.outputs if compat.is_float(jax.typeof(env[i]))]
    if codes and outputs:
        arrays = tuple(jax.lax.stop_gradient(env[i]) for i in codes)
        *later, _ = jax.lax.optimization_barrier((*(env[i] for i in outputs), arrays))
        env.update(zip(outputs, later, strict=True))


def _stages(emission: _Emission, region: Region) -> tuple[Stage, ...]:
    return emission.staged.stages[region.first : region.last + 1]


def _reads(emission: _Emission, part: Part) -> list[int]:
    if not isinstance(part, Region):
        whole = part.loop if isinstance(part, PlannedLoop) else part.choice
        return list(whole.equation.reads)
    written: set[int] = set()
    reads: dict[int, None] = {}
    for stage in _stages(emission, part):
        reads |= dict.fromkeys(i for i in stage.inputs if i not in written)
        written.update(stage.outputs)
    return list(reads)


def _writes(emission: _Emission, region: Region) -> list[int]:
    return list(dict.fromkeys(i for stage in _stages(emission, region) for i in stage.outputs))
