"""Compiles whole steps as the judge of the plans of one of their marks."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..compiler.compile import CompiledBytes
from ..planning.judge import Compiler
from ..planning.step import PlannedProgram
from ..plans.record import PlanRecord
from ..tracing.trace import without_operators
from ..tracing.traced import Terms, Traced
from ..transformer.apply import outputs_as_planned
from .call import StepCall
from .context import Applying, Emission, Tracer
from .updates.layout import UpdateLayout


def emission_of(plan: PlanRecord) -> Emission:
    """What runs a mark as a plan says."""
    return lambda traced, inputs: outputs_as_planned(traced, plan, inputs)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A plan that is to be judged, of a mark's program or of it without operators."""

    planned: PlannedProgram
    terms: Terms
    target: str

    def __call__(self, traced: Traced, inputs: Sequence[Any]) -> Sequence[Any]:
        """A trace of the mark, run as planned."""
        is_same = traced.terms == self.terms
        rewritten = traced if is_same else without_operators(traced, self.target)
        return self.planned.function(rewritten)(inputs, rewritten.constants)


@dataclasses.dataclass
class StepCompiler(Compiler):
    """The compiler of a step, as one of its marks is planned.

    Attributes:
        call: the step.
        tracer: of its marks.
        mark: hash of the program that is planned.
        others: hash of another mark's program -> its plan.
        known: hashes of all marks' programs.
        layout: of the step's updates.
        memo: what was compiled so far, for whichever mark and layout.
    """

    call: StepCall = dataclasses.field(kw_only=True)
    tracer: Tracer = dataclasses.field(kw_only=True)
    mark: str = dataclasses.field(kw_only=True)
    others: Mapping[str, PlanRecord] = dataclasses.field(kw_only=True)
    known: Sequence[str] = dataclasses.field(kw_only=True)
    layout: UpdateLayout = dataclasses.field(kw_only=True)
    memo: dict[Hashable, CompiledBytes] = dataclasses.field(kw_only=True)

    def compiled_as_it_is(self) -> CompiledBytes:
        """Compile the step with no plan for the mark."""
        return self._of({}, self._key(None, None))

    def begin(self, traced: Traced, planned: PlannedProgram) -> None:
        """Steps are compiled one after the other."""

    def _compiled(self, traced: Traced, planned: PlannedProgram | None) -> CompiledBytes:
        """Compile the step with a plan for the mark."""
        if planned is None:
            return self.compiled_as_it_is()
        candidate = Candidate(planned, traced.terms, self.target.name)
        return self._of({self.mark: candidate}, self._key(traced, planned))

    def _of(self, candidate: Mapping[str, Emission], key: Hashable) -> CompiledBytes:
        if key not in self.memo:
            others: dict[str, Emission] = {k: emission_of(x) for k, x in self.others.items()}
            emissions = {**others, **candidate}
            step = Applying(self.tracer, emissions, self.known, self.layout)
            self.memo[key] = self.call.compiled(step, self.target, self.options)
        return self.memo[key]

    def _key(self, traced: Traced | None, planned: PlannedProgram | None) -> Hashable:
        """Equal for steps whose marks run as the same plans say."""
        found: dict[str, Hashable] = {
            mark: (x.operators, x.decisions.regions, x.chunks)
            for mark, x in self.others.items()
            if x.decisions is not None
        }
        if traced is not None and planned is not None:
            found[self.mark] = traced.terms.operators, planned.decisions.regions, planned.chunks
        return str(self.options), self.layout, tuple(sorted(found.items()))
