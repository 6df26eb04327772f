"""Plans the marks of a step one after another, until the compiled step keeps its budget.

The mark that leaves most residuals is planned first, as hard as the budget asks for. Where that is
not enough, its smallest plan stays while the next one is planned. Once the step fits, the plans
that were made the smallest are relaxed again, one after another.
"""

import dataclasses
import functools
import itertools as it
import math
from collections.abc import Hashable, Mapping, Sequence

from ..candidates.calibration import calibration_plan_of
from ..candidates.compiled_plans import CompiledPlans
from ..candidates.judge import CompilationFailed
from ..compiler.budget import format_bytes
from ..compiler.compile import CompiledBytes
from ..compiler.host import HostMemory
from ..compiler.options import Options
from ..compiler.targets import Target
from ..planning.failures import InfeasibleBudget
from ..planning.judge import TracedJudge, TracedPlans
from ..planning.options import PlanOptions
from ..planning.plan_search import PlanSearch
from ..planning.progress import say
from ..planning.target_mistakes import refuse_host
from ..plans.record import PlanRecord
from ..tracing.traced import Traced
from .call import StepCall
from .compiler import StepCompiler
from .context import Recording
from .updates.layout import AS_TRACED, UpdateLayout

#: Hash of a mark's program -> its plan. Marks without one run as they are.
type MarkPlans = dict[str, PlanRecord]


