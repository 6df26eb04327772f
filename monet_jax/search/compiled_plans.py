"""The bytes of each plan of one function: predicted by a model, and as compiled.

Two programs place the model on the compiler's scale. One is the unplanned program, or, where an
equation was rewritten or inlined, the plan that saves all. The other is the calibration plan, which
saves nothing except in the last stage.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.regions.simple_plans import certified, left_alone, minimal_region

from ..analyzer.analyze import analyze
from ..analyzer.inverse import InverseData
from ..analyzer.pins import Pins
from ..compiler.backend import backend_of
from ..compiler.buffer_model import Scale, predicted_temp_bytes, with_alone_bytes
from ..compiler.compile import CompiledBytes, compile_bytes, devices_of
from ..compiler.options import Options, options_of
from ..compiler.targets import Target
from ..ir.gradient import FlatFunction
from ..operators import is_lossy_code
from ..tracing.passes.nested_scans import chunking
from ..tracing.staged import StagedProgram
from ..tracing.trace import Traced, without_operators
from ..transformer.transform import transform
from .gradient_error import ErrorBound, with_errors
from .step import roofline_of, step_to_compile

_Regions = tuple[Region, ...]


@dataclasses.dataclass(frozen=True)
class CompiledPlan:
    """A plan and its bytes.

    Attributes:
        decisions: the plan.
        predicted_temp_bytes: by the model and the programs that place it.
        figures: as compiled; None where plans are not compiled.
    """

    decisions: planners.Plan
    predicted_temp_bytes: int
    figures: CompiledBytes | None


class OtherOptions(Exception):
    """A program failed under the options of earlier ones, whose bytes do not compare with it."""


class CompiledPlans:
    """The plans of one traced function that were tried, each compiled once.

    Arguments:
        traced: the function.
        target: what to compile for.
        pins: values that must be saved or must be recomputed.
        verify: whether planned programs are compiled; if not, only those that place the model are.
        bound: of the gradient errors of lossy codes.
        chunks: lengths of nested scans, as in `Plan.chunks`.
        options: of the compilations; None for those of the function's programs.
    """

    def __init__(
        self,
        traced: Traced,
        target: Target,
        pins: Pins,
        verify: bool = True,
        bound: ErrorBound | None = None,
        chunks: tuple[int, ...] | None = None,
        options: Options | None = None,
    ):
        self.traced, self.target, self.pins, self.verify = traced, target, pins, verify
        self.bound, self.chunks = bound, chunks
        self._options = options or options_of(target, traced.program_hash)
        self._conditions: str | None = None
        self._made: dict[_Regions, CompiledPlan] = {}

    def __iter__(self) -> Iterator[CompiledPlan]:
        return iter(self._made.values())

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, decisions: planners.Plan) -> bool:
        return decisions.regions in self._made

    def within(self, bound: ErrorBound) -> "CompiledPlans":
        """Plans of the same function within a bound of errors."""
        return self._sharing(bound=bound)

    def as_nested_scans(self) -> "tuple[CompiledPlans, int] | None":
        """Plans of the function with nested scans, and the bytes that these may save.

        None where nothing is saved; where pins name values, for nested scans have other values; and
        where errors are limited, for they are known for the loops as they are.
        """
        if self.pins or self.bound is not None:
            return None
        found = chunking(self.traced.program, self.traced.derivative)
        if not found.spared_bytes:
            return None
        return self._sharing(chunks=found.lengths), found.spared_bytes

    def without_operators(self) -> "CompiledPlans | None":
        """Plans of the function as it was before any operator.

        None where operators change nothing unless a plan chooses them; and where errors are
        limited, since these plans would be searched anew for every bound.
        """
        if not self.traced.terms.operators or not self.staged.program.keeps_other or self.bound:
            return None
        return self._sharing(without_operators(self.traced, self.target.name))

    def _sharing(self, traced: Traced | None = None, **changes: Any) -> "CompiledPlans":
        """Other plans of the function, which share its unplanned program."""
        common = traced or self.traced, self.target, self.pins, self.verify
        made = CompiledPlans(*common, **changes, options=self._options)
        made.unplanned, made._conditions = self.unplanned, self._conditions
        return made

    def anew(self) -> "CompiledPlans":
        """The same with nothing compiled yet, by the options that are left."""
        same = self.traced, self.target, self.pins, self.verify, self.bound, self.chunks
        return CompiledPlans(*same, options=self._options)

    @property
    def devices(self) -> int:
        """How many devices the arguments are sharded over; compiled bytes are on one of them."""
        return devices_of(self.traced.avals)

    @functools.cached_property
    def unplanned(self) -> CompiledBytes:
        """The function as it is, XLA's own rematerialization off."""
        return self._compile(self.traced.flat)

    @functools.cached_property
    def fixed_bytes(self) -> int:
        """Bytes of arguments and results, which no plan changes."""
        return self.unplanned.total_bytes - self.unplanned.temp_bytes

    @functools.cached_property
    def graph(self) -> Graph:
        """The planning graph; stages left alone are charged with the unplanned program's excess.

        Where nothing is recomputed the compiler decides what the forward keeps, and it keeps more
        than the backward needs: an elementwise result beside its operand, a copy in another layout.
        The stage that the calibration plan leaves alone is charged in that plan's compiled bytes.
        """
        graph, _ = self.analyzed
        modelled = self.modelled(planners.save_all(graph).regions, graph)
        more = self._all_saved_bytes - modelled - self._calibration_shift
        alone = {region.first for region in self.calibration_plan.regions if region.alone}
        return with_alone_bytes(graph, max(0, more), alone)

    @property
    def staged(self) -> StagedProgram:
        """The program that the graph is of."""
        return self.traced.staged(self.chunks)

    @property
    def inverse(self) -> InverseData:
        """What leads from the graph back to the program."""
        return self.analyzed[1]

    @functools.cached_property
    def calibration_plan(self) -> planners.Plan:
        """The plan that saves nothing, its last stage left alone.

        The backward of the last stage follows at once: recomputing the stage saves no bytes, and
        XLA may make one more copy for it (147 MiB of GPT-2's 540 on a GPU, where the vocabulary is
        padded), which no useful plan has.
        """
        graph, _ = self.analyzed
        regions = tuple(minimal_region(graph, s) for s in range(len(graph.stages)))
        if len(regions) > 1:
            regions = (*regions[:-1], left_alone(graph, regions[-1]))
        return certified(graph, regions, planner="save nothing", bound_seconds=graph.seconds)

    def of(self, decisions: planners.Plan) -> CompiledPlan:
        """A plan as compiled; it is compiled if it is new."""
        if decisions.regions not in self._made:
            predicted = self.predicted_temp_bytes(decisions.regions)
            function = transform(self.staged, decisions)
            figures = self._compile(function) if self.verify else None
            self._made[decisions.regions] = CompiledPlan(decisions, predicted, figures)
        return self._made[decisions.regions]

    def temp_bytes(self, compiled_plan: CompiledPlan) -> int:
        """Bytes without arguments and results: as compiled where known, else as predicted."""
        if compiled_plan.figures is None:
            return compiled_plan.predicted_temp_bytes
        return compiled_plan.figures.total_bytes - self.fixed_bytes

    def smallest(self) -> CompiledPlan:
        """The plan with the least temporaries."""
        return min(self, key=self.temp_bytes)

    def fastest_within(self, limit: int) -> CompiledPlan | None:
        """The fastest plan whose temporaries take at most `limit` bytes."""
        fits = [x for x in self if self.temp_bytes(x) <= limit]
        return min(fits, key=lambda x: x.decisions.seconds, default=None)

    def predicted_temp_bytes(self, regions: _Regions) -> int:
        """Temporaries of a plan by the model, placed on the compiler's scale."""
        return self._scale.compiled_for(self.modelled(regions))

    def modelled(self, regions: _Regions, graph: Graph | None = None) -> int:
        """Temporaries of a plan by the model alone."""
        return predicted_temp_bytes(graph or self.graph, regions, self.inverse.output_bytes)

    def modelled_for(self, temp_bytes: int) -> int:
        """Modelled temporaries of plans that will compile to `temp_bytes`."""
        return self._scale.modelled_for(temp_bytes)

    @functools.cached_property
    def analyzed(self) -> tuple[Graph, InverseData]:
        """The planning graph as it was analyzed, and what leads from it back to the program."""
        roofline, backend = roofline_of(self.target), backend_of(self.target.name)
        graph, inverse = analyze(self.staged, roofline, backend, self.pins)
        if self.bound is not None:
            graph = with_errors(graph, self.staged, self.bound)
        return graph, inverse

    @functools.cached_property
    def lossy_codes(self) -> frozenset[int]:
        """Values of the graph that are arrays of lossy codes."""
        graph, staged = self.analyzed[0], self.staged
        named = ((name, staged.values[name]) for name in graph.index if name in staged.values)
        written = ((name, i, staged.writer[i]) for name, i in named)
        return frozenset(graph.index[name] for name, i, e in written if is_lossy_code(e, i))

    @functools.cached_property
    def _scale(self) -> Scale:
        """From modelled to compiled temporaries, by the calibration plan and by saving all."""
        small = self.modelled(self.calibration_plan.regions, self.analyzed[0])
        least = small + self._calibration_shift
        large, most = self.modelled(planners.save_all(self.graph).regions), self._all_saved_bytes
        if large <= small or most <= least:  # saving all takes no more: one plan sets the scale
            large, most = small + 1, least + 1
        if self.devices > 1:  # the model counts the bytes on all of them
            return Scale((0, small, large), (0, least, most))
        return Scale((small, large), (least, most))

    @functools.cached_property
    def _all_saved_bytes(self) -> int:
        """Compiled temporaries where nothing is recomputed."""
        if self.staged.program.keeps_other:  # saving all is then not the unplanned program
            return self._measured(planners.save_all(self.analyzed[0])).temp_bytes
        return self.unplanned.temp_bytes

    @functools.cached_property
    def _calibration_shift(self) -> int:
        """Compiled minus modelled temporaries of the calibration plan."""
        modelled = self.modelled(self.calibration_plan.regions, self.analyzed[0])
        return self._measured(self.calibration_plan).temp_bytes - modelled

    def _measured(self, decisions: planners.Plan) -> CompiledBytes:
        """The compiled bytes of a plan that places the model."""
        figures = self._compile(transform(self.staged, decisions))
        self._made[decisions.regions] = CompiledPlan(decisions, figures.temp_bytes, figures)
        return figures

    def _compile(self, function: FlatFunction) -> CompiledBytes:
        """The bytes of a program.

        Raises:
            OtherOptions: earlier programs were compiled under other options.
        """
        step = step_to_compile(self.traced, function)
        figures = compile_bytes(*step, target=self.target, options=self._options)
        if str(self._options) != (self._conditions or str(self._options)):
            raise OtherOptions
        self._conditions = str(self._options)
        return figures
