"""The plans of all marks of one step as a frozen record, as JSON and as text."""

import dataclasses
import json
import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from .._disk import write_whole
from .._extras import needing_extra
from ..compiler.budget import format_bytes
from ..compiler.compile import CompiledBytes
from ..planning.options import PlanOptions
from ..plans.record import PlanRecord, record_from_json
from ..report.as_policies import policies_of
from ..report.policies import Policies, joined
from ..report.text import report
from .timeline.step_timeline import StepTimeline, timeline_from_json
from .updates.layout import UpdateLayout, described, layout_from_json
from .updates.link import CopySeconds

#: Raised when the stored fields change.
FORMAT = 4
_FORMAT_FIELD = "step_format"


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """How the marked parts of a training step run, and what the compiled step takes.

    All bytes are totals on one device: argument + output + temp - alias.

    Attributes:
        budget_bytes: the limit on the step's bytes.
        unplanned: the step as it is, XLA's own rematerialization off.
        compiled_bytes: of the step as planned, by the compiler; None if it was not compiled.
        plans: hash of a marked program -> its plan, whose bytes are those of the step; in the order
            in which they were made. What has none runs as it is.
        layout: how its updates run, and which of its state lives on the host.
        copies: seconds of the copies of what lives on the host; None where nothing does.
        marks: hash of a marked program -> what its function is called, in the order of the step.
        operators, checkpoints: what the marks were traced with, as in `Terms`.
        fingerprint: of the step's program.
        donated: for each leaf of the arguments, whether it is donated.
        devices: how many devices the step is sharded over.
        jax_version: the version that traced the step.
        compilations: how many steps were compiled, the step as it is included.
        planning_seconds: wall time of planning; for a plan from the disk, when it was made.
        timeline: live bytes over the step as planned, by the model; None where it has no op.
        is_cached: whether it was read from the disk. It is not stored.
    """

    budget_bytes: int
    unplanned: CompiledBytes
    compiled_bytes: int | None
    plans: Mapping[str, PlanRecord]
    layout: UpdateLayout
    copies: CopySeconds | None
    marks: Mapping[str, str]
    operators: tuple[str, ...]
    checkpoints: str
    fingerprint: str
    donated: tuple[bool, ...]
    devices: int
    jax_version: str
    compilations: int
    planning_seconds: float
    timeline: StepTimeline | None = None
    is_cached: bool = dataclasses.field(default=False, compare=False)

    @property
    def changes_the_step(self) -> bool:
        """Whether the step runs other than as it is."""
        return bool(self.plans) or self.layout.changes_the_step

    @property
    def target(self) -> str:
        """What the step was compiled for."""
        return self.unplanned.target

    @property
    def compiler(self) -> str:
        """Which compiler gave the figures."""
        return self.unplanned.compiler

    @property
    def unplanned_bytes(self) -> int:
        """Bytes of the step as it is."""
        return self.unplanned.total_bytes

    @property
    def options(self) -> PlanOptions:
        """The options that the plan was made with, as far as they say how a step is traced."""
        terms = {"operators": self.operators, "checkpoints": self.checkpoints}
        return PlanOptions(budget=self.budget_bytes, target=self.target, **terms)

    @property
    def overhead(self) -> float:
        """Modelled seconds beyond recomputing nothing, as a share of the planned parts' own."""
        own = sum(plan.base_seconds for plan in self.plans.values())
        return sum(plan.seconds for plan in self.plans.values()) / own - 1 if own else 0.0

    def to_json(self) -> str:
        """The plan as JSON text."""
        stored = (f.name for f in dataclasses.fields(self) if f.compare)
        data: dict[str, Any] = {name: getattr(self, name) for name in stored}
        data["unplanned"] = dataclasses.asdict(self.unplanned)
        data["plans"] = {k: json.loads(x.to_json()) for k, x in self.plans.items()}
        data["layout"] = dataclasses.asdict(self.layout)
        data["copies"] = self.copies and dataclasses.asdict(self.copies)
        data["timeline"] = self.timeline and dataclasses.asdict(self.timeline)
        return json.dumps({_FORMAT_FIELD: FORMAT, **data}) + "\n"

    def policies(self) -> Policies:
        """The plans of the marked parts as `jax.checkpoint` policies of names; see `Plan`."""
        return joined(map(policies_of, self.plans.values()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON; a file that stood there is replaced whole or not at all."""
        write_whole(Path(path), self.to_json())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML file.

        It shows the memory of the whole step over time, and then the page of the planned part, or
        summaries of several. All bytes in it are those of the step.
        """
        from ..report.html import page, snippet  # jinja2 is imported only where a page is wanted
        from .timeline.chart import section

        plans = [dataclasses.replace(x, name=self.marks[k]) for k, x in self.plans.items()]
        whole = section(self.timeline) if self.timeline else ""
        whole += f"<pre>{escape(described(self.layout))}</pre>" if self.layout.on_host else ""
        if len(plans) == 1:
            text = page(plans[0]).replace("</main>", f"{whole}</main>", 1)
        else:
            head = "<!doctype html><html><meta charset=utf-8><title>Step</title><body>"
            said = f"{head}<p>{escape(_verdict(self))}{whole}"
            text = "\n<hr>\n".join([said, *map(snippet, plans)])
        write_whole(Path(path), text)

    def plot(self, axes: Any = None) -> Any:
        """Draws memory over the part of the step that was planned first, as `Plan.plot` does.

        Raises:
            ValueError: the step fits as it is: nothing is planned.
        """
        if not self.plans:
            raise ValueError(f"There is nothing to draw. {_verdict(self)}")
        plots = needing_extra("monet_jax.report.plots", "plot")
        return plots.plot_plan(next(iter(self.plans.values())), axes)

    def _repr_html_(self) -> str:
        from ..report.html import snippet

        parts = map(snippet, self.plans.values())
        return "\n".join([f"<p>{escape(_verdict(self))}</p>", *parts])

    def __repr__(self) -> str:
        return f"<StepPlan: {_verdict(self)}>"

    def __str__(self) -> str:
        parts = [_verdict(self), *(["", str(self.timeline)] if self.timeline else [])]
        parts += ["", described(self.layout)] if self.layout.on_host else []
        for mark, plan in self.plans.items():
            parts += ["", f"`{self.marks[mark]}` in this step:", report(plan)]
        return "\n".join(parts)


def step_plan_from_json(text: str) -> StepPlan:
    """The plan in JSON text that `StepPlan.to_json` made.

    Raises:
        ValueError: the text is not JSON, or is no such plan.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.pop(_FORMAT_FIELD, None) != FORMAT:
        raise ValueError(f'need a JSON object with "{_FORMAT_FIELD}": {FORMAT}; plan again')
    try:
        data["unplanned"] = CompiledBytes(**data["unplanned"])
        data["plans"] = {k: record_from_json(json.dumps(x)) for k, x in data["plans"].items()}
        data["layout"] = layout_from_json(data["layout"])
        data["copies"] = data["copies"] and CopySeconds(**data["copies"])
        data["timeline"] = data["timeline"] and timeline_from_json(data["timeline"])
        data |= {name: tuple(data[name]) for name in ("operators", "donated")}
        return StepPlan(**data)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"a field is missing, unknown or of a wrong type: {error}") from error


def holds_step_plan(text: str) -> bool:
    """Whether JSON text is of a step's plan, and not of a function's."""
    return text.startswith(f'{{"{_FORMAT_FIELD}"')


def _verdict(plan: StepPlan) -> str:
    """The lines that say whether the step keeps its budget, and at what overhead."""
    seconds = f"{'From the cache; planned' if plan.is_cached else 'Planned'} in "
    seconds += f"{plan.planning_seconds:.1f} s, {plan.compilations} compilations of the step."
    unplanned = f"{format_bytes(plan.unplanned_bytes)} unplanned"
    budget = format_bytes(plan.budget_bytes)
    if not plan.changes_the_step:
        return f"The step fits as it is in {budget}: {plan.unplanned}. {seconds}"
    if plan.compiled_bytes is None:
        return f"The step is planned for {budget}, not verified; {unplanned}. {seconds}"
    overhead = f"overhead {plan.overhead:.2%} of what is planned" if plan.plans else "no overhead"
    return (
        f"The step keeps its budget of {budget}: {format_bytes(plan.compiled_bytes)} as compiled "
        f"for {plan.target}, {unplanned}; {overhead}. {_of_updates(plan)}{seconds}"
    )


def _of_updates(plan: StepPlan) -> str:
    """What the plan does about the updates, and where the state lives."""
    if plan.copies is None:
        return "Updates run in the order of their gradients. " * plan.layout.is_ordered
    copied, step, exposed = (
        f"{1e3 * seconds:.3g} ms"
        for seconds in (
            plan.copies.copied_seconds,
            plan.copies.step_seconds,
            plan.copies.exposed_seconds,
        )
    )
    return (
        f"{len(plan.layout.on_host)} leaves of the state ({format_bytes(plan.layout.host_bytes)}) "
        f"live on the host: by the model, their copies take {copied} beside a step of {step}, and "
        f"{exposed} do not hide. "
    )
