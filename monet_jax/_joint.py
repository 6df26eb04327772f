"""One stage's forward and backward as the ops that XLA will run and the values it will keep.

The stage's value and pulled-back gradient are traced together, with a `checkpoint_name` on every
primal value, so that each residual is known by the primal value that produces it. What the trace
fuses away is no value (see `_fusion`); what remains becomes ops:

    forward    an equation that writes a primal value
    backward   an equation that depends on a cotangent, or prepares something only for one that does

The result, a `Joint`, names values by local numbers, so that isomorphic stages can share it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import _compat
from ._costs import Roofline, Work, work_of
from ._fusion import Kind, is_random, kind_of, must_run_once
from ._program import Equation, Program, flatten, run
from ._stages import Stage, abstract

_PREFIX = "monet_jax.trace:"


@dataclasses.dataclass(frozen=True, slots=True)
class LocalOp:
    """An op of a joint program; values are numbers of the joint program.

    Attributes:
        equation: the equation that it is built round.
        inputs: materialised values and inputs of the joint program that its fusion reads.
        outputs: materialised values that it writes.
        seconds, flops: of the equation and everything fused into it.
        forward: whether it belongs to the forward pass.
        recomputable: whether it may run again.
    """

    equation: Equation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    seconds: float
    flops: int
    forward: bool
    recomputable: bool


@dataclasses.dataclass(frozen=True)
class Joint:
    """A stage's value and gradient as ops.

    Attributes:
        program: the flat joint program.
        ops: forward ops in order, then backward ops in order.
        primal: joint value -> primal value of the stage that it is.
        inputs: joint value for each input of the stage.
        outputs: joint value (or None) for each output of the stage.
        cotangents: joint value for each differentiated output of the stage.
        gradients: joint value (or None) for each differentiated input of the stage.
    """

    program: Program
    ops: tuple[LocalOp, ...]
    primal: dict[int, int]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    cotangents: tuple[int, ...]
    gradients: tuple[int | None, ...]


def joint_of(program: Program, stage: Stage, roofline: Roofline) -> Joint:
    """Trace a stage's value and gradient and find its ops."""
    joint = flatten(_trace(program, stage))
    return _Reader(joint, stage, roofline).read()


def _trace(program: Program, stage: Stage) -> Any:
    """The jaxpr of `(inputs, cotangents) -> (outputs, gradients)`, primal values named."""
    names = {
        i: f"{_PREFIX}{i}"
        for e in stage.equations
        for i in e.outputs
        if hasattr(program.avals[i], "dtype") and not _compat.is_key(program.avals[i])
    }
    places = {i: n for n, i in enumerate(stage.inputs)}

    def forward(differentiated, inputs):
        env = {i: inputs[places[i]] for i in stage.inputs} | program.constants
        env |= dict(zip(stage.differentiated_inputs, differentiated, strict=True))
        run(stage.equations, env, names)
        outputs = {i: env[i] for i in stage.outputs}
        return [outputs[i] for i in stage.differentiated_outputs], list(outputs.values())

    def joint(inputs, cotangents):
        differentiated = [inputs[places[i]] for i in stage.differentiated_inputs]
        _, pull, outputs = jax.vjp(lambda d: forward(d, inputs), differentiated, has_aux=True)
        return outputs, pull(cotangents)[0]

    return jax.make_jaxpr(joint)(
        abstract(program, stage.inputs), abstract(program, stage.differentiated_outputs)
    )


