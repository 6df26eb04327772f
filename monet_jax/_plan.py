"""The public `Plan`: a plan's record, which can be applied, stored and shown."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._disk import write_whole
from ._extras import needing_extra
from ._sources import Fixed
from ._step_time import StepSeconds, step_seconds
from ._wrapped import rematerialized
from .plans.record import PlanRecord, record_from_json
from .report.as_policies import policies_of
from .report.policies import Policies
from .step.step_plan import holds_step_plan, step_plan_from_json


@dataclasses.dataclass(frozen=True)
class Plan(PlanRecord):
    """Which values a function's forward pass saves for its gradient, and the costs.

    All bytes are totals on one device: argument + output + temp - alias. `PlanRecord` describes the
    attributes.
    """

    @staticmethod
    def of(record: PlanRecord) -> "Plan":
        """The public plan on top of a record."""
        names = (field.name for field in dataclasses.fields(PlanRecord))
        return Plan(**{name: getattr(record, name) for name in names})

    def apply(
        self,
        fun: Callable[..., Any],
        *,
        argnums: int | Sequence[int] = 0,
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
    ) -> Callable[..., Any]:
        """`fun`, run as planned.

        Arguments:
            fun: the function that the plan was made for.
            argnums, static_argnums, static_argnames: as in `plan`.

        Returns:
            A function with the arguments, values and derivatives of `fun`. Called with arguments
            for which the plan was not made, it raises `PlanMismatch`.
        """
        return rematerialized(fun, Fixed(self), (argnums, static_argnums, static_argnames))

    def step_seconds(
        self,
        fun: Callable[..., Any],
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        argnums: int | Sequence[int] = 0,
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        turns: int = 11,
    ) -> StepSeconds:
        """Seconds of the function's value and gradient here, as it is and as planned, by the clock.

        Both run in turns in this process, so that both see the same load.

        Arguments:
            fun: the function that the plan was made for.
            *args: its arguments; in the place of a shape stands an array that is made up. Both
                programs must fit in memory.
            kwargs: its keyword arguments.
            argnums, static_argnums, static_argnames: as in `plan`.
            turns: how often both run; the first turn is not counted.

        Returns:
            The medians, and the paired ratio of both with its interval of 95 %; it prints as text.

        Raises:
            PlanMismatch: the plan was made for another function or other arguments.
            ValueError: there are fewer than two turns.
        """
        given = argnums, static_argnums, static_argnames
        return step_seconds(self, fun, args, kwargs or {}, given, turns)

    def policies(self) -> Policies:
        """The plan as `jax.checkpoint` policies of names, and what these cannot express.

        It has a policy for the body of each scan whose iterations are alike, and for each kind of
        stages outside of scans. It prints as code to paste; each has `names` and `policy` as well.
        """
        return policies_of(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON; a file that stood there is replaced whole or not at all."""
        write_whole(Path(path), self.to_json())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML file, which needs nothing else: no network, no package.

        It shows the verdict, memory before and after, memory over the step (stacked by what it is
        for; pointing at it names the value and its line), the values and the stages.
        """
        from .report.html import page  # jinja2 is imported only where a page is wanted

        write_whole(Path(path), page(self))

    def plot(self, axes: Any = None) -> Any:
        """Draws memory over the step, stacked by what it is for; needs the extra `plot`.

        Arguments:
            axes: matplotlib's; None makes new ones.

        Returns:
            The matplotlib `Axes`.

        Raises:
            ValueError: the step runs no op, so that there is nothing to draw.
        """
        return needing_extra("monet_jax.report.plots", "plot").plot_plan(self, axes)

    def _repr_html_(self) -> str:
        from .report.html import snippet

        return snippet(self)

    def __repr__(self) -> str:
        from .report.text import outcome

        return f"<Plan: {outcome(self)}>"

    def __str__(self) -> str:
        from .report.text import report  # rich is imported only where a report is wanted

        return report(self)


def load_plan(path: str | os.PathLike[str]) -> Any:
    """Read a plan that `Plan.save` or `StepPlan.save` wrote. Needs neither CVXPY nor a device.

    Raises:
        ValueError: the file is not a stored plan, is damaged, or of another version's format.
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        text = data.decode()
        return step_plan_from_json(text) if holds_step_plan(text) else plan_from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{path}` does not hold a stored plan: {error}") from error


def plan_from_json(text: str) -> Plan:
    """The plan in JSON text that `Plan.to_json` made.

    Raises:
        ValueError: the text is not JSON, or a field is missing, unknown or of the wrong type.
    """
    return Plan.of(record_from_json(text))
