"""The interface of what compiles: one program of a function, whose plans a compiler judges."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import planners
from planners.graph import Graph
from planners.plan import Region

from ..compiler.compile import CompiledBytes

#: Of a compiled plan: its program and its regions.
type Key = tuple[str, tuple[Region, ...]]


class CompilationFailed(Exception):
    """The compiler failed on one planned program; others may compile."""


class Judge(abc.ABC):
    """One program of a function: its planning graph, and the compiled bytes of its plans.

    A function has several: as it is traced, without operators, and with nested scans. They compute
    the same, and their unplanned program is the same.
    """

    #: What the program is, in words, for the record.
    name: str
    #: Over how many devices the arguments are sharded; compiled bytes are on one of them.
    devices: int = 1
    #: What a byte of temporaries takes, where each step is given memory that was never touched.
    touch_seconds_per_byte: float = 0.0

    @property
    @abc.abstractmethod
    def graph(self) -> Graph:
        """The planning graph, as analyzed."""

    @property
    @abc.abstractmethod
    def output_bytes(self) -> Mapping[str, int]:
        """Name of a graph value that the step returns -> its bytes."""

    @property
    @abc.abstractmethod
    def lossy_codes(self) -> frozenset[int]:
        """Values of the graph that are arrays of lossy codes."""

    @property
    @abc.abstractmethod
    def plain(self) -> "Judge":
        """The program whose plan that saves all is the unplanned program: itself, or another."""

    @abc.abstractmethod
    def unplanned_bytes(self) -> CompiledBytes:
        """Compile the function as it is.

        Raises:
            Exception: what the compiler raises.
        """

    @abc.abstractmethod
    def planned_bytes(self, decisions: planners.Plan) -> CompiledBytes:
        """Compile a plan.

        Raises:
            CompilationFailed: the compiler fails on this program.
        """

    def begin(self, decisions: planners.Plan) -> None:  # noqa: B027 (few compilers can)
        """Begin to compile a plan, beside another program, where `planned_bytes` is sure to.

        Whether anything is begun changes no bytes.
        """

    def runnable(self, decisions: planners.Plan | None) -> Callable[[], Any]:
        """A plan's program, or None's: the function as it is, ready to run on made-up arrays.

        Raises:
            NotImplementedError: its target is not this process's device.
        """
        raise NotImplementedError(f"{self.name} cannot be run here: need this process's device")

    def on_device[Result](self, function: Callable[[], Result]) -> Result:
        """What a function returns that runs programs."""
        return function()


@dataclasses.dataclass(frozen=True)
class CompiledPlan:
    """A plan and its bytes.

    Attributes:
        program: the name of its judge.
        decisions: the plan.
        predicted_temp_bytes: by the model and the programs that calibrate it.
        figures: as compiled; None where plans are not compiled, or the compiler failed.
        has_failed: whether the compiler failed on it.
    """

    program: str
    decisions: planners.Plan
    predicted_temp_bytes: int
    figures: CompiledBytes | None
    has_failed: bool = False

    @property
    def key(self) -> "Key":
        """What tells it from the other plans of a function."""
        return self.program, self.decisions.regions