class _Reader:
    """Reads a joint program into ops; the attributes are its tables, filled in this order."""

    def __init__(self, joint: Program, stage: Stage, roofline: Roofline):
        self.joint, self.stage, self.roofline = joint, stage, roofline
        self.producer = {i: e for e in joint.equations for i in e.outputs}
        self.kinds = {id(e): kind_of(e) for e in joint.equations}
        self.cotangents = joint.inputs[len(stage.inputs) :]
        self.root = self._roots()
        self.backward = self._dependents(self.cotangents, lambda e: True)
        self.primal = self._primal()
        self.kept = self._materialised()

    def read(self) -> Joint:
        outputs = [self._output(i) for i in self.joint.outputs]
        split = len(self.stage.outputs)
        return Joint(
            self.joint,
            self._ops(),
            self.primal,
            self.joint.inputs[: len(self.stage.inputs)],
            tuple(outputs[:split]),
            self.cotangents,
            tuple(outputs[split:]),
        )

    def _output(self, atom) -> int | None:
        return self.root.get(atom, atom) if isinstance(atom, int) else None

    def _roots(self) -> dict[int, int]:
        """View -> the value whose bytes it shows."""
        root: dict[int, int] = {}
        for equation in self.joint.equations:
            if self.kinds[id(equation)] is Kind.VIEW and equation.reads:
                reads = equation.reads
                for n, i in enumerate(equation.outputs):
                    source = reads[n] if len(reads) == len(equation.outputs) else reads[0]
                    root[i] = root.get(source, source)
        return root

    def _dependents(self, sources: Sequence[int], through: Callable[[Equation], bool]) -> set[int]:
        found = set(sources)
        for equation in self.joint.equations:
            if through(equation) and found.intersection(equation.reads):
                found.update(equation.outputs)
        return found

    def _primal(self) -> dict[int, int]:
        """Joint value -> primal value, by the names given while tracing."""
        primal: dict[int, int] = {}
        for equation in self.joint.equations:
            name = str(equation.eqn.params.get("name", ""))
            if equation.primitive == "name" and name.startswith(_PREFIX):
                value = self.root.get(equation.outputs[0], equation.outputs[0])
                if value not in self.backward:
                    primal.setdefault(value, int(name[len(_PREFIX) :]))
        return primal

    def _materialised(self) -> set[int]:
        """Values that own memory while the stage runs."""
        kept = {i for i in map(self._output, self.joint.outputs) if i in self.producer}
        noise = self._noise()
        for equation in self.joint.equations:
            kind = self.kinds[id(equation)]
            reads = {self.root.get(i, i) for i in equation.reads}
            if kind in (Kind.REDUCTION, Kind.SOLID):
                kept.update(equation.outputs)
            if kind is Kind.SOLID:
                kept.update(i for i in reads if i in self.producer)
            if not noise.issuperset(equation.outputs):
                kept.update(reads & noise)
        return {i for i in kept if self.kinds[id(self.producer[i])] is not Kind.VIEW}

    def _noise(self) -> set[int]:
        """Values drawn from a generator and not yet mixed with anything else.

        Drawing costs many instructions, so what is drawn (a dropout mask, say, rather than the
        random bits that it came from) is kept where it meets other data.
        """
        drawn: set[int] = set()
        plain: set[int] = set()  # literals, spread out
        for equation in self.joint.equations:
            reads = set(equation.reads) - plain
            fused = self.kinds[id(equation)] in (Kind.VIEW, Kind.FUSED)
            if is_random(equation) or (fused and reads and reads <= drawn):
                drawn.update(equation.outputs)
            elif fused and not reads:
                plain.update(equation.outputs)
        return drawn

    def _ops(self) -> tuple[LocalOp, ...]:
        made = [
            self._op(e, outputs)
            for e in self.joint.equations
            if (outputs := tuple(i for i in e.outputs if i in self.kept)) or e.eqn.effects
        ]
        forward = [op for op in made if op.forward]
        later = [op for op in made if not op.forward]
        pulled = [op for op in later if self.backward.intersection(op.outputs)]
        return tuple(forward + _each_after_its_inputs(pulled, later))

    def _op(self, equation: Equation, outputs: tuple[int, ...]) -> LocalOp:
        inputs, work = self._fusion(equation)
        moved = sum(self.joint.nbytes(i) for i in {*inputs, *outputs})
        is_backward = self.backward.intersection(outputs)
        return LocalOp(
            equation,
            tuple(sorted(inputs)),
            outputs,
            self.roofline.seconds(work, moved),
            work.flops,
            not is_backward
            and (bool(equation.eqn.effects) or any(i in self.primal for i in outputs)),
            not must_run_once(equation) and not self._impure(equation),
        )

    def _impure(self, equation: Equation) -> bool:
        """Whether the fusion of an equation draws bits that a second run may not draw again."""
        return any(must_run_once(e) for e in self._fused_into(equation))

    def _fusion(self, equation: Equation) -> tuple[set[int], Work]:
        """What the fusion round an equation reads from memory, and its work."""
        fused = [equation, *self._fused_into(equation)]
        reads = {self.root.get(i, i) for e in fused for i in e.reads}
        inputs = {i for i in reads if i in self.kept or i not in self.producer}
        return inputs, sum((work_of(e) for e in fused), Work())

    def _fused_into(self, equation: Equation) -> list[Equation]:
        """The producers that XLA computes inside the fusion of `equation`."""
        found: dict[int, Equation] = {}
        queue = list(equation.reads)
        while queue:
            i = self.root.get(i := queue.pop(), i)
            producer = self.producer.get(i)
            if producer is None or i in self.kept or id(producer) in found:
                continue
            found[id(producer)] = producer
            queue += producer.reads
        return list(found.values())


def _each_after_its_inputs(ops: Sequence[LocalOp], known: Sequence[LocalOp]) -> list[LocalOp]:
    """The ops in order, each preceded by those of the known ops that only it waits for."""
    writer = {i: op for op in known for i in op.outputs}
    placed: set[int] = set()
    ordered: list[LocalOp] = []

    def place(op: LocalOp) -> None:
        if id(op) in placed:
            return
        placed.add(id(op))
        for i in op.inputs:
            if i in writer:
                place(writer[i])
        ordered.append(op)

    for op in ops:
        place(op)
    return ordered
