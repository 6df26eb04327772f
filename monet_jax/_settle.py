"""From a traced function and a budget to a plan that the compiled program keeps.

The planner works in model bytes; only the compiler knows the real ones. So every plan that is about
to be trusted is compiled, and what the compiler says about it corrects the model for the next: down
where the program is too large, up where memory is left unused and time could be won.

    unplanned   the function as it is; if it fits, nothing is planned
    base        the plan that saves nothing; its compiled bytes place the model on the compiler's scale
    rounds      plan, compile, correct
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

import planners
from planners.graph import Graph
from planners.plan import Region

from ._analyze import Origins, analyze
from ._compile import CompiledBytes, compile_bytes
from ._costs import Roofline
from ._gradient import FlatFunction, cotangent_avals, value_and_gradient
from ._pins import Pins
from ._plan import Plan
from ._predict import predicted_temp_bytes
from ._rows import stage_rows, value_rows
from ._targets import Target
from ._trace import Traced, describe_inputs, fingerprint
from ._transform import transform

#: A plan that uses this much of its budget is not worth another compilation.
GOOD_USE = 0.97
#: Compilations of plans, at most; the unplanned program and the base come before.
MAX_ROUNDS = 6
#: Times that the model budget is corrected by the model of the assignment before a compilation.
MODEL_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked of a plan.

    Attributes:
        budget: unplanned bytes -> the total that the program may take, `reserved` included.
        reserved_bytes: the part of the budget that is for other things.
        target: what to compile for.
        planner: `(Graph, int) -> planners.Plan`.
        pins: values that must be saved or must be recomputed.
        verify: whether the planned program is compiled.
    """

    budget: Callable[[Callable[[], int]], int]
    reserved_bytes: int
    target: Target
    planner: Any
    pins: Pins
    verify: bool


class InfeasibleBudget(ValueError):
    """No plan brings the compiled program within the budget.

    Attributes:
        minimum_budget: bytes; planning with it succeeds.
    """

    def __init__(self, message: str, minimum_budget: int):
        super().__init__(message)
        self.minimum_budget = minimum_budget

    def __reduce__(self):
        return InfeasibleBudget, (str(self), self.minimum_budget)


