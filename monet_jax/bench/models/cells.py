"""The programs of one model on one target, each with its row: plain, the baselines, and plans."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import planners

from ... import zoo
from ...analyzer.pins import make_pins
from ...compiler.compile import CompiledBytes
from ...compiler.targets import Target
from ...planning.failures import InfeasibleBudget
from ...planning.judge import compiled_plans_of
from ...planning.options import PlanOptions
from ...planning.plan_search import PlanSearch
from ...plans.record import PlanRecord
from ...tools.baselines import costs_of, work_of_step
from ...transformer.apply import as_planned
from .capped import capped_fields, compile_capped
from .fields import cost_fields, estimate_fields, plan_fields, work_fields
from .programs import baselines, trace_loss
from .rows import Row
from .xla_remat import can_cap

#: Shares of plain's temporaries that are budgets; of a model with loops, which can save more.
SHARES, LOOP_SHARES = (0.80, 0.60, 0.45, 0.35), (0.80, 0.60, 0.45, 0.30, 0.20)
#: A plan is free where its FLOPs are within this of plain's.
FREE = 1.01
#: Plans made to find the least memory that is free.
FREE_STEPS = 5
#: This share of the smallest budget must be infeasible.
BELOW_MINIMUM = 0.97
#: Groups of budgets that XLA's own rematerialization is held to as well.
CAPPED = ("minimum", "baseline", "temps")


@dataclasses.dataclass(frozen=True)
class Program:
    """A row, and the program behind it.

    Attributes:
      row: its costs.
      key: equal for equal programs of a model; None where there is no program.
      traced: the loss, as `Traced`.
      function: the `FlatFunction` that runs it.
      plan: the record of its plan, if it is one of ours.
    """

    row: Row
    key: Any = None
    traced: Any = None
    function: Any = None
    plan: PlanRecord | None = None


class Cell:
    """One model on one target. Programs come one by one, so that no finished one is lost."""

    def __init__(
        self, model: str, scale: Any, target: Target, dtype: str, batch: int | None = None
    ):
        self.model, self.target, self.dtype = model, target, dtype
        self.build = functools.partial(zoo.build, model, scale=scale, dtype=dtype, batch=batch)
        problem = self.build()
        self.args = problem.args
        self.traced = trace_loss(problem.loss, problem.args, target)
        self.compiled_plans = compiled_plans_of(
            self.traced, target, make_pins(None), cap=PlanOptions().cap()
        )
        self.plan_search = PlanSearch(self.compiled_plans, planners.Stages())
        self.rows: list[Row] = []
        self.checked: set[int] = set()

    def programs(self, budgets: frozenset[str]) -> Iterator[Program]:
        """Plain, the baselines, and ours at each of the chosen budgets, with XLA's beside it."""
        for made in self._all(budgets):
            self.rows.append(made.row)
            yield made
            if made.row.budget in CAPPED and can_cap(self.target):
                capped = self._capped(made.row)
                self.rows.append(capped.row)
                yield capped

    def _all(self, budgets: frozenset[str]) -> Iterator[Program]:
        yield self.plain()
        yield from self.baselines()
        if "minimum" in budgets:
            yield from self._ours("minimum", "ours @ least", self._fixed_bytes + 1)
        if "baselines" in budgets:
            for baseline in [r for r in self.rows if r.kind == "baseline" and r.status == "ok"]:
                name = f"ours @ {baseline.program}"
                yield from self._ours("baseline", name, baseline.total_bytes, baseline.program)
        if "temps" in budgets:
            for share in LOOP_SHARES if self.compiled_plans.judge.staged.loops else SHARES:
                yield from self._ours("temps", f"ours @ {share:.0%}", self.share_bytes(share))
        if "free" in budgets:
            yield from _free_plans(self)

    @property
    def _fixed_bytes(self) -> int:
        return self.compiled_plans.fixed_bytes

    def share_bytes(self, share: float) -> int:
        """The budget that leaves a share of plain's temporaries."""
        return self._fixed_bytes + int(share * self.compiled_plans.unplanned.temp_bytes)

    def plain(self) -> Program:
        """The loss as it is; it comes first, for others are compared with it."""
        work = work_of_step(self.traced, self.traced.flat, self.target)
        self.plain_work = work
        row = self._row("plain", "plain", **cost_fields(self.compiled_plans.unplanned, work, work))
        return Program(row, "plain", self.traced, self.traced.flat)

    def baselines(self, places: Sequence[str] = ("loss", "blocks")) -> Iterator[Program]:
        """With `jax.checkpoint` round the loss, and round each of its blocks."""
        for name, make in baselines(self.build):
            if name.partition(":")[0] in places:
                yield self._baseline(name, make)

    def _baseline(self, name: str, make: Callable[[], Callable[..., Any]]) -> Program:
        try:
            traced = trace_loss(make(), self.args, self.target)
            costs = costs_of(traced, self.target)
        except Exception as error:  # one baseline that fails must not end the comparison
            return Program(self._failed(name, "baseline", error))
        row = self._row(name, "baseline", **cost_fields(costs.bytes, costs.work, self.plain_work))
        return Program(row, name, traced, traced.flat)

    def _capped(self, ours: Row) -> Program:
        """The plain program, left to XLA's own rematerialization, at the budget of a plan."""
        name, nbytes = ours.program.replace("ours", "XLA", 1), ours.budget_bytes
        try:
            unplanned = self.compiled_plans.unplanned
            figures = compile_capped(self.traced, self.target, nbytes, unplanned)
            return Program(self._row(name, "xla", **capped_fields(figures, nbytes, self.rows[0])))
        except Exception as error:  # one program that fails must not end the comparison
            return Program(self._failed(name, "xla", error, budget_bytes=nbytes))

    def _ours(
        self, budget: str, name: str, nbytes: int, baseline: str | None = None
    ) -> Iterator[Program]:
        """A plan at a budget; an infeasible one is followed by a check of its minimum."""
        made = self.plan(budget, name, nbytes, baseline)
        yield made
        minimum = made.row.minimum_budget
        if made.row.status != "infeasible" or minimum in self.checked:
            return
        self.checked.add(minimum)
        yield self.plan("minimum", f"ours @ minimum {minimum:,}", minimum)
        below = int(BELOW_MINIMUM * minimum)
        yield self.plan("below", f"ours @ 97% of minimum {minimum:,}", below)

    def plan(self, budget: str, name: str, nbytes: int, baseline: str | None = None) -> Program:
        """Ours at a budget in bytes, of a kind of budget (`Row.budget`)."""
        request = {"budget": budget, "baseline": baseline, "budget_bytes": nbytes}
        started = time.perf_counter()
        try:
            plan = self.plan_search.plan(lambda unplanned: nbytes)
            return self._planned(name, plan, request)
        except InfeasibleBudget as error:
            row = self._row(
                name,
                "ours",
                status="infeasible",
                message=str(error),
                minimum_budget=error.minimum_budget,
                planning_seconds=time.perf_counter() - started,
                **request,
            )
            return Program(row)
        except Exception as error:  # one budget that fails must not end the comparison
            return Program(self._failed(name, "ours", error, **request))

    def _planned(self, name: str, plan: PlanRecord, request: dict[str, Any]) -> Program:
        traced = self.traced
        if plan.decisions is None:
            function, key, work = traced.flat, "plain", self.plain_work
        else:
            traced, function = as_planned(self.traced, plan)
            key = plan.operators, plan.chunks, plan.decisions.regions
            work = work_of_step(traced, function, self.target)
        row = self._row(
            name,
            "ours",
            **request,
            **work_fields(work, self.plain_work),
            **estimate_fields(_figures_of(plan, self), work),
            **plan_fields(plan, self.compiled_plans),
        )
        return Program(row, key, traced, function, plan)

    def _row(self, program: str, kind: str, **fields: Any) -> Row:
        cell = {"model": self.model, "target": self.target.name, "dtype": self.dtype}
        return Row(program=program, kind=kind, **cell, **fields)

    def _failed(self, program: str, kind: str, error: Exception, **fields: Any) -> Row:
        message = f"{type(error).__name__}: {error}"
        return self._row(program, kind, status="error", message=message, **fields)


