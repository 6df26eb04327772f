"""What does each number of bytes cost in seconds: plans over a range of budgets, and their rivals?

All programs go through the same compiler, the same counter of FLOPs and the same roofline.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import planners

from ._extras import needing_extra
from ._marked import name_of
from ._mistakes import refuse
from ._pins import make_pins
from ._plan import write_whole
from ._progress import progress
from ._rivals import POLICIES, Costs, costs_of, round_the_loss, work_of_step
from ._settle import InfeasibleBudget, Settling
from ._targets import Target, compiler_version, resolve_target
from ._trace import Traced, as_traced_for, trace_for
from ._transform import as_planned
from ._trials import Trials

#: Raised when the stored fields change.
FORMAT = 1
#: Files that a sweep can be written to, beside ".json".
PICTURES = (".svg", ".png", ".pdf")


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """A program of the step.

    Attributes:
        program: "plain", "jax.checkpoint: dots", ..., or "planned".
        kind: "plain", "baseline" or "planned".
        budget_bytes: what a planned one may take; None for others.
        total_bytes: as compiled, XLA's own rematerialization off; None where it failed.
        temp_bytes: the temporaries of it.
        seconds: of a step, by a roofline of the target.
        flops: of products and convolutions, of a step.
        error: why it failed; "" where it did not.
    """

    program: str
    kind: str
    budget_bytes: int | None = None
    total_bytes: int | None = None
    temp_bytes: int | None = None
    seconds: float | None = None
    flops: int | None = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Programs of one step: what each takes in bytes and in seconds.

    Attributes:
        points: the plain program, the baselines, and plans with falling budgets.
        target: what they were compiled for.
        compiler: by which compiler.
        jax_version: that traced them.
    """

    points: tuple[SweepPoint, ...]
    target: str
    compiler: str
    jax_version: str

    def of_kind(self, kind: str) -> tuple[SweepPoint, ...]:
        """The programs of one kind that did not fail."""
        return tuple(p for p in self.points if p.kind == kind and not p.error)

    def plot(self, axes: Any = None, *, against: str = "seconds") -> Any:
        """Draws the curve of bytes against seconds; needs the extra `plot`.

        Arguments:
            axes: matplotlib's; None makes new ones.
            against: "seconds" or "flops".

        Returns:
            The matplotlib `Axes`.
        """
        return needing_extra("monet_jax.report.plots", "plot").plot_sweep(self, axes, against)

    def to_json(self) -> str:
        """The sweep as JSON text."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sweep: as JSON, or as a picture, by the ending of the path.

        Raises:
            ValueError: the path ends neither in ".json" nor in one of `PICTURES`.
        """
        path = check_path(path)
        if path.suffix == ".json":
            write_whole(path, self.to_json())
        else:
            needing_extra("monet_jax.report.plots", "plot").save_sweep(self, path)

    def __str__(self) -> str:
        from .report.answers import describe_sweep  # rich is imported only where a text is wanted

        return describe_sweep(self)


def check_path(path: str | os.PathLike[str]) -> Path:
    """A path that `Sweep.save` can write to, as far as its ending goes.

    Raises:
        ValueError: it cannot.
    """
    path = Path(path)
    if path.suffix not in (".json", *PICTURES):
        raise ValueError(f"`{path}` must end in one of .json, {', '.join(PICTURES)}")
    return path


def load_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Read a sweep that `Sweep.save` wrote as JSON.

    Raises:
        ValueError: the file holds something else.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f'need a JSON object with "format": {FORMAT}; sweep again')
        points = tuple(SweepPoint(**point) for point in data.pop("points"))
        return Sweep(points, **data)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"`{path}` does not hold a stored sweep: {error}") from error


