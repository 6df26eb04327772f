"""Emits one region of stages: its checkpoint, its barriers, and the names of what it saves."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from planners.plan import Region

from ..ir import compat
from ..ir.barriers import cotangents_with_barrier, with_barrier
from ..ir.stage import Stage, active_in
from ..operators import Encoding, Stored, is_hook, representations_of
from ..tracing.staged import StagedProgram
from .host import Moved, Sent, run_offloaded, saved_or_offloaded
from .lookups import with_lookups
from .names import run_named
from .slices import rounded

#: Before every name given here, so that none collides with a name of the user's.
NAME_PREFIX = "monet_jax:"


@dataclasses.dataclass(frozen=True)
class Emission:
    """A program that is emitted: the whole function, or the body of a loop.

    Attributes:
        staged: the program in stages.
        encoding: how lossy codecs encode and decode.
        hoisted: of the body of a loop, what is computed before the loop.
        carried: inputs of that body that the iteration before has written, by name; None where
            the program is no body of a loop.
        depth: of such a body, the `Region.ahead` of the regions whose residuals are put to the
            host as they are written, so that it can be seen which they are (`scan_host`); None
            to leave all on the device.
        once: values that the outermost region saves, where the compiler may write them more than
            once.
        rounded: inputs of that body that are rounded before they are cast.
    """

    staged: StagedProgram
    encoding: Encoding
    hoisted: frozenset[int] = frozenset()
    carried: Mapping[str, int] | None = None
    depth: int | None = None
    once: frozenset[int] = frozenset()
    rounded: frozenset[int] = frozenset()


#: Runs the regions inside a region: their values, what is read after them, and the names of saved
#: values.
type RunInner = Callable[
    [Emission, Sequence[Region], dict[int, Any], set[int], Mapping[int, str]], None
]


def run_region(
    emission: Emission,
    region: Region,
    env: dict[int, Any],
    live: set[int],
    outer: Mapping[int, str] | None,
    run_inner: RunInner,
) -> Sent | None:
    """Run a region in `env`.

    Arguments:
        emission: the program that has it.
        region: its decisions.
        env: value number -> array; the results are added to it.
        live: values that are read after it.
        outer: names by which the enclosing regions save values; None where there are none.
        run_inner: runs the regions inside it.

    Returns:
        What it has sent to the host and a later gate is to fetch; None where there is nothing.
    """
    if not any(stage.equations for stage in stages_of(emission, region)):
        return None
    reads = reads_of(emission, region)
    writes = [i for i in writes_of(emission, region) if i in live]
    saved = _named(emission, region.saved)
    offloaded = _named(emission, region.offloaded)
    names = {**(outer or {}), **saved, **offloaded}
    if outer is None and emission.staged.program.rewrite.writes_saved_once:
        emission = dataclasses.replace(emission, once=frozenset(saved))

    def body(inputs: Sequence[Any]) -> list[Any]:
        local = dict(zip(reads, inputs, strict=True))
        if emission.carried is not None:
            moved = offloaded.keys() & local.keys()
            local |= {i: checkpoint_name(local[i], offloaded[i]) for i in moved}
        if region.inner:
            run_inner(emission, region.inner, local, live, names)
        else:
            _run_stages(emission, region, local, names)
        return [local[i] for i in writes]

    barrier = with_barrier if outer is None else cotangents_with_barrier
    if outer is None and emission.staged.narrows:
        barrier = functools.partial(with_barrier, narrow=_narrowed(emission, region, reads))
    # The cotangent of a value that several stages read passes a barrier in the last of them, where
    # it begins: with a barrier in each stage, its sum would be live twice. An iteration adds the
    # cotangent of what is hoisted to the constants' cotangents at once, and these pass a barrier at
    # the end of the iteration.
    without_barrier = emission.hoisted | (emission.staged.shared & live)
    inputs = barrier([env[i] for i in reads], [i not in without_barrier for i in reads])
    sent = None
    if region.offloaded and emission.carried is None:
        differentiated = {i for x in stages_of(emission, region) for i in x.differentiated_inputs}
        moved = Moved(
            saved=tuple(saved.values()),
            offloaded=tuple(offloaded[i] for i in offloaded if i not in reads),
            inputs=tuple(n for n, i in enumerate(reads) if i in offloaded),
            differentiated=tuple(n for n, i in enumerate(reads) if i in differentiated),
            is_ahead=region.ahead > 0,
            in_stacks=emission.staged.program.rewrite.waits_in_stacks,
        )
        results, sent = run_offloaded(body, inputs, moved)
    else:
        to_host = region.offloaded and region.ahead == emission.depth
        results = _checkpointed(body, region, saved, offloaded, bool(to_host))(inputs)
    env.update(zip(writes, results, strict=True))
    return sent if sent and sent.arrays else None


def _narrowed(emission: Emission, region: Region, reads: Sequence[int]) -> dict[int, Any]:
    """Place of an input of which a region reads one cast to a narrower float -> that dtype.

    Of two casts, the sum of the cotangents would be rounded.
    """
    equations = [e for stage in stages_of(emission, region) for e in stage.equations]
    readers = {i: [e for e in equations if i in e.reads] for i in reads}
    found = {}
    for n, i in enumerate(reads):
        cast = readers[i][0] if len(readers[i]) == 1 else None
        if cast is not None and cast.primitive == "convert_element_type":
            given, made = emission.staged.program.avals[i], cast.eqn.outvars[0].aval
            floats = compat.is_float(given) and compat.is_float(made)
            if floats and made.dtype.itemsize < given.dtype.itemsize:
                found[n] = made.dtype
    return found


def _checkpointed(
    body: Callable[[Sequence[Any]], list[Any]],
    region: Region,
    saved: Mapping[int, str],
    offloaded: Mapping[int, str],
    to_host: bool,
) -> Callable[[Sequence[Any]], list[Any]]:
    """The body of a region, which keeps what the region saves; all, where it is left alone.

    What it moves to the host is kept as well: there, or on the device, from where the loop moves
    it.
    """
    if region.alone:
        return body
    names, others = tuple(saved.values()), tuple(offloaded.values())
    policy = (
        saved_or_offloaded(names, others)
        if to_host
        else jax.checkpoint_policies.save_only_these_names(*names, *others)
    )
    return jax.checkpoint(body, policy=policy)


def _run_stages(
    emission: Emission, region: Region, env: dict[int, Any], names: Mapping[int, str]
) -> None:
    """Run the stages of a region that has no regions inside."""
    tile = emission.staged.program.rewrite.tile
    env |= {i: rounded(env[i], tile) for i in emission.rounded & env.keys()}
    for stage in stages_of(emission, region):
        active = active_in(stage.equations, stage.differentiated_inputs)
        program, equations = emission.staged.program, stage.equations
        if program.rewrite.delays_tables:
            equations = with_lookups(equations, program, active, emission.staged.shared)
        by = emission.encoding, program.rewrite, emission.once
        run_named(equations, env, names, active, *by)
        _wait_for_codes(stage, env, names)


def _named(emission: Emission, values: Sequence[str]) -> dict[int, str]:
    """By number, what values are called by `checkpoint_name`."""
    numbers = {**emission.staged.values, **(emission.carried or {})} if values else {}
    return {numbers[name]: NAME_PREFIX + name for name in values}


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


def stages_of(emission: Emission, region: Region) -> tuple[Stage, ...]:
    """The stages of a region."""
    return emission.staged.stages[region.first : region.last + 1]


def reads_of(emission: Emission, region: Region) -> list[int]:
    """What a region reads and does not write."""
    written: set[int] = set()
    reads: dict[int, None] = {}
    for stage in stages_of(emission, region):
        reads |= dict.fromkeys(i for i in stage.inputs if i not in written)
        written.update(stage.outputs)
    return list(reads)


def writes_of(emission: Emission, region: Region) -> list[int]:
    """What a region writes for later stages."""
    stages = stages_of(emission, region)
    return list(dict.fromkeys(i for stage in stages for i in stage.outputs))
