"""Traces the value and gradient of one stage, and finds which of its values are primal.

The two are traced together, with a `checkpoint_name` on every primal value, so that each residual
is known by the primal value that produces it.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence, Set
from typing import Any

import jax

from ..compiler.backend import Backend, scattering_bytes
from ..ir import compat
from ..ir.program import Equation, Program, dependents, flatten, run
from ..ir.stage import Stage, abstract
from ..seconds.prices import Prices
from .fusion import Fusions

_PREFIX = "monet_jax.trace:"


@dataclasses.dataclass
class TracedStage:
    """The joint program of a stage's value and gradient, and tables of its values.

    Attributes:
        program: the flat joint program.
        stage: the stage.
        prices, backend: of the target.
        fusions: the ops of the joint program.
        hooked: joint value that is named -> primal value of the stage.
        cotangents: joint value for each differentiated output of the stage.
        backward: joint values that depend on a cotangent.
        primal: joint value -> primal value of the stage that it is.
        fleeting: joint values that are arrays only because the backward follows at once.
    """

    program: Program
    stage: Stage
    prices: Prices
    backend: Backend
    fusions: Fusions
    hooked: dict[int, int]
    cotangents: tuple[int, ...]
    backward: set[int]
    primal: dict[int, int]
    fleeting: Set[int]

    @functools.cached_property
    def shared(self) -> Set[int]:
        """Forward values that are arrays for XLA:CPU only if the backward follows at once.

        It computes nothing costly twice, nor what a library's reductions read.
        """
        if not self.backend.needs_scratch:
            return frozenset()
        at_once = Fusions(self.program, self.backend, self.fusions.kept).kept
        return at_once - self.fusions.kept - self.backward

    def new(self, like: int) -> int:
        """A new value, as large as another one."""
        avals = (*self.program.avals, self.program.avals[like])
        self.program = dataclasses.replace(self.program, avals=avals)
        return len(avals) - 1


def waiting_bytes(trace: TracedStage) -> int:
    """Bytes that XLA:CPU keeps for a backward that follows at once, beside what that reads."""
    if not trace.backend.needs_scratch:
        return 0
    scattering = sum(map(scattering_bytes, trace.program.equations))
    return scattering + sum(map(trace.program.nbytes, trace.shared))


def shared_inside(trace: TracedStage) -> dict[int, dict[int, int]]:
    """Output of an op -> the shared values that the op computes inside, and their bytes."""
    found = dict[int, dict[int, int]]()
    for op in trace.fusions.all() if trace.shared else ():
        inside = [i for e in op.fused for i in e.outputs if i in trace.shared]
        found.update((j, {i: trace.program.nbytes(i) for i in inside}) for j in op.outputs)
    return found


def residuals(trace: TracedStage, invariant: Collection[int]) -> set[int]:
    """The joint values that JAX saves of a stage for its derivative, but for loop-invariant ones.

    A compiler fuses much of it away, but not out of a loop, whose stacks hold all of it.
    """
    program, backward = trace.program, trace.backward
    named = {e.outputs[0]: i for e in program.equations for _ in _named(e) for i in e.reads}
    given = program.inputs[: len(trace.stage.inputs)]
    fixed = {j for j, i in trace.hooked.items() if i in invariant}
    varying = (e for e in program.equations if fixed.isdisjoint(e.outputs))
    own = dependents(varying, given) - backward - {*given}
    read = (i for e in program.equations if backward.intersection(e.outputs) for i in e.reads)
    return {named.get(i, i) for i in read} & own


def traced_stage(
    program: Program,
    stage: Stage,
    prices: Prices,
    backend: Backend,
    pinned: Collection[int] = frozenset(),
    at_once: bool = False,
) -> TracedStage:
    """A stage's value and gradient, traced; `pinned` values are never fused.

    Where the backward follows `at_once`, it reads what the forward has computed.
    """
    joint = dataclasses.replace(flatten(_trace(program, stage)), tile=backend.tile)
    named = [(i, e.outputs[0]) for e in joint.equations for i in _named(e)]
    hooked = {j: i for e in joint.equations for i in _named(e) for j in e.reads}
    kept = [value for i, value in named if i in pinned]
    cotangents = joint.inputs[len(stage.inputs) :]
    backward = dependents(joint.equations, cotangents)
    fusions, fleeting = Fusions(joint, backend, kept, _late(joint, backward)), set[int]()
    if at_once:
        apart, fusions = fusions, Fusions(joint, backend, kept)
        fleeting = fusions.kept - apart.kept
    primal = _primal(named, fusions, backward)
    tables = hooked, cotangents, backward, primal, fleeting
    return TracedStage(joint, stage, prices, backend, fusions, *tables)


def _late(joint: Program, backward: Set[int]) -> set[int]:
    """Values that depend on a cotangent, or that only these read."""
    early = {i for i in joint.outputs if isinstance(i, int)} - backward
    for equation in reversed(joint.equations):
        if backward.isdisjoint(equation.outputs) and not early.isdisjoint(equation.outputs):
            early.update(equation.reads)
    return {i for e in joint.equations for i in e.outputs} - early


def _trace(program: Program, stage: Stage) -> Any:
    """The jaxpr of `(inputs, cotangents) -> (outputs, gradients)`, primal values named."""
    names = {
        i: f"{_PREFIX}{i}"
        for e in stage.equations
        for i in e.outputs
        if hasattr(program.avals[i], "dtype") and not compat.is_key(program.avals[i])
    }
    places = {i: n for n, i in enumerate(stage.inputs)}

    def forward(differentiated, inputs):
        env = {i: inputs[places[i]] for i in stage.inputs} | dict(program.constants)
        env |= dict(zip(stage.differentiated_inputs, differentiated, strict=True))
        run(stage.equations, env, names)
        outputs = {i: env[i] for i in stage.outputs}
        return [outputs[i] for i in stage.differentiated_outputs], list(outputs.values())

    def joint(inputs, cotangents):
        differentiated = [inputs[places[i]] for i in stage.differentiated_inputs]
        _, pull, outputs = jax.vjp(lambda d: forward(d, inputs), differentiated, has_aux=True)
        return outputs, pull(cotangents)[0]

    with jax.debug_key_reuse(False):  # a part may use some of the keys that it hands on
        return jax.make_jaxpr(joint)(
            abstract(program, stage.inputs), abstract(program, stage.differentiated_outputs)
        )


def _primal(
    named: Sequence[tuple[int, int]], fusions: Fusions, backward: set[int]
) -> dict[int, int]:
    """Joint value -> primal value, by the names given while tracing."""
    primal: dict[int, int] = {}
    for i, value in named:
        if fusions.root(value) not in backward:
            primal.setdefault(fusions.root(value), i)
    return primal


def _named(equation: Equation) -> Iterator[int]:
    """The primal value that an equation names, if any."""
    name = compat.checkpoint_name_of(equation.eqn)
    if name.startswith(_PREFIX):
        yield int(name[len(_PREFIX) :])
