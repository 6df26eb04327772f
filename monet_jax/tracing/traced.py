"""What a trace of a function is: its flat program, the options of its plan, and its stages."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..ir import compat
from ..ir.fingerprint import program_hash
from ..ir.program import Program
from ..ir.stage import Differentiation
from ..operators import selected
from .pipeline import stage
from .staged import StagedProgram

#: What may be done with `jax.checkpoint` regions of the user's.
CHECKPOINTS = ("keep", "plan")


@dataclasses.dataclass(frozen=True)
class Terms:
    """The options that a function is planned with, beside its budget.

    Attributes:
        operators: names of the residual operators that a plan may use; with none, nothing in it
            has a derivative of its own, so that forward mode works.
        checkpoints: "keep" the user's `jax.checkpoint` regions as they are, or "plan" through them.
    """

    operators: tuple[str, ...] = dataclasses.field(
        default_factory=lambda: tuple(x.name for x in selected("exact"))
    )
    checkpoints: str = "keep"

    @staticmethod
    def of(operators: str | Sequence[str], checkpoints: str) -> "Terms":
        """The terms that the arguments of `plan` mean.

        Raises:
            ValueError: there are no such operators, or `checkpoints` is another word.
        """
        if checkpoints not in CHECKPOINTS:
            raise ValueError(f"`checkpoints` must be one of {CHECKPOINTS}; got {checkpoints!r}.")
        return Terms(tuple(x.name for x in selected(operators)), checkpoints)

    @property
    def forward_mode(self) -> bool:
        """Whether tangents must pass a plan forward, `jax.jit` round it or not."""
        return not self.operators


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A function's jaxpr before any rewrite.

    Attributes:
        jaxpr: closed; of `closed_over`, and of the flat inputs behind that.
        closed_over: tracers of outer transformations among what the function closes over, and all
            arrays beside them; nothing if there are none of them.
        tracers: for each of these, whether it is a tracer: arrays have no gradient.
        avals: `ShapeDtypeStruct`s of the inputs, shardings included.
        rebuild: flat outputs -> what the function returns.
        devices: over how many devices its inputs are spread, which tracers hide.
        axes: of a `shard_map` round it.
    """

    jaxpr: Any
    closed_over: tuple[Any, ...]
    tracers: tuple[bool, ...]
    avals: tuple[Any, ...]
    rebuild: Callable[[Sequence[Any]], Any]
    devices: int = 1
    axes: compat.MappedAxes = compat.NO_AXES


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function.

    Attributes:
        program: the flat program.
        derivative: which derivative of it the budget covers.
        recorded: the function as it is.
        terms: the options that it is planned with.
        narrows: as in `StagedProgram`.
    """

    program: Program
    derivative: Differentiation
    recorded: Recorded
    terms: Terms = Terms()
    narrows: bool = False

    def staged(self, nested_lengths: tuple[int, ...] | None = None) -> StagedProgram:
        """The program in stages, made once; with nested scans of these lengths, if any."""
        made = self._staged
        if nested_lengths not in made:
            letter = "n" if nested_lengths else "s" if self.terms.operators else "p"
            axes = self.recorded.axes
            with compat.within_axes(axes):
                staged = stage(self.program, self.derivative, nested_lengths)
            own = {"letter": letter, "axes": axes, "narrows": self.narrows}
            made[nested_lengths] = dataclasses.replace(staged, **own)
        return made[nested_lengths]

    @functools.cached_property
    def _staged(self) -> dict[tuple[int, ...] | None, StagedProgram]:
        return {}

    @functools.cached_property
    def plain(self) -> dict[str, "Traced"]:
        """Target -> the same function without operators (see `without_operators`)."""
        return {}

    @functools.cached_property
    def program_hash(self) -> str:
        """A hash of the program and its derivative, however it is cut."""
        return program_hash(self.program, self.derivative)

    @property
    def fingerprint(self) -> str:
        """A hash of the program and its derivative, and a hash of its cut into stages."""
        return self.staged().fingerprint

    @property
    def avals(self) -> tuple[Any, ...]:
        """`ShapeDtypeStruct`s of the inputs, shardings included."""
        return self.recorded.avals

    @property
    def devices(self) -> int:
        """Over how many devices the inputs are spread."""
        return self.recorded.devices

    @property
    def spread(self) -> int:
        """Over how many devices the program is, those of a `shard_map` round it among them."""
        return self.devices * self.recorded.axes.devices

    @property
    def constants(self) -> tuple[Any, ...]:
        """Values of `program.constants`, in order."""
        return tuple(self.program.constants.values())

    def flat(self, inputs: Sequence[Any], constants: Sequence[Any] = ()) -> list[Any]:
        """The function as it is: flat outputs from flat inputs.

        It ignores the program's constants, for it closes over its own.
        """
        del constants
        given = (*self.recorded.closed_over, *inputs)
        return compat.as_function(self.recorded.jaxpr)(*given)

    @functools.cached_property
    def narrowing(self) -> "Traced":
        """The same function, whose gradients updates use at once (`StagedProgram.narrows`)."""
        made = dataclasses.replace(self, narrows=True)
        staged = self._staged.items()
        made._staged.update({n: dataclasses.replace(x, narrows=True) for n, x in staged})
        return made

    def closing_over(self, values: Sequence[Any]) -> "Traced":
        """The same function, closing over other values of the same types."""
        if not values:
            return self
        known = dict(zip(map(id, self.recorded.closed_over), values, strict=True))
        constants = {i: known.get(id(x), x) for i, x in self.program.constants.items()}
        made = dataclasses.replace(
            self,
            program=dataclasses.replace(self.program, constants=constants),
            recorded=dataclasses.replace(self.recorded, closed_over=tuple(values)),
        )
        made._staged.update({n: x.with_constants(constants) for n, x in self._staged.items()})
        return made
