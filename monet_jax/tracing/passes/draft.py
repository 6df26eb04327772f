"""A program while passes turn it from a jaxpr into stages."""

import dataclasses
import enum
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...ir.program import Equation, Program, Rewrite
from ...ir.stage import Differentiation, Replaced, Stage
from ..conditionals import Choice
from ..staged import Loop, StagedProgram


class Place(enum.Enum):
    """Where a program stands: it is the whole function, a loop's body, or a branch."""

    FUNCTION = "function"
    BODY = "body"
    BRANCH = "branch"


def is_in(atom: Any, values: Collection[int]) -> bool:
    """Whether a value or literal is one of these values."""
    return isinstance(atom, int) and atom in values


#: A program of nothing.
EMPTY = Program((), (), {}, (), (), frozenset())


@dataclasses.dataclass(frozen=True)
class Listing:
    """A jaxpr that is listed as a flat program.

    Attributes:
        jaxpr: closed.
        rewrite: what to list in the place of single equations.
        inlines_checkpoints: whether regions of `jax.checkpoint` are inlined.
        changes: `(program, derivative)` -> the program with several equations replaced by one, or
            itself.
        derivative_of: the derivative of a program that these need.
        closed_over: values of the first of the jaxpr's inputs, which are constants of the program.
        caller: the equation that the jaxpr is the body of, if it is one's.
        program: what is listed so far.
        is_changed: whether one of the changes has changed it.
    """

    jaxpr: Any
    rewrite: Rewrite
    inlines_checkpoints: bool
    changes: Sequence[Callable[[Program, Any], Program]] = ()
    derivative_of: Callable[[Program], Differentiation] | None = None
    closed_over: Sequence[Any] = ()
    caller: Any = None
    program: Program = EMPTY
    is_changed: bool = False


@dataclasses.dataclass(frozen=True)
class Planned:
    """A `scan` or `cond` whose inside is planned, and has yet to be listed."""

    equation: Equation


@dataclasses.dataclass(frozen=True)
class Listed:
    """A loop or a conditional with its stages, which it counts from its own first stage."""

    whole: Loop | Choice
    stages: tuple[Stage, ...]


@dataclasses.dataclass
class Draft:
    """A program on its way to stages.

    Attributes:
        flat: the program as it was listed.
        derivative: which derivative of it is planned for.
        place: where it stands.
        passes: what it passes through, and what is inside it.
        nested_lengths: of the whole function, as in `StagedProgram`.
        consts: of a loop's body, the inputs that are the same in every iteration.
        program: the program as it is cut.
        hoisted: of a loop's body, the stage that runs before the loop.
        active: the values that are differentiated.
        avals: of all values so far.
        given: values that are in memory throughout.
        keeps_other: as `Program.keeps_other`.
        pieces: the stages, in order.
        invariant_values: as in `StagedProgram`.
    """

    flat: Program
    derivative: Differentiation
    place: Place
    passes: "Passes"
    nested_lengths: tuple[int, ...] | None = None
    consts: tuple[int, ...] = ()
    program: Program = EMPTY
    hoisted: Stage | None = None
    active: frozenset[int] = frozenset()
    avals: list[Any] = dataclasses.field(default_factory=list)
    given: set[int] = dataclasses.field(default_factory=set)
    keeps_other: bool = False
    pieces: list[Replaced | Planned | Listed] = dataclasses.field(default_factory=list)
    invariant_values: dict[int, int] = dataclasses.field(default_factory=dict)

    def is_given(self, atom: Any) -> bool:
        """Whether an operand is in memory throughout."""
        return not isinstance(atom, int) or atom in self.program.given

    def staged(self) -> StagedProgram:
        """The program in stages, each loop and each conditional where it has come to stand."""
        stages = [self.hoisted] if self.hoisted else []
        loops, choices = list[Loop](), list[Choice]()
        for piece in self.pieces:
            match piece:
                case Replaced():
                    stages.append(piece.stage)
                case Listed(Loop() as loop, own):
                    loops.append(loop.later(len(stages)))
                    stages += own
                case Listed(Choice() as choice, own):
                    choices.append(choice.later(len(stages)))
                    stages += own
        program = dataclasses.replace(
            self.program,
            avals=tuple(self.avals),
            inputs=self.flat.inputs,
            equations=_equations_of(stages),
            given=frozenset(self.given),
            keeps_other=self.keeps_other,
        )
        found = program, tuple(stages), tuple(loops), tuple(choices), self.invariant_values
        return StagedProgram(self.flat, self.derivative, *found, self.nested_lengths)


def _equations_of(stages: Sequence[Stage]) -> tuple[Equation, ...]:
    """What stages run, in order; what several of them compute is listed once."""
    written: set[int] = set()
    found = []
    for e in (e for stage in stages for e in stage.equations):
        if written.isdisjoint(e.outputs):
            found.append(e)
            written.update(e.outputs)
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class StagePass:
    """A pass over a draft.

    Attributes:
        name: what it does.
        run: changes the draft.
        places: where it applies.
    """

    name: str
    run: Callable[[Draft], None]
    places: Sequence[Place] = tuple(Place)


@dataclasses.dataclass(frozen=True)
class ProgramPass:
    """A pass over a program that has no stages yet: its name, and what changes the listing."""

    name: str
    run: Callable[[Listing], Listing]


@dataclasses.dataclass(frozen=True)
class Passes:
    """The passes of a function, of its loops' bodies and of its branches, in order."""

    program: tuple[ProgramPass, ...]
    stages: tuple[StagePass, ...]

    def listed(self, listing: Listing) -> Program:
        """The flat program of a jaxpr."""
        for one in self.program:
            listing = one.run(listing)
        return listing.program

    def staged(self, draft: Draft) -> StagedProgram:
        """The stages of a flat program."""
        draft.program = draft.flat
        for one in self.stages:
            if draft.place in one.places:
                one.run(draft)
        return draft.staged()
