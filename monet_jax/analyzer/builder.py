"""A planning graph that is put together stage by stage.

A value that one stage hands to another is one value of the graph, cotangents are added up in
backward order, and what the program returns takes no memory of its own, since the compiler counts
it as output. What a loop returns in slices is one value of the graph, in memory throughout the
loop, and so is the gradient of what it takes in slices. What a choice returns is written behind its
last branch, whichever has run, and so are the gradients of its operands behind the first one's
backward.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from planners.graph import Implementation, Op, Value

from ..compiler.backend import Backend
from ..ir.program import Program
from ..ir.stage import Stage
from ..tracing.branches import Choice, walk
from ..tracing.loops import Loop
from ..tracing.origins import Line, value_name
from .joint import Joint, LocalOp


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a stage stands in choices.

    Attributes:
        odds: of its branches, all of which are taken to be as likely.
        is_last: whether its branches are the last ones: results of the step, which all branches
            write, are counted there.
    """

    odds: float = 1.0
    is_last: bool = True


class Builder:
    """The graph so far: stages are added forward in order, then backward in reverse order."""

    def __init__(
        self,
        program: Program,
        pinned: dict[int, str],
        cloned: set[int],
        backend: Backend,
        invariant_values: Mapping[int, int],
    ):
        self.program, self.invariant_values = program, invariant_values
        self.arguments = {*program.inputs, *program.constants}
        self.pinned, self.cloned, self.backend = pinned, cloned, backend
        self.returned = {i for i in program.outputs if isinstance(i, int)}
        self.values: list[Value] = []
        self.origins: dict[str, int] = {}
        self.output_bytes: dict[str, int] = {}
        self.lines: dict[str, Line] = {}  # name of a value that has no origin -> where it is from
        self.index: dict[int, int] = {}  # program value -> graph value
        self.locals: list[dict[int, int]] = []  # per stage: joint value -> graph value
        self.gradients: dict[int, int] = {}  # program value -> graph value of its cotangent so far
        self.narrow: set[int] = set()  # float32 values that may be kept as bfloat16
        self.wide: set[int] = set()  # values that an op reads as they are
        self.effects: dict[int, list[int]] = {}  # stage -> what its effects "write"
        self.pending: dict[int, int] = {}  # argument -> stages whose gradients are still to come
        self.forwards: list[list[Op]] = []
        self.backwards: list[list[Op]] = []
        self.repeats = 1  # iterations that what is added stands for; 0 for what is hoisted
        self.hoisted = 0  # graph value: what is hoisted out of the loop that is added
        self.place = Place()
        self.active: set[int] = set()  # stacked values that receive a cotangent
        self.buffers: dict[int, int] = {}  # stacked value -> graph value of its cotangent
        self.kept_as: dict[int, int] = {}  # graph value -> the program value in place of it

    def forward(
        self, stage: Stage, template: Stage, joint: Joint, place: Place, before: list[Op]
    ) -> None:
        """Add a stage's forward ops, behind some others."""
        self.repeats, self.place = 0 if stage.hoisted else stage.repeats, place
        local = {
            j: self.index[i]
            for j, i in zip(joint.inputs, stage.inputs, strict=True)
            if i in self.index
        }
        primal = _renumbered(joint.primal, template, stage)
        first = [op for op in joint.ops if op.forward]
        ops = [self._add(op, joint, local, primal) for op in first]
        self._note_lines(first, ops, template, stage)
        for i, j in zip(stage.outputs, joint.outputs, strict=True):
            if j in local:
                self.index[i] = local[j]
        for i in stage.differentiated_inputs:
            self.pending[i] = self.pending.get(i, 0) + 1
        self.forwards.append(before + ops)
        self.locals.append(local)

    def backward(
        self, stage: Stage, template: Stage, joint: Joint, place: Place, before: list[Op]
    ) -> None:
        """Add a stage's backward ops, and add its gradients to those of later stages."""
        self.repeats, self.place = stage.repeats, place
        local = self.locals.pop()
        for j, i in zip(joint.cotangents, stage.differentiated_outputs, strict=True):
            if i in self.gradients:
                local[j] = self.gradients[i]
        free = self._finished(stage, joint)
        later = [op for op in joint.ops if not op.forward]
        ops = [self._add(op, joint, local, {}, free) for op in later]
        self._note_lines(later, ops, template, stage)
        ops += [Op("effect", (i,), (), 0.0) for i in self.effects.pop(len(self.locals), ())]
        self.backwards.append(before + ops + self._accumulate(stage, joint, local))

    def expect_choice(self, choice: Choice) -> None:
        """Note whose gradients a choice will add to."""
        for i in choice.operands:
            if isinstance(i, int):
                self.pending[i] = self.pending.get(i, 0) + 1

    def enter_branch(self, choice: Choice, b: int) -> None:
        """Before a branch: its inputs are the operands."""
        pairs = zip(choice.operands, choice.branches[b].inputs, strict=True)
        self.index |= {v: self.index[i] for i, v in pairs if isinstance(i, int) and i in self.index}

    def leave_branch(self, choice: Choice, b: int) -> None:
        """After a branch; after the last one there are results."""
        if b + 1 < len(choice.branches):
            return
        for i in choice.equation.outputs:
            self.index[i] = self._new(self.program.nbytes(i), i in self.returned)
        results = tuple(self.index[i] for i in choice.equation.outputs)
        self.forwards[-1].append(Op("join", (), results, 0.0))

    def enter_branch_backward(self, choice: Choice, b: int) -> None:
        """Before a branch's backward: the gradients of its outputs are those of the results."""
        branch = choice.branches[b]
        for i, v in zip(choice.equation.outputs, branch.outputs, strict=True):
            if isinstance(v, int) and i in self.gradients:
                self.gradients[v] = self.gradients[i]
        pairs = zip(choice.operands, branch.inputs, strict=True)
        self.arguments.update(v for i, v in pairs if self._is_final(i))

    def leave_branch_backward(self, choice: Choice, b: int) -> None:
        """After a branch's backward; after the first branch's those of the operands are known."""
        ops, inputs = self.backwards[-1], choice.branches[b].inputs
        written = {self.gradients[v] for v in inputs if v in self.gradients}
        read = tuple(sorted(written))
        if b > 0:
            ops.append(Op("join", read, (), 0.0))
            return
        found: dict[int, int] = {}
        owns = zip(*(branch.inputs for branch in choice.branches), strict=True)
        for i, own in zip(choice.operands, owns, strict=True):
            known = [self.gradients[v] for v in own if v in self.gradients]
            if isinstance(i, int) and known:
                is_final = self._is_final(i)
                found[i] = known[-1] if is_final else self._new(self.program.nbytes(i))
        joined = tuple(g for i, g in found.items() if not self._is_final(i))
        reused_bytes = min(self._total(read), self._total(joined))
        ops.append(Op("join", read, joined, 0.0, workspace_bytes=-reused_bytes))
        for i in choice.operands:
            if isinstance(i, int):
                self.pending[i] -= 1
        for i, gradient in found.items():
            self.gradients[i] = self._added(i, gradient, ops)

    def _is_final(self, i: Any) -> bool:
        """Whether a choice alone has a gradient of an argument: then it is the step's result."""
        is_known = isinstance(i, int) and i not in self.gradients
        return is_known and i in self.arguments and self.pending[i] == 1

    def expect(self, loop: Loop) -> None:
        """Note what a loop will return, and whose gradients it will add to."""
        self.returned.update(i for result, i in loop.carried if result in self.returned)
        sliced = {v for stage in loop.stages for v in stage.differentiated_inputs}
        for choice in reversed([*walk(loop.choices)]):
            for branch in choice.branches:
                pairs = zip(choice.operands, branch.inputs, strict=True)
                sliced.update(i for i, v in pairs if v in sliced and isinstance(i, int))
        for i in {i for i, _ in loop.stacked}:
            self.pending[i] = self.pending.get(i, 0) + 1
        self.active.update(i for i, v in loop.stacked if v in sliced)

    def open_loop(self, loop: Loop, first: Joint) -> list[Op]:
        """What runs before a loop: its stacked results are in memory from here on.

        `first` is what its first stage does.
        """
        self.repeats = 1
        for i, v in loop.stacked:
            if i in self.index:
                self.index |= {loop.atom(k, v): self.index[i] for k in range(loop.blocks)}
        ops = []
        for i, _ in loop.collected:
            self.index[i] = self._new(self.program.nbytes(i), i in self.returned)
            ops.append(Op("empty", (), (self.index[i],), 0.0))
        return ops + self._hoist(loop, first)

    def close_loop(self, loop: Loop) -> None:
        """After a loop: what the last iteration carries out is the result."""
        self.forwards[-1] += self._drop_hoisted(loop)
        self.index |= {result: self.index[i] for result, i in loop.carried if i in self.index}

    def open_loop_backward(self, loop: Loop, first: Joint) -> list[Op]:
        """What runs before a loop's backward: gradients of what is stacked are from here on."""
        self.repeats = 1
        for result, i in loop.carried:
            if result in self.gradients:
                self.gradients[i] = self.gradients[result]
        for result, v in loop.collected:
            # In the first block, what is carried into the loop may be a literal.
            atoms = (loop.atom(k, v) for k in range(loop.blocks))
            for i in atoms if result in self.gradients else ():
                if isinstance(i, int):
                    self.gradients.setdefault(i, self.gradients[result])
        ops = []
        for i in dict.fromkeys(i for i, _ in loop.stacked if i in self.active):
            is_last = self.pending[i] == 1 and i not in self.gradients
            final = i in self.arguments and is_last
            self.buffers[i] = self._new(self.program.nbytes(i), returned=final)
            ops.append(Op("zeros", (), (self.buffers[i],), 0.0))
        return ops + self._hoist(loop, first)

    def close_loop_backward(self, loop: Loop) -> None:
        """After a loop's backward: the gradients of what is stacked join those of later stages."""
        ops = self.backwards[-1]
        ops += self._drop_hoisted(loop)
        for i in {i for i, _ in loop.stacked}:
            self.pending[i] -= 1
            if i not in self.buffers:
                continue
            buffer = self.buffers.pop(i)
            ops.append(Op("stacked", (buffer,), (), 0.0))
            self.gradients[i] = self._added(i, buffer, ops)

    def _hoist(self, loop: Loop, first: Joint) -> list[Op]:
        """What computes what is hoisted out of a loop, which is in memory until the loop ends."""
        if not loop.hoists:
            return []
        own = [op for op in first.ops if op.forward]
        nbytes = sum(first.program.nbytes(j) for op in own for j in op.outputs)
        self.hoisted = self._new(nbytes)
        seconds, flops = sum(op.seconds for op in own), sum(op.flops for op in own)
        return [Op("hoist", (), (self.hoisted,), seconds, flops)]

    def _drop_hoisted(self, loop: Loop) -> list[Op]:
        return [Op("hoisted", (self.hoisted,), (), 0.0)] if loop.hoists else []

    def _finished(self, stage: Stage, joint: Joint) -> set[int]:
        """Joint values that are gradients of arguments and final: they are the step's outputs."""
        pairs = zip(stage.differentiated_inputs, joint.gradients, strict=True)
        return {
            j
            for i, j in pairs
            if j is not None
            and i in self.arguments
            and self.pending[i] == 1
            and i not in self.gradients
        }

    def _accumulate(self, stage: Stage, joint: Joint, local: dict[int, int]) -> list[Op]:
        ops: list[Op] = []
        for i, j in zip(stage.differentiated_inputs, joint.gradients, strict=True):
            self.pending[i] -= 1
            if j not in local:
                continue  # zero, or a cotangent that is an argument
            self.gradients[i] = self._added(i, local[j], ops)
        return ops

    def _added(self, i: int, gradient: int, ops: list[Op]) -> int:
        """A gradient of value `i`, added by one more op to those that came before."""
        if i not in self.gradients:
            return gradient
        final = i in self.arguments and self.pending[i] == 0
        total = self._new(self.program.nbytes(i), returned=final)
        like = self.values[gradient].name
        if like in self.lines:
            self.lines[self.values[total].name] = self.lines[like]
        ops.append(Op("add_any", (gradient, self.gradients[i]), (total,), 0.0))
        return total

    def _add(self, op: LocalOp, joint: Joint, local, primal: dict[int, int], free=()) -> Op:
        for j in op.outputs:
            i = primal.get(j)
            if i is None:
                local[j] = self._new(joint.program.nbytes(j), returned=j in free)
            else:
                local[j] = self._named(i)
        inputs = tuple(sorted({local[j] for j in op.inputs if j in local}))
        outputs = tuple(local[j] for j in op.outputs)
        avals = (joint.program.avals[j] for j in op.outputs)
        self.narrow.update(i for i, a in zip(outputs, avals, strict=True) if a.dtype == jnp.float32)
        if not op.optional:  # what an encoder reads is not kept for it
            self.wide.update({*inputs} - {local[j] for j in op.narrowed if j in local})
        implementations = [
            (w, {local[j] for j in w.inputs if j in local}) for w in op.implementations
        ]
        reused_bytes = min(op.reused_bytes, self._total(inputs), self._total(outputs))
        if op.has_effects:
            outputs += (self._effect(),)
        may_rerun = op.recomputable and all(self._pin(primal, j) != "save" for j in op.outputs)
        return Op(
            op.primitive,
            inputs,
            outputs,
            op.seconds * self.repeats * self.place.odds,
            int(op.flops * self.repeats * self.place.odds),
            op.workspace_bytes - reused_bytes,
            may_rerun,
            tuple(
                Implementation(
                    tuple(sorted(reads)),
                    implementation.seconds * self.repeats * self.place.odds,
                    int(implementation.flops * self.repeats * self.place.odds),
                    op.workspace_bytes - reused_bytes + implementation.more_bytes,
                )
                for implementation, reads in implementations
            ),
            op.optional,
        )

    def _note_lines(
        self, local: Sequence[LocalOp], ops: Sequence[Op], template: Stage, stage: Stage
    ) -> None:
        """Keep from which lines come the values that have no name in the program."""
        for one, op in zip(local, ops, strict=True):
            line = Line(template, stage, one.source)
            names = (self.values[i].name for i in op.outputs)
            self.lines.update((name, line) for name in names if name not in self.origins)

    def results_of(self, ops: Iterable[Op]) -> tuple[int, ...]:
        """Sizes of the step's results that ops write."""
        names = (self.values[i].name for op in ops for i in op.outputs)
        return tuple(self.output_bytes[name] for name in names if name in self.output_bytes)

    def stored_values(self) -> tuple[Value, ...]:
        """Every value, with the bytes that it is stored in."""
        narrow = self.narrow - self.wide if self.backend.narrows_operands else set()
        values = list(self.values)
        for i in narrow:
            values[i] = dataclasses.replace(values[i], nbytes=values[i].nbytes // 2)
        for i, kept_as in self.kept_as.items():
            values[i] = dataclasses.replace(values[i], kept_as=self.index[kept_as])
        return tuple(values)

    def _total(self, values: Iterable[int]) -> int:
        return sum(self.values[i].nbytes for i in values)

    def _pin(self, primal: dict[int, int], j: int) -> str | None:
        return self.pinned.get(primal[j]) if j in primal else None

    def _effect(self) -> int:
        """What an effect writes: nothing, which its stage's backward reads.

        It can be neither saved nor recomputed, so the only valid plan leaves its stage alone.
        """
        value = self._new(0)
        self.effects.setdefault(len(self.locals), []).append(value)
        return value

    def _named(self, i: int) -> int:
        """A value of the program; what several stages compute for themselves has no one name."""
        returned, kept_as = i in self.returned, self.invariant_values.get(i, i)
        nbytes = self.program.nbytes(i) if kept_as == i and self.repeats else 0
        copies = 1 if i in self.invariant_values else self.repeats
        if i in self.cloned:
            made = self._new(nbytes, returned, copies)
        else:
            made = self._append(value_name(i), nbytes, returned, self._is_savable(i), copies)
            self.origins[value_name(i)] = i
        self.index[i] = made
        if kept_as != i:
            self.kept_as[made] = kept_as
        return made

    def _is_savable(self, i: int) -> bool:
        # `jax.checkpoint` rounds what it saves by `reduce_precision`, which refuses complex.
        is_complex = jnp.issubdtype(self.program.avals[i].dtype, jnp.complexfloating)
        is_kept = (
            self.pinned.get(i) != "recompute"
            and i not in self.invariant_values
            and self.repeats > 0
        )
        return not is_complex and is_kept

    def _new(self, nbytes: int, returned: bool = False, copies: int | None = None) -> int:
        copies = self.repeats if copies is None else copies
        return self._append(f"b{len(self.values)}", nbytes, returned, False, copies)

    def _append(self, name: str, nbytes: int, returned: bool, savable: bool, copies: int) -> int:
        if returned and self.backend.lends_results and self.place.is_last:
            self.output_bytes[name] = nbytes
        self.values.append(Value(name, 0 if returned else nbytes, savable, max(1, copies)))
        return len(self.values) - 1


def _renumbered(primal: dict[int, int], template: Stage, stage: Stage) -> dict[int, int]:
    """`primal` of a template's joint, for an isomorphic stage."""
    old = (i for e in template.equations for i in e.outputs)
    new = (i for e in stage.equations for i in e.outputs)
    translation = dict(zip(old, new, strict=True))
    return {j: translation[i] for j, i in primal.items()}