def _free_plans(cell: Cell) -> Iterator[Program]:
    """Plans by bisection towards the least temporaries at plain's FLOPs."""
    plain_bytes, fixed_bytes = cell.compiled_plans.unplanned.temp_bytes, cell.share_bytes(0.0)
    for _ in range(FREE_STEPS):
        ours = [r for r in cell.rows if r.kind == "ours" and r.budget_bytes]
        free = [r.temp_bytes for r in ours if _is_free(r)]
        high = min(free, default=plain_bytes)
        costly = [r.budget_bytes - fixed_bytes for r in ours if not _is_free(r)]
        low = max((nbytes for nbytes in costly if nbytes < high), default=0)
        share = (low + high) / 2 / plain_bytes
        yield cell.plan("free", f"ours @ {share:.1%}, for free?", cell.share_bytes(share))


def _figures_of(plan: PlanRecord, cell: Cell) -> CompiledBytes | None:
    """What the compiler said of the program of a plan of a cell."""
    if plan.decisions is None:
        return cell.compiled_plans.unplanned
    made = (x for plans in cell.plan_search.programs.all_plans for x in plans)
    regions = plan.decisions.regions
    return next((x.figures for x in made if x.decisions.regions == regions), None)


def _is_free(row: Row) -> bool:
    return row.status == "ok" and row.flops_ratio is not None and row.flops_ratio <= FREE
