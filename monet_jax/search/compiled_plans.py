"""How many bytes does each plan of one function take: as compiled, and as predicted before?

unplanned   the function as it is; if it fits, nothing is planned
base        the plan that saves nothing but in the last stage: with the unplanned program (or,
            where something was rewritten or inlined, the plan that saves all) it places the
            model on the compiler's scale
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.regions.simple_plans import certified, left_alone, minimal_region

from ..analyzer.analyze import analyze
from ..analyzer.pins import Pins
from ..compiler.backend import backend_of
from ..compiler.buffer_model import Scale, predicted_temp_bytes, with_alone_bytes
from ..compiler.compile import CompiledBytes, compile_bytes, devices_of
from ..compiler.options import Options, options_of
from ..compiler.targets import Target
from ..ir.costs import Roofline
from ..ir.gradient import FlatFunction, cotangent_avals, value_and_gradient
from ..operators import is_lossy_code, not_used
from ..tracing.nested_scans import as_nested_scans, chunking
from ..tracing.origins import Origins
from ..tracing.trace import Traced, context_for, fingerprint, without_operators, without_rewrites
from ..transformer.transform import transform
from .gradient_error import ErrorBound, with_errors

_Regions = tuple[Region, ...]


@dataclasses.dataclass(frozen=True)
class CompiledPlan:
    """A plan and what the compiler says of it.

    Attributes:
        decisions: the plan.
        predicted_temp_bytes: by the model and the programs that place it.
        figures: as compiled; None where plans are not compiled.
    """

    decisions: planners.Plan
    predicted_temp_bytes: int
    figures: CompiledBytes | None


class OtherOptions(Exception):
    """A program failed under the options that others were compiled with: theirs are other bytes."""


class CompiledPlans:
    """The plans of one traced function that were looked at, each compiled once.

    Arguments:
        traced: the function.
        target: what to compile for.
        pins: values that must be saved or must be recomputed.
        verify: whether planned programs are compiled; without, only what places the model is.
        bound: what lossy codes may do to the gradient.
        chunks: how loops run, as in `Plan.chunks`.
        options: of the compilations; those for the function's programs where none are given.
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
        self._options = options or options_of(
            target, fingerprint(traced.program, traced.derivative)
        )
        self._conditions: str | None = None
        self._made: dict[_Regions, CompiledPlan] = {}

    def __iter__(self) -> Iterator[CompiledPlan]:
        return iter(self._made.values())

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, decisions: planners.Plan) -> bool:
        return decisions.regions in self._made

    def within(self, bound: ErrorBound) -> "CompiledPlans":
        """CompiledPlans of the same function with a bound of errors."""
        return self._sharing(bound=bound)

    def not_used(self) -> list[str]:
        """Operators by whose names the function could be planned to take less, but is not.

        With none at all, forward mode is what was asked for.
        """
        used = self.traced.terms.operators
        context = context_for(self.target.name, self.traced.avals)
        return not_used(used, *without_rewrites(self.traced), context) if used else []

    def as_nested_scans(self) -> "tuple[CompiledPlans, int] | None":
        """Plans of the function with its loops in chunks, and the bytes which that may spare.

        None where nothing is spared; where pins name values, of which there are others then; and
        where errors are limited, which are known for the loops as they are.
        """
        if self.pins or self.bound is not None:
            return None
        found = chunking(self.traced.program, self.traced.derivative)
        if not found.spared_bytes:
            return None
        return self._sharing(chunks=found.lengths), found.spared_bytes

    def without_operators(self) -> "CompiledPlans | None":
        """CompiledPlans of the function as it was before any operator.

        None where an operator changes nothing but what a plan asks of it; and where errors are
        limited, since what else there is would be planned anew for every limit.
        """
        if not self.traced.terms.operators or not self.origins.program.keeps_other or self.bound:
            return None
        return self._sharing(without_operators(self.traced, self.target.name))

    def _sharing(self, traced: Traced | None = None, **changes: Any) -> "CompiledPlans":
        """CompiledPlans of the function otherwise planned; as it is, it does not change."""
        of = traced or self.traced, self.target, self.pins, self.verify
        made = CompiledPlans(*of, **changes, options=self._options)
        made.unplanned, made._conditions = self.unplanned, self._conditions
        return made

    def anew(self) -> "CompiledPlans":
        """CompiledPlans of which none was made yet, by the options that are left."""
        of = self.traced, self.target, self.pins, self.verify, self.bound, self.chunks
        return CompiledPlans(*of, options=self._options)

    @property
    def devices(self) -> int:
        """How many the arguments are sharded over; compiled bytes are those of one of them."""
        return devices_of(self.traced.avals)

    @functools.cached_property
    def unplanned(self) -> CompiledBytes:
        """The function as it is, XLA's own rematerialization off."""
        return self._compile(self.traced.flat)

    @functools.cached_property
    def fixed_bytes(self) -> int:
        """What no plan can change: arguments and results."""
        return self.unplanned.total_bytes - self.unplanned.temp_bytes

    @functools.cached_property
    def graph(self) -> Graph:
        """The planning graph, its stages left alone charged with what the unplanned program takes.

        Where nothing is recomputed the compiler decides what the forward keeps, and that is more
        than the backward needs: an elementwise result beside its operand, a copy in another layout.
        What the stage that the base leaves alone keeps is among the bytes of the compiled base.
        """
        graph, _ = self.analyzed
        modelled = self.modelled(planners.save_all(graph).regions, graph)
        more = self._all_saved_bytes - modelled - self._base_shift
        alone = {region.first for region in self.base.regions if region.alone}
        return with_alone_bytes(graph, max(0, more), alone)

    @property
    def origins(self) -> Origins:
        """Where the graph came from."""
        return self.analyzed[1]

    @functools.cached_property
    def base(self) -> planners.Plan:
        """The plan that saves nothing, its last stage left alone.

        That stage's backward comes at once: to recompute it spares nothing, and XLA may take a copy
        more for it (147 MiB of GPT-2's 540 on a GPU, where the vocabulary is padded), which no plan
        that is worth having does.
        """
        graph, _ = self.analyzed
        regions = tuple(minimal_region(graph, s) for s in range(len(graph.stages)))
        if len(regions) > 1:
            regions = (*regions[:-1], left_alone(graph, regions[-1]))
        return certified(graph, regions, planner="save nothing", bound_seconds=graph.seconds)

    def of(self, decisions: planners.Plan) -> CompiledPlan:
        """The trial of a plan, which is compiled if it is new."""
        if decisions.regions not in self._made:
            predicted = self.predicted_temp_bytes(decisions.regions)
            function = transform(self.origins, decisions)
            figures = self._compile(function) if self.verify else None
            self._made[decisions.regions] = CompiledPlan(decisions, predicted, figures)
        return self._made[decisions.regions]

    def temp_bytes(self, compiled_plan: CompiledPlan) -> int:
        """Everything but arguments and results, as compiled where that is known."""
        if compiled_plan.figures is None:
            return compiled_plan.predicted_temp_bytes
        return compiled_plan.figures.total_bytes - self.fixed_bytes

    def smallest(self) -> CompiledPlan:
        """The trial with the least temporaries."""
        return min(self, key=self.temp_bytes)

    def fastest_within(self, room: int) -> CompiledPlan | None:
        """The fastest trial whose temporaries fit in `room` bytes."""
        fits = [t for t in self if self.temp_bytes(t) <= room]
        return min(fits, key=lambda t: t.decisions.seconds, default=None)

    def predicted_temp_bytes(self, regions: _Regions) -> int:
        """Temporaries of a plan by the model and what was compiled to place it."""
        return self._scale.compiled_for(self.modelled(regions))

    def modelled(self, regions: _Regions, graph: Graph | None = None) -> int:
        """Temporaries of a plan by the model alone."""
        return predicted_temp_bytes(graph or self.graph, regions, self.origins.output_bytes)

    def modelled_for(self, temp_bytes: int) -> int:
        """Modelled temporaries of plans that will compile to `temp_bytes`."""
        return self._scale.modelled_for(temp_bytes)

    @functools.cached_property
    def analyzed(self) -> tuple[Graph, Origins]:
        """The planning graph as the analysis has it, and where it came from."""
        roofline, backend = roofline_of(self.target), backend_of(self.target.name)
        program, derivative = self.traced.program, self.traced.derivative
        if self.chunks is not None:
            program = as_nested_scans(program, self.chunks)
        graph, origins = analyze(program, derivative, roofline, backend, self.pins)
        if self.bound is not None:
            graph = with_errors(graph, origins, self.bound)
        return graph, origins

    @functools.cached_property
    def lossy_codes(self) -> frozenset[int]:
        """Values of the graph that are arrays of codes which are not exact."""
        graph, origins = self.analyzed
        written = ((name, i, origins.writer[i]) for name, i in origins.values.items())
        return frozenset(graph.index[name] for name, i, e in written if is_lossy_code(e, i))

    @functools.cached_property
    def _scale(self) -> Scale:
        """From modelled temporaries to compiled ones, by the base and by saving all."""
        small = self.modelled(self.base.regions, self.analyzed[0])
        least = small + self._base_shift
        large, most = self.modelled(planners.save_all(self.graph).regions), self._all_saved_bytes
        if large <= small or most <= least:  # saving all takes no more: the base says it alone
            large, most = small + 1, least + 1
        if self.devices > 1:  # the model counts what all of them hold
            return Scale((0, small, large), (0, least, most))
        return Scale((small, large), (least, most))

    @functools.cached_property
    def _all_saved_bytes(self) -> int:
        """Compiled temporaries where nothing is recomputed."""
        if self.origins.program.keeps_other:  # then that is not the unplanned program
            return self._measured(planners.save_all(self.analyzed[0])).temp_bytes
        return self.unplanned.temp_bytes

    @functools.cached_property
    def _base_shift(self) -> int:
        """Compiled minus modelled temporaries of the base."""
        modelled = self.modelled(self.base.regions, self.analyzed[0])
        return self._measured(self.base).temp_bytes - modelled

    def _measured(self, decisions: planners.Plan) -> CompiledBytes:
        """A plan that the model is placed by, as compiled."""
        figures = self._compile(transform(self.origins, decisions))
        self._made[decisions.regions] = CompiledPlan(decisions, figures.temp_bytes, figures)
        return figures

    def _compile(self, function: FlatFunction) -> CompiledBytes:
        """The bytes of a program.

        Raises:
            OtherOptions: those of earlier ones were compiled under other options.
        """
        step = step_to_compile(self.traced, function)
        figures = compile_bytes(*step, target=self.target, options=self._options)
        if str(self._options) != (self._conditions or str(self._options)):
            raise OtherOptions
        self._conditions = str(self._options)
        return figures


def step_to_compile(traced: Traced, function: FlatFunction) -> tuple[Callable[..., Any], tuple]:
    """The value and gradient of a traced function, run by `function`, and its arguments."""
    step = value_and_gradient(function, traced.program, traced.derivative)
    avals = map(jax.typeof, traced.constants)
    constants = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    cotangents = cotangent_avals(traced.program, traced.derivative)
    return step, (list(traced.avals), constants, cotangents)


def roofline_of(target: Target) -> Roofline:
    """The peaks of a target."""
    half = target.matmul_flops_per_second(2)
    return Roofline(
        {"float32": target.matmul_flops_per_second(4), "bfloat16": half, "float16": half},
        target.flops_per_second,
        target.bandwidth_bytes_per_second,
    )