def sweep(
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
    points: int = 8,
    baselines: Mapping[str, Callable[..., Any]] | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    time_limit: float = 10.0,
) -> Sweep:
    """Plans of a function over a range of budgets, beside `jax.checkpoint` placed by hand.

    Budgets lie at equal distances from what the function takes unplanned down to the smallest one
    that was found to work. The baselines are one `jax.checkpoint` round the whole function, under
    its usual policies, and those that are given.

    Arguments:
        fun: the function.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s. Nothing is run.
        kwargs: its keyword arguments.
        target: what to compile for, as in `remat`.
        points: how many budgets, 2 or more.
        baselines: name -> another function of the same arguments: the model with `jax.checkpoint`
            round each block, say.
        argnums, static_argnums, static_argnames, operators, checkpoints, time_limit: as in `remat`.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        TargetUnavailable: the target's compiler is not installed.
    """
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ValueError(f"`points` must be 2 or more; got {points!r}.")
    resolved = resolve_target(target)
    options: dict[str, Any] = {
        "argnums": argnums,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "operators": operators,
        "checkpoints": checkpoints,
    }

    def traced(one: Callable[..., Any]) -> Traced:
        return trace_for(resolved, one, args, kwargs, **options)

    rivals = {f"jax.checkpoint: {p}": round_the_loss(fun, p) for p in POLICIES} | dict(
        baselines or {}
    )
    found: list[SweepPoint] = []
    with progress() as say:
        say("compiling the plain program")
        plain = traced(fun)
        refuse(plain, name_of(fun))
        trials = Trials(plain, resolved, make_pins(None))
        found.append(_plain(trials))
        for name, rival in rivals.items():
            say(f"compiling {name}")
            found.append(_baseline(name, lambda rival=rival: traced(rival), resolved))
        for point in _planned(trials, planners.Stages(time_limit=time_limit), points, say):
            found.append(point)
    return Sweep(tuple(found), resolved.name, compiler_version(resolved), jax.__version__)


def _plain(trials: Trials) -> SweepPoint:
    work = work_of_step(trials.traced, trials.traced.flat, trials.target)
    return _point("plain", "plain", Costs(trials.unplanned, work))


def _baseline(name: str, traced: Callable[[], Traced], target: Target) -> SweepPoint:
    try:
        costs = costs_of(traced(), target)
    except Exception as error:  # one rival that fails must not end the comparison
        return SweepPoint(name, "baseline", error=f"{type(error).__name__}: {error}")
    return _point(name, "baseline", costs)


def _point(program: str, kind: str, costs: Costs) -> SweepPoint:
    figures, work = costs.bytes, costs.work
    sizes = figures.total_bytes, figures.temp_bytes
    return SweepPoint(program, kind, None, *sizes, work.seconds, work.flops)


def _planned(
    trials: Trials, planner: Any, points: int, say: Callable[[str], None]
) -> Iterator[SweepPoint]:
    """Plans from the unplanned bytes down to the smallest budget that works."""
    settling = Settling(trials, planner)
    most = trials.unplanned.total_bytes
    say("looking for the smallest budget")
    least = _least(settling, trials.fixed_bytes + 1)
    for n, budget in enumerate(np.linspace(most, least, points).astype(int).tolist()):
        say(f"planning for budget {n + 1} of {points}")
        try:
            plan = settling.plan(lambda _, budget=budget: budget)
        except InfeasibleBudget as error:  # found while looking for the smallest, lost since
            yield SweepPoint("planned", "planned", budget, error=str(error))
            continue
        traced = as_traced_for(trials.traced, plan)
        function = as_planned(traced, plan) if plan.decisions else traced.flat
        work = work_of_step(traced, function, trials.target)
        assert plan.compiled_bytes is not None  # these trials verify every plan
        temp = plan.compiled_bytes - trials.fixed_bytes
        costs = (plan.compiled_bytes, temp, work.seconds, work.flops)
        yield SweepPoint("planned", "planned", budget, *costs)


def _least(settling: Settling, impossible: int) -> int:
    """The smallest budget that was found to work."""
    try:
        plan = settling.plan(lambda _: impossible)
    except InfeasibleBudget as error:
        return error.minimum_budget
    return plan.compiled_bytes or impossible  # nothing but arguments and results
