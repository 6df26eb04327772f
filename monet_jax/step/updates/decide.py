"""Decides how the updates of a step run and which of its state lives on the host, for a budget.

Cheapest first: updates in order, which costs nothing; then the least state on the host that keeps
the budget, or recomputation, whichever takes fewer seconds by the model; then both.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from ...compiler.backend import backend_of
from ...compiler.compile import CompilerFailed
from ...ir.program import flatten
from ...planning.failures import InfeasibleBudget
from ...planning.progress import say
from ...seconds.attained import modelled
from ..context import Recording
from ..share import MarkPlans, StepSearch
from .layout import HostLeaf, UpdateLayout, within_host
from .link import CopySeconds, Gradients, copy_seconds, gradients_of

#: Programs that are compiled in search of the least state on the host, all of it included.
COMPILATIONS = 4
#: Of the step's seconds: copies that take less are worth no search for plans without them. That
#: search compiles up to six programs; a hundredth is what a clock cannot tell on most machines.
SLIGHT = 0.01


@dataclasses.dataclass(frozen=True)
class LaidOut:
    """A step within its budget.

    Attributes:
        search: of its plans, with the layout of its updates.
        plans: of its marks.
        compiled_bytes: of the step; None where it was not compiled.
    """

    search: StepSearch
    plans: MarkPlans
    compiled_bytes: int | None

    @property
    def recomputed_seconds(self) -> float:
        """Seconds beyond recomputing nothing."""
        return sum(plan.seconds - plan.base_seconds for plan in self.plans.values())


@dataclasses.dataclass(frozen=True)
class Decision:
    """The search for a layout of a step's updates.

    Attributes:
        budget_bytes: of the step.
        search: of its plans, its updates as traced.
        updates: how many it has.
        leaves: what may live on the host, in the order of preference.
        copies: leaves on the host -> the seconds of their copies.
        may_loop: whether updates may run in loops over rows. Of a sharded array, a row may lie on
            another device.
    """

    budget_bytes: int
    search: StepSearch
    updates: int
    leaves: tuple[HostLeaf, ...]
    copies: Callable[[UpdateLayout], CopySeconds]
    may_loop: bool = True

    def made(self, refuse: Callable[[StepSearch], None]) -> LaidOut:
        """The step within its budget.

        Arguments:
            refuse: called with the search before marks are planned; it raises where that is vain.

        Raises:
            InfeasibleBudget: nothing that was found keeps the budget.
        """
        ordered = self._ordered()
        if found := self._as_it_is(ordered):
            return found
        moved = self._with_state_on_host()
        if moved and self.copies(moved.search.layout).exposed_share <= SLIGHT:
            return moved
        try:
            refuse(ordered)
            recomputed = self._with_marks(ordered)
        except InfeasibleBudget:
            if not self.leaves:
                raise
            return moved or self._with_both(refuse)
        if not self.leaves or recomputed.recomputed_seconds <= self._exposed(moved):
            return recomputed
        return moved or self._cheaper(recomputed, refuse)

    def _ordered(self) -> StepSearch:
        """The search, with the updates in order where a plan takes fewer bytes with them."""
        if self.updates < 2 or self.search.target.platform == "cpu":
            return self.search
        say("comparing orders of the updates")
        ordered = self.search.with_layout(UpdateLayout(is_ordered=True))
        return min((self.search, ordered), key=_representative_bytes)

    def _as_it_is(self, search: StepSearch) -> LaidOut | None:
        """The step with no plan for its marks, if it fits."""
        nbytes = search.unplanned().total_bytes
        return LaidOut(search, {}, nbytes) if nbytes <= self.budget_bytes else None

    def _with_marks(self, search: StepSearch) -> LaidOut:
        plans = search.plans(self.budget_bytes)
        return LaidOut(search, plans, [*plans.values()][-1].compiled_bytes)

    def _with_state_on_host(self) -> LaidOut | None:
        """The step with the least state on the host that keeps the budget; None where none does."""
        if not self.leaves:
            return None
        say("moving the optimizer's state to the host")
        found = self._least_moved(in_rows=False)
        return found or (self._least_moved(in_rows=True) if self.may_loop else None)

    def _least_moved(self, in_rows: bool) -> LaidOut | None:
        """The same, whole leaves on the device at once or some rows of each."""
        least, kept = 0, len(self.leaves)
        most = self._if_it_compiles(self._moving(kept, in_rows))
        for _ in range(COMPILATIONS - 1):
            if most is None or (count := self._next(most, least, kept)) == kept:
                break
            found = self._if_it_compiles(self._moving(count, in_rows))
            least, kept = (least, count) if found else (count, kept)
            most = found or most
        return most

    def _if_it_compiles(self, search: StepSearch) -> LaidOut | None:
        """The step with no plan for its marks, if the compiler takes it and it fits."""
        try:
            return self._as_it_is(search)
        except CompilerFailed:
            return None

    def _next(self, most: LaidOut, least: int, kept: int) -> int:
        """How many leaves to move next: the fewest that suffice where each frees its own bytes."""
        spare = self.budget_bytes - (most.compiled_bytes or 0)
        count = kept
        while count - 1 > least and self.leaves[count - 1].nbytes <= spare:
            count -= 1
            spare -= self.leaves[count].nbytes
        return count

    def _with_both(self, refuse: Callable[[StepSearch], None]) -> LaidOut:
        """The step with all that can be on the host, and its marks planned."""
        search = self._moving(len(self.leaves), in_rows=self.may_loop)
        refuse(search)
        return self._with_marks(search)

    def _cheaper(self, found: LaidOut, refuse: Callable[[StepSearch], None]) -> LaidOut:
        """The step as it was found, or with all on the host, whichever takes fewer seconds."""
        other = self._with_both(refuse)
        seconds = self._exposed(other) + other.recomputed_seconds
        return other if seconds < found.recomputed_seconds else found

    def _moving(self, count: int, in_rows: bool) -> StepSearch:
        return self.search.with_layout(UpdateLayout(True, self.leaves[:count], in_rows))

    def _exposed(self, found: LaidOut | None) -> float:
        """Seconds of copies that do not hide, of all the state where none is given."""
        layout = found.search.layout if found else UpdateLayout(True, self.leaves, self.may_loop)
        return self.copies(layout).exposed_seconds


def decision_of(
    budget_bytes: int, search: StepSearch, updates: int, movable: Sequence[HostLeaf]
) -> Decision:
    """The search for a layout, with what the user allows on the host.

    Arguments:
        budget_bytes: of the step.
        search: of its plans, its updates as traced.
        updates: how many it has.
        movable: what can live on the host.
    """
    memory = search.options.host_memory(search.target)
    memory = memory if memory and memory.allows("states") else None

    @functools.cache
    def gradients() -> Gradients:
        traced = search.call.traced(Recording(search.recorded.tracer))
        program = flatten(traced.jaxpr, inline_checkpoints=True)
        return gradients_of(program, modelled(search.target), backend_of(search.target.name))

    def copies(layout: UpdateLayout) -> CopySeconds:
        assert memory is not None
        return copy_seconds(layout, gradients(), memory)

    leaves = within_host(movable, memory) if memory else ()
    may_loop = search.recorded.tracer.devices == 1
    return Decision(budget_bytes, search, updates, leaves, copies, may_loop)


def _representative_bytes(search: StepSearch) -> int:
    """Bytes of the step with a small plan, or as it is where nothing is marked."""
    return search.small_bytes() or search.unplanned().total_bytes
