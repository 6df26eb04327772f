"""Conditionals whose branches have stages, and their names in the program round them."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..ir.program import Equation
from ..ir.stage import Stage

#: From a value or literal of one program to one of another.
Atoms = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Branch:
    """One of a choice.

    Attributes:
        first: its first stage among the program's.
        stop: the first stage behind it.
        inputs: its own values for the operands.
        outputs: a value or literal for each result.
        choices: the planned choices in it.
    """

    first: int
    stop: int
    inputs: tuple[int, ...]
    outputs: tuple[Any, ...]
    choices: tuple["Choice", ...]

    def renamed(self, atom: Atoms, shift: int) -> "Branch":
        """The same in another program, `shift` stages later."""
        return Branch(
            self.first + shift,
            self.stop + shift,
            tuple(map(atom, self.inputs)),
            tuple(map(atom, self.outputs)),
            tuple(choice.renamed(atom, shift) for choice in self.choices),
        )


@dataclasses.dataclass(frozen=True)
class Choice:
    """A `cond` whose branches have stages, one branch after the other.

    Attributes:
        equation: the `cond`; its first operand says which branch runs.
        branches: in order.
    """

    equation: Equation
    branches: tuple[Branch, ...]

    @property
    def first(self) -> int:
        """Its first stage among the program's."""
        return self.branches[0].first

    @property
    def stop(self) -> int:
        """The first of the program's stages behind it."""
        return self.branches[-1].stop

    @property
    def operands(self) -> tuple[Any, ...]:
        """What the branches' inputs are."""
        return self.equation.inputs[1:]

    def renamed(self, atom: Atoms, shift: int) -> "Choice":
        """The same in another program, `shift` stages later."""
        branches = tuple(branch.renamed(atom, shift) for branch in self.branches)
        return Choice(renamed_equation(self.equation, atom), branches)

    def later(self, shift: int) -> "Choice":
        """The same, `shift` stages later."""
        return self.renamed(lambda atom: atom, shift)


def walk(choices: Iterable[Choice]) -> Iterator[Choice]:
    """The choices, and all in their branches, each before those in it."""
    for choice in choices:
        yield choice
        for branch in choice.branches:
            yield from walk(branch.choices)


def renamed_equation(equation: Equation, atom: Atoms, prefix: Any = None) -> Equation:
    """An equation in another program, there with a prefix to its name stack."""
    stack = equation.name_stack if prefix is None else prefix + equation.name_stack
    inputs, outputs = tuple(map(atom, equation.inputs)), tuple(map(atom, equation.outputs))
    return Equation(equation.eqn, inputs, outputs, stack)


def renamed_stage(stage: Stage, outer: Equation, atom: Atoms, repeats: int = 1) -> Stage:
    """A stage of a body or branch, by the values of the program that has it as `outer`."""

    def renamed(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(i for v in values if isinstance(i := atom(v), int))

    return Stage(
        tuple(renamed_equation(e, atom, outer.name_stack) for e in stage.equations),
        renamed(stage.inputs),
        renamed(stage.outputs),
        renamed(stage.differentiated_inputs),
        renamed(stage.differentiated_outputs),
        repeats,
        stage.hoisted,
    )


def shifted(offset: int) -> Atoms:
    """Names for the values of a program whose values are listed from `offset` on."""
    return lambda v: offset + v if isinstance(v, int) else v