@dataclasses.dataclass
class StepSearch:
    """The search for plans of a step's marks.

    Attributes:
        call: the step.
        recorded: its marks.
        result_bytes: bytes of each of its results that lies in no donated argument; None to take
            the gradients for its results.
        options: what a user wants of the plans.
        target: what to compile for.
        layout: of the step's updates, for all plans.
        compiled: what was compiled so far: plans of marks and layout -> bytes.
    """

    call: StepCall
    recorded: Recording
    result_bytes: Sequence[int] | None
    options: PlanOptions
    target: Target
    layout: UpdateLayout = AS_TRACED
    compiled: dict[Hashable, CompiledBytes] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def compiler_options(self) -> Options:
        """The options of all its compilations."""
        return Options(self.target)

    def with_layout(self, layout: UpdateLayout) -> "StepSearch":
        """The search with another layout of the updates; what is compiled, is compiled for both."""
        return dataclasses.replace(self, layout=layout)

    def unplanned(self) -> CompiledBytes:
        """The step as it is, compiled."""
        return self._compiler("", {}).compiled_as_it_is()

    def small_bytes(self) -> int | None:
        """Bytes where one mark saves little; None without marks, or where the compiler fails."""
        if not (marks := self._by_residuals()):
            return None
        judge = self.judge(marks[0], {})
        try:
            return judge.planned_bytes(calibration_plan_of(judge.graph)).total_bytes
        except CompilationFailed:
            return None

    def smallest_bytes(self) -> int:
        """The least bytes that are found for the step."""
        try:
            return [*self.plans(1).values()][-1].budget_bytes
        except InfeasibleBudget as error:
            return error.minimum_budget

    def plans(self, budget_bytes: int) -> MarkPlans:
        """Plans with which the compiled step keeps a budget; the bytes of the last are the step's.

        Raises:
            InfeasibleBudget: none are found; `minimum_budget` is the least that was.
        """
        found: MarkPlans = {}
        infeasible = []
        for mark in self._by_residuals():
            search = self.search_for(mark, found)
            try:
                made = search.plan(lambda _: budget_bytes)
            except InfeasibleBudget as error:
                infeasible.append(error)
                found |= self._smallest(mark, search, error.minimum_budget)
            else:
                return self._relaxed({**found, mark: made}, [*found], budget_bytes)
        raise self._least(infeasible)

    def _least(self, infeasible: Sequence[InfeasibleBudget]) -> InfeasibleBudget:
        """The error that names the least bytes; plans may take more than the step as it is."""
        least = min(infeasible, key=lambda error: error.minimum_budget)
        unplanned = self.unplanned().total_bytes
        if least.minimum_budget < unplanned:
            return least
        return InfeasibleBudget(
            f"No plan takes less than the step as it is: {format_bytes(unplanned)} as compiled for "
            f"{self.target.name}. What is marked is not what takes its memory: mark all that is "
            f"differentiated, raise `budget` to {unplanned:_} bytes, or reduce the batch.",
            unplanned,
        )

    def _smallest(self, mark: str, search: PlanSearch, least: int) -> MarkPlans:
        """The smallest plan of a mark; none where the step takes less without one."""
        is_less = least < search.compiled_plans.unplanned.total_bytes
        return {mark: search.plan(lambda _: least)} if is_less else {}

    def _relaxed(self, found: MarkPlans, marks: Sequence[str], budget_bytes: int) -> MarkPlans:
        """The plans, those of some marks made again with the bytes that are left to them."""
        for mark in marks:
            others = {k: x for k, x in found.items() if k != mark}
            found = {**others, mark: self.search_for(mark, others).plan(lambda _: budget_bytes)}
        return found

    def _by_residuals(self) -> list[str]:
        """The marks, that with most bytes of residuals first."""
        if len(self.recorded.found) < 2:
            return [*self.recorded.found]

        def residual_bytes(mark: str) -> int:
            graph = self.judge(mark, {}).graph
            return graph.kept_bytes(0, len(graph.stages) - 1)

        return sorted(self.recorded.found, key=residual_bytes, reverse=True)

    def search_for(self, mark: str, others: Mapping[str, PlanRecord]) -> PlanSearch:
        """The search for plans of one mark beside those of others."""
        known = self.judge(mark, others), self.options.cap(announce=say)
        plans: TracedPlans = CompiledPlans(*known, bool(self.options.verify))
        return PlanSearch(plans, self.options.region_planner, renews_cap=False)

    def judge(self, mark: str, others: Mapping[str, PlanRecord]) -> TracedJudge:
        """The judge of one mark's plans beside those of others."""
        return TracedJudge(
            self.recorded.found[mark],
            self.target,
            self.options.pinned,
            compiler=self._compiler(mark, others),
            results=_parts_of(self.result_bytes, self.recorded.found[mark]),
            host=self._host(mark, others),
        )

    def _host(self, mark: str, others: Mapping[str, PlanRecord]) -> HostMemory | None:
        """The host's memory that is left beside the plans of other marks, and the step's state."""
        host = self.options.host_memory(self.target)
        refuse_host(self.recorded.found[mark], host, self.recorded.tracer.devices)
        plans = (x.decisions for x in others.values() if x.decisions is not None)
        taken = self.layout.host_bytes + sum(x.host_bytes for x in plans)
        left = host and max(host.budget_bytes - taken, 0)
        return host and dataclasses.replace(host, budget_bytes=left)

    def _compiler(self, mark: str, others: Mapping[str, PlanRecord]) -> StepCompiler:
        return StepCompiler(
            self.target,
            self.compiler_options,
            costs=self.options.costs,
            announce=say,
            call=self.call,
            tracer=self.recorded.tracer,
            mark=mark,
            others=others,
            known=tuple(self.recorded.found),
            layout=self.layout,
            memo=self.compiled,
        )


def _parts_of(results: Sequence[int] | None, traced: Traced) -> Sequence[int] | None:
    """The results of a step; in a `shard_map`, of those that are gradients one device's parts.

    Over how many devices it spreads a result, is found by the sizes of the gradients.
    """
    sizes = [*traced.recorded.axes.sizes.values()]
    if results is None or not sizes:
        return results
    chosen = (some for n in range(len(sizes) + 1) for some in it.combinations(sizes, n))
    parts = sorted(set(map(math.prod, chosen)))
    own = {traced.program.nbytes(i) for i in traced.derivative.inputs}
    return [next((x // n for n in parts if x // n in own), x // parts[-1]) for x in results]


def faster_plans(search: StepSearch, budget_bytes: int) -> MarkPlans:
    """Plans of marks that are clearly faster, for a budget that the step keeps as it is.

    These are marks with loops: for others nothing is priced, since no plan would be faster.
    """
    found: MarkPlans = {}
    for mark in () if search.options.pinned else search.recorded.found:
        of_mark = search.search_for(mark, found)
        if of_mark.compiled_plans.judge.staged.loops:
            made = of_mark.plan(lambda _: budget_bytes)
            found |= {mark: made} if made.decisions is not None else {}
    return found
