"""Finds the values that the user's pins name, with a decision for each.

A pin names a value by a `checkpoint_name` of the user's own, by a module path (every value made in
that module; shell wildcards allowed), or by its name in a report.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping

from ..ir.program import Program
from ..tracing.staged import StagedProgram

_DECISIONS = ("save", "recompute")


@dataclasses.dataclass(frozen=True, slots=True)
class Pins:
    """Decisions that a plan must respect: pairs of a name and "save" or "recompute"."""

    decisions: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.decisions)


def make_pins(pins: Mapping[str, str] | None) -> Pins:
    """Checked pins.

    Raises:
        TypeError: `pins` is not a mapping of names.
        ValueError: a decision is neither "save" nor "recompute".
    """
    if pins is None:
        return Pins()
    if not isinstance(pins, Mapping) or not all(isinstance(name, str) for name in pins):
        raise TypeError(f"`pins` must map names to 'save' or 'recompute'; got {pins!r}.")
    for name, decision in pins.items():
        if decision not in _DECISIONS:
            raise ValueError(f"`pins[{name!r}]` must be one of {_DECISIONS}; got {decision!r}.")
    return Pins(tuple(sorted(pins.items())))


def name_values(staged: StagedProgram, pins: Pins) -> bool:
    """Whether some pin names a value by its name in a report of this program's plans."""
    return any(name in staged.values for name, _ in pins.decisions)


def without_values(staged: StagedProgram, pins: Pins) -> Pins:
    """The pins but those that name values of this program, names that another one lacks."""
    return Pins(tuple(x for x in pins.decisions if x[0] not in staged.values))


def find(staged: StagedProgram, pins: Pins) -> dict[int, str]:
    """Value of the program -> its pinned decision.

    Raises:
        ValueError: a pin names nothing in the program.
    """
    found: dict[int, str] = {}
    for name, decision in pins.decisions:
        values = [*_by_name(staged, name), *_by_path(staged.program, name)]
        if not values:
            raise ValueError(
                f"`pins` names {name!r}, but the function has no such `checkpoint_name`, module "
                "path or value. The names of values are in the report, `print(plan)`; all must be "
                "of one program, and none of one with nested scans (`n3.5`)."
            )
        found |= dict.fromkeys(values, decision)
    return found


def saved_by_name(staged: StagedProgram, pins: Pins) -> set[int]:
    """Values that must be saved and that a pin names one by one, and not with their module.

    Such a value is materialised, also where XLA would compute it inside what reads it.
    """
    names = [name for name, decision in pins.decisions if decision == "save"]
    return {i for name in names for i in _by_name(staged, name)}


def _by_name(staged: StagedProgram, name: str) -> list[int]:
    """Values by the user's `checkpoint_name` or by their name in the report."""
    found = [staged.values[name]] if name in staged.values else []
    return found + [i for i, names in staged.checkpoint_names.items() if name in names]


def _by_path(program: Program, name: str) -> list[int]:
    """Values that a module computes, by its path or a pattern of paths."""
    paths = [(str(e.name_stack), e.outputs) for e in program.equations]
    return [
        i
        for path, outputs in paths
        if path and (fnmatch.fnmatch(path, name) or path.startswith(name + "/"))
        for i in outputs
    ]