def settle(traced: Traced, request: Request) -> Plan:
    """The fastest plan found whose compiled program keeps the budget.

    Raises:
        InfeasibleBudget: no plan does.
    """
    return _Settling(traced, request).run()


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A plan and what the compiler says of it."""

    decisions: planners.Plan
    predicted_bytes: int  # total, before it was compiled
    figures: CompiledBytes | None


class _Settling:
    """One search; attributes fill up as compilations come in."""

    def __init__(self, traced: Traced, request: Request):
        self.traced, self.request = traced, request
        self.started = time.perf_counter()
        self.trials: dict[tuple[Region, ...], _Trial] = {}
        self.shift = 0  # compiled minus modelled temporaries, of the latest trial

    def run(self) -> Plan:
        """Settle, cheapest answers first."""
        request = self.request
        unplanned = self._compile(self.traced.flat)
        budget = request.budget(lambda: unplanned.total_bytes)
        room = budget - request.reserved_bytes
        self.graph, self.origins = analyze(
            self.traced.program, self.traced.derivative, roofline_of(request.target), request.pins
        )
        if unplanned.total_bytes <= room and not request.pins:
            return self._plan(budget, unplanned, None)
        fixed = unplanned.total_bytes - unplanned.temp_bytes
        self.fixed_bytes = fixed
        self._calibrate()
        best = self._search(room - fixed)
        return self._plan(budget, unplanned, best)

    def _calibrate(self) -> None:
        base = planners.save_nothing(self.graph)
        self._try(base)

    def _search(self, room: int) -> _Trial:
        """The fastest trial whose temporaries fit in `room` bytes."""
        search = _prepared(self.request.planner, self.graph)
        low, high = 0, None  # model budgets known to fit, and to be too large
        model_budget = room - self.shift
        for _ in range(MAX_ROUNDS if self.request.verify else 1):
            decisions = self._plan_for(search, room, model_budget)
            if decisions is None or decisions.regions in self.trials:
                break
            trial = self._try(decisions)
            used = self._temp_bytes(trial)
            if used <= room:
                low = max(low, decisions.peak_bytes)
                if used >= GOOD_USE * room or decisions.seconds <= self.graph.seconds:
                    break
            else:
                high = decisions.peak_bytes if high is None else min(high, decisions.peak_bytes)
            model_budget = room - self.shift
            if high is not None and not low < model_budget < high:
                model_budget = (low + high) // 2
        return self._fastest_within(room) or self._smallest(search, room)

    def _plan_for(self, search, room: int, model_budget: int) -> planners.Plan | None:
        """The planner's plan whose predicted temporaries fill `room` as well as they can."""
        best = None
        for _ in range(MODEL_ROUNDS):
            try:
                decisions = search.fastest(model_budget)
            except planners.InfeasibleBudget as error:
                if best is not None or error.minimum_bytes >= model_budget * 2:
                    return best
                model_budget = error.minimum_bytes
                continue
            predicted = self._predicted(decisions.regions)
            if predicted <= room and (best is None or decisions.seconds < best.seconds):
                best = decisions
            if 0.98 * room <= predicted <= room or decisions.seconds <= self.graph.seconds:
                break
            model_budget += room - predicted
        return best or decisions

    def _fastest_within(self, room: int) -> _Trial | None:
        fits = [t for t in self.trials.values() if self._temp_bytes(t) <= room]
        return min(fits, key=lambda t: t.decisions.seconds, default=None)

    def _smallest(self, search, room: int) -> _Trial:
        """A trial of the planner's smallest plan, if that fits; else the budget is infeasible."""
        self._try(search.smallest())
        trial = self._fastest_within(room)
        if trial is not None:
            return trial
        least = min(self.trials.values(), key=self._temp_bytes)
        minimum = self.fixed_bytes + self._temp_bytes(least) + self.request.reserved_bytes
        raise InfeasibleBudget(self._infeasible_message(least, room, minimum), minimum)

    def _infeasible_message(self, least: _Trial, room: int, minimum: int) -> str:
        from ._rows import describe_values

        peak = planners.replay(self.graph, least.decisions).peak_values
        named = [name for name in peak if name in self.origins.values][:4]
        wanted = room + self.fixed_bytes + self.request.reserved_bytes
        return (
            f"No plan fits in {wanted:,} bytes; the smallest one found takes {minimum:,} bytes as "
            f"compiled for {self.request.target.name}, of which {self.fixed_bytes:,} are arguments "
            f"and results. At its peak these values are live: "
            f"{describe_values(self.origins, named)}. Raise `budget` to {minimum:,}, or reduce "
            "the batch."
        )

    def _try(self, decisions: planners.Plan) -> _Trial:
        """Compile a plan (once), and place the model on the compiler's scale by it."""
        if decisions.regions not in self.trials:
            predicted = self._predicted(decisions.regions)
            figures = None
            if self.request.verify or not self.trials:
                figures = self._compile(transform(self.origins, decisions))
                self.shift += figures.temp_bytes - predicted
            self.trials[decisions.regions] = _Trial(
                decisions, predicted + self.fixed_bytes, figures
            )
        return self.trials[decisions.regions]

    def _temp_bytes(self, trial: _Trial) -> int:
        if trial.figures is None:
            return trial.predicted_bytes - self.fixed_bytes
        return trial.figures.total_bytes - self.fixed_bytes

    def _predicted(self, regions: tuple[Region, ...]) -> int:
        raw = predicted_temp_bytes(self.graph, regions, self.origins.output_bytes)
        return max(0, raw + self.shift)

    def _compile(self, function: FlatFunction) -> CompiledBytes:
        return compile_bytes(*step_to_compile(self.traced, function), target=self.request.target)

    def _plan(self, budget: int, unplanned: CompiledBytes, best: _Trial | None) -> Plan:
        decisions = best.decisions if best else None
        figures = best.figures if best else unplanned
        base = planners.save_all(self.graph)
        return Plan(
            decisions=decisions,
            fingerprint=fingerprint(self.traced.program, self.traced.derivative),
            inputs=describe_inputs(self.traced.program),
            equations=len(self.traced.program.equations),
            target=self.request.target.name,
            compiler=unplanned.compiler,
            jax_version=jax.__version__,
            budget_bytes=budget,
            reserved_bytes=self.request.reserved_bytes,
            predicted_bytes=best.predicted_bytes if best else unplanned.total_bytes,
            compiled_bytes=figures.total_bytes if figures else None,
            unplanned_bytes=unplanned.total_bytes,
            base_seconds=self.graph.seconds,
            base_flops=base.flops,
            planning_seconds=time.perf_counter() - self.started,
            rounds=len(self.trials),
            values=value_rows(self.origins, self.graph, decisions),
            stages=stage_rows(self.graph, decisions),
            cheaper=self._cheaper(best),
        )

    def _cheaper(self, best: _Trial | None) -> tuple[float, int] | None:
        """The next faster plan that was compiled, which broke the budget."""
        if best is None:
            return None
        faster = [
            t
            for t in self.trials.values()
            if t.figures and t.decisions.seconds < best.decisions.seconds
        ]
        nearest = max(faster, key=lambda t: t.decisions.seconds, default=None)
        return nearest and (nearest.decisions.seconds, nearest.figures.total_bytes)


def step_to_compile(traced: Traced, function: FlatFunction) -> tuple[Callable[..., Any], tuple]:
    """The value and gradient of a traced function, run by `function`, and its arguments."""
    step = value_and_gradient(function, traced.program, traced.derivative)
    avals = map(jax.typeof, traced.constants)
    constants = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    cotangents = cotangent_avals(traced.program, traced.derivative)
    return step, (list(traced.avals), constants, cotangents)


def roofline_of(target: Target) -> Roofline:
    """The peaks of a target."""
    return Roofline(
        {
            "float32": target.matmul_flops_per_second(4),
            "bfloat16": target.matmul_flops_per_second(2),
            "float16": target.matmul_flops_per_second(2),
        },
        target.flops_per_second,
        target.bandwidth_bytes_per_second,
    )


class _Unprepared:
    """A plain planner function behind the interface of a prepared search."""

    def __init__(self, planner: Callable[[Graph, int], planners.Plan], graph: Graph):
        self.planner, self.graph = planner, graph

    def fastest(self, budget_bytes: int) -> planners.Plan:
        return self.planner(self.graph, budget_bytes)

    def smallest(self) -> planners.Plan:
        return planners.save_nothing(self.graph)


def _prepared(planner: Any, graph: Graph) -> Any:
    """A planner that shares its preparation between budgets, where it can."""
    return planner.prepare(graph) if hasattr(planner, "prepare") else _Unprepared(planner, graph)

