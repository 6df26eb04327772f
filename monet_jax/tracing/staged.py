"""A program in stages, as the analyzer and the transformer read it: its loops, branches and names.

A plan names a value by the stage that writes it and by its place among what that stage writes, as
`s3.5`. A value that several stages compute, each for itself, has the name that the first of them
gives it. Names are made here and are looked up in tables; nothing takes them apart. The letter
tells programs of one function apart: `s` of the function as it is traced, `p` of the plain one,
without operators, and `n` of one with nested scans.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from ..ir import compat
from ..ir.fingerprint import cut_hash, joined_hashes, program_hash
from ..ir.primitives import Kind, kind_of
from ..ir.program import Equation, Program
from ..ir.stage import Differentiation, Stage
from . import conditionals
from .conditionals import Choice


@dataclasses.dataclass(frozen=True)
class StagedProgram:
    """A program cut into stages, or the body of a loop.

    Attributes:
        flat: the program before it was cut.
        derivative: which derivative of it is planned for.
        program: what the stages run: planned loops unrolled and planned branches listed.
        stages: in order.
        loops: the planned loops, in order.
        choices: the planned choices that are in no loop and in no branch, in order.
        invariant_values: values that depend on a loop's constants alone -> the value of the last
            block. However many blocks save such a value, JAX keeps that one.
        nested_lengths: iterations of the inner scans, for each `scan` of the flat program; None
            where all loops run as they are.
        letter: of the names of its values.
        axes: of a `shard_map` round the function.
        narrows: whether its gradients are used at once, by updates, so that they may leave a region
            in the dtype that they come from.
    """

    flat: Program
    derivative: Differentiation
    program: Program
    stages: tuple[Stage, ...]
    loops: tuple["Loop", ...] = ()
    choices: tuple[Choice, ...] = ()
    invariant_values: Mapping[int, int] = dataclasses.field(default_factory=dict)
    nested_lengths: tuple[int, ...] | None = None
    letter: str = "s"
    axes: compat.MappedAxes = compat.NO_AXES
    narrows: bool = False

    @functools.cached_property
    def fingerprint(self) -> str:
        """Two hashes: of the flat program with its derivative, and of its cut into stages."""
        wholes = [(x.first, x.stop, len(x.stages), x.trips) for x in self.loops]
        branches = [(b.first, b.stop) for x in self.all_choices() for b in x.branches]
        cut = cut_hash(self.stages, (wholes, branches, self.nested_lengths))
        return joined_hashes(program_hash(self.flat, self.derivative), cut)

    @functools.cached_property
    def names(self) -> dict[int, str]:
        """Value of the program that a stage writes -> its name in plans."""
        found: dict[int, str] = {}
        for s, stage in enumerate(self.stages):
            for n, i in enumerate(i for e in stage.equations for i in e.outputs):
                found.setdefault(i, f"{self.letter}{s}.{n}")
        return found

    @functools.cached_property
    def values(self) -> dict[str, int]:
        """Name in plans -> the value of the program."""
        return {name: i for i, name in self.names.items()}

    @functools.cached_property
    def writer(self) -> dict[int, Equation]:
        """Value of the program -> the equation that writes it."""
        return {i: e for stage in self.stages for e in stage.equations for i in e.outputs}

    @functools.cached_property
    def checkpoint_names(self) -> dict[int, tuple[str, ...]]:
        """Value of the program -> what the user calls it, or a view of it, by `checkpoint_name`."""
        roots: dict[int, int] = {}
        found: dict[int, tuple[str, ...]] = {}
        for equation in self.program.equations:
            if kind_of(equation) is Kind.VIEW and equation.reads:
                root = roots.get(equation.reads[0], equation.reads[0])
                roots |= dict.fromkeys(equation.outputs, root)
                if name := compat.checkpoint_name_of(equation.eqn):
                    found[root] = (*found.get(root, ()), name)
        return found

    @functools.cached_property
    def shared(self) -> frozenset[int]:
        """Values that several stages read."""
        counts = collections.Counter(i for stage in self.stages for i in stage.inputs)
        wholes = (*self.loops, *conditionals.walk(self.choices))
        counts.update(i for x in wholes for i in x.equation.reads)
        return frozenset(i for i, count in counts.items() if count > 1)

    def all_choices(self) -> Iterator[Choice]:
        """Every planned choice, including the choices of each block of iterations."""
        yield from conditionals.walk(self.choices)
        for loop in self.loops:
            for k in range(loop.blocks):
                yield from conditionals.walk(loop.choices_in(k))

    def names_in_body(self, loop: "Loop", k: int) -> dict[str, str]:
        """Name of a value of block `k`, or of one carried into it -> its name in the body."""
        given = ((loop.atom(k, v), name) for name, v in loop.carried_inputs.items())
        carried = {
            self.names[i]: name for i, name in given if isinstance(i, int) and i in self.names
        }
        return carried | {self.names[loop.atom(k, v)]: name for v, name in loop.body.names.items()}

    def with_constants(self, constants: Mapping[int, Any]) -> "StagedProgram":
        """The same, closing over other values of the same types."""
        program = dataclasses.replace(self.program, constants=constants)
        flat = dataclasses.replace(self.flat, constants=constants)
        return dataclasses.replace(self, flat=flat, program=program)


@dataclasses.dataclass(frozen=True)
class Loop:
    """A `scan` whose iterations are stages.

    | index | means |
    |---|---|
    | `k` | a block of iterations, in order of execution |
    | `v` | a value of the body; in block `k` it is `loop.atom(k, v)` of the program |

    Attributes:
        equation: the scan.
        counts: how many of its operands are constants, carried, and stacked.
        body: its body, which has no planned loops.
        first: its first stage among the program's.
        trips: how many iterations each block has.
        offsets: for each block what is added to the numbers of the body's own values.
        given: for each block what the body's inputs are: values or literals of the program.
    """

    equation: Equation
    counts: tuple[int, int, int]
    body: StagedProgram
    first: int
    trips: tuple[int, ...]
    offsets: tuple[int, ...]
    given: tuple[Mapping[int, Any], ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the body."""
        return self.body.stages

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return len(self.trips)

    @property
    def stop(self) -> int:
        """The first of the program's stages behind it."""
        return self.first + self.blocks * len(self.stages)

    @property
    def hoists(self) -> bool:
        """Whether its first stage runs before it, rather than in each iteration."""
        return self.stages[0].hoisted

    def later(self, shift: int) -> "Loop":
        """The same, `shift` stages later."""
        return dataclasses.replace(self, first=self.first + shift)

    def atom(self, k: int, v: Any) -> Any:
        """What a value or literal of the body is in block `k`."""
        if not isinstance(v, int):
            return v
        return self.given[k].get(v, self.offsets[k] + v)

    @property
    def carried_inputs(self) -> dict[str, int]:
        """Inputs of the body that are carried from the iteration before, by names for them."""
        first, count = self.counts[:2]
        inputs = self.body.program.inputs[first : first + count]
        return {f"carried{n}": v for n, v in enumerate(inputs)}

    def choices_in(self, k: int) -> list[Choice]:
        """The planned choices in block `k`, by the program's stages and values."""
        shift = self.first + k * len(self.stages)
        return [x.renamed(functools.partial(self.atom, k), shift) for x in self.body.choices]

    @property
    def stacked(self) -> list[tuple[int, int]]:
        """Values of the program that the loop takes slices of, with the body's input for each."""
        split = self.counts[0] + self.counts[1]
        pairs = zip(self.equation.inputs[split:], self.body.program.inputs[split:], strict=True)
        return [(i, v) for i, v in pairs if isinstance(i, int)]

    @property
    def carried(self) -> list[tuple[int, int]]:
        """Results that are carried out of the last iteration, and the values that they are there.

        Those that a literal is carried into are left out.
        """
        outputs = self.body.program.outputs[: self.counts[1]]
        last = (self.atom(self.blocks - 1, v) for v in outputs)
        pairs = zip(self.equation.outputs, last, strict=False)
        return [(result, i) for result, i in pairs if isinstance(i, int)]

    @property
    def collected(self) -> list[tuple[int, Any]]:
        """Results that are stacked, and the output of the body for each."""
        split, outputs = self.counts[1], self.body.program.outputs
        return list(zip(self.equation.outputs[split:], outputs[split:], strict=True))
