"""The compiler as the judge of a traced function's plans: analyzed, emitted and compiled by JAX."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import planners
from planners.graph import Graph

from ..analyzer.analyze import analyze
from ..analyzer.inverse import InverseData
from ..analyzer.pins import Pins, without_values
from ..candidates.cap import Cap
from ..candidates.compiled_plans import CompiledPlans
from ..candidates.judge import CompilationFailed, Judge
from ..candidates.movable import with_host
from ..compiler.backend import backend_of
from ..compiler.compile import CompiledBytes, CompilerFailed, begin_to_compile, compile_bytes
from ..compiler.host import HostMemory
from ..compiler.options import Options, options_of
from ..compiler.targets import Target
from ..compiler.waiting import meanwhile
from ..operators import is_lossy_code
from ..seconds.attained import modelled
from ..seconds.measured import Measured
from ..seconds.prices import Prices
from ..seconds.running import apart, made_up
from ..seconds.sources import measures
from ..tracing.staged import StagedProgram
from ..tracing.trace import without_operators
from ..tracing.traced import Traced
from .failures import warn
from .gradient_error import ErrorBound, with_errors
from .step import PlannedProgram, Step, step_on, step_to_compile


class OtherOptions(Exception):
    """A program failed under the options of earlier ones, whose bytes do not compare with it."""


@dataclasses.dataclass
class Compiler:
    """The compiler of a function's programs, and the conditions under which it has compiled them.

    Attributes:
        target: what to compile for.
        options: of the compilations.
        conditions: of the programs so far, in words; "" as long as there are none.
        costs: what seconds come from, one of `seconds.sources.COSTS`.
        announce: is told what is measured.
        measured: prices by the clock, once they were asked for.
        arguments: made-up arrays that programs are run on, once there are some.
        begun: programs that are being compiled; traced from other lines, they would be others.
    """

    target: Target
    options: Options
    conditions: str = ""
    costs: str = "model"
    announce: Callable[[str], None] = lambda text: None
    measured: Prices | None = None
    arguments: Sequence[Any] = ()
    begun: dict[Hashable, Step] = dataclasses.field(default_factory=dict)

    def prices(self, devices: int) -> Prices:
        """What ops take; of a program that is sharded over several devices, what the parts take."""
        if devices == 1 and measures(self.target, self.costs):
            self.measured = self.measured or Measured(self.target, self.announce)
            return self.measured
        return modelled(self.target)

    def bytes_of(self, traced: Traced, planned: PlannedProgram | None = None) -> CompiledBytes:
        """The bytes of a function, as planned or as it is.

        Raises:
            OtherOptions: earlier programs were compiled under other options.
        """
        figures = self._compiled(traced, planned)
        if str(self.options) != (self.conditions or str(self.options)):
            raise OtherOptions
        self.conditions = str(self.options)
        return figures

    def begin(self, traced: Traced, planned: PlannedProgram) -> None:
        """Begin to compile a function as planned, beside another program."""
        step = self.begun[_key(traced, planned)] = planned.step(traced)
        begin_to_compile(*step, target=self.target, options=self.options)

    def arguments_of(self, traced: Traced) -> Sequence[Any]:
        """Arrays to run a function's programs on; all of them take the same ones."""
        self.arguments = self.arguments or [made_up(aval) for aval in traced.avals]
        return self.arguments

    def _compiled(self, traced: Traced, planned: PlannedProgram | None) -> CompiledBytes:
        """Compile the value and gradient of a function."""
        if planned is None:
            step = step_to_compile(traced, traced.flat)
        else:
            step = self.begun.pop(_key(traced, planned), None) or planned.step(traced)
        return compile_bytes(*step, target=self.target, options=self.options)


def _key(traced: Traced, planned: PlannedProgram) -> Hashable:
    return id(traced), planned.chunks, planned.decisions.regions


class TracedJudge(Judge):
    """The judge of one program of a traced function.

    Arguments:
        traced: the function.
        target: what to compile for.
        pins: values that must be saved or must be recomputed.
        bound: of the gradient errors of lossy codes.
        chunks: lengths of nested scans, as in `Plan.chunks`.
        compiler: shared with the judges of the function's other programs.
        host: the host's memory that plans may use; None where they use none.
        results: of a step that uses the gradients, as in `analyze`.
    """

    def __init__(
        self,
        traced: Traced,
        target: Target,
        pins: Pins,
        *,
        bound: ErrorBound | None = None,
        chunks: tuple[int, ...] | None = None,
        compiler: Compiler | None = None,
        results: Sequence[int] | None = None,
        host: HostMemory | None = None,
    ):
        self.traced, self.target, self.pins = traced, target, pins
        self.bound, self.chunks, self.results = bound, chunks, results
        self.compiler = compiler or Compiler(target, options_of(target, traced.program_hash))
        self.devices, self.host = traced.devices, host
        self.name = "the function with nested scans" if chunks else "the function"

    def other(
        self, traced: Traced | None = None, pins: Pins | None = None, **changes
    ) -> "TracedJudge":
        """The judge of another program of the function."""
        common = traced or self.traced, self.target, self.pins if pins is None else pins
        step = {"compiler": self.compiler, "results": self.results, "host": self.host}
        return TracedJudge(*common, **{**step, **changes})

    @property
    def fingerprint(self) -> str:
        """The hash by which plans of the program are known."""
        return self.staged.fingerprint

    @functools.cached_property
    def analyzed(self) -> tuple[Graph, InverseData]:
        """The planning graph as it was analyzed, and what leads from it back to the program."""
        backend, prices = backend_of(self.target.name), self.compiler.prices(self.traced.spread)
        scratch = self.devices * backend.product_bytes  # each device has its own
        backend = dataclasses.replace(backend, product_bytes=scratch)
        graph, inverse = analyze(self.staged, prices, backend, self.pins, self.results)
        if remark := prices.finish():
            warn(remark)
        if self.bound is not None:
            graph = with_errors(graph, self.staged, self.bound)
        return with_host(graph, self.staged, self.host), inverse

    @property
    def graph(self) -> Graph:
        """The planning graph, as analyzed."""
        return self.analyzed[0]

    @property
    def inverse(self) -> InverseData:
        """What leads from the graph back to the program."""
        return self.analyzed[1]

    @property
    def staged(self) -> StagedProgram:
        """The program that the graph is of."""
        return self.traced.staged(self.chunks)

    @property
    def output_bytes(self) -> Mapping[str, int]:
        """Name of a graph value that the step returns -> its bytes."""
        return self.inverse.output_bytes

    @functools.cached_property
    def lossy_codes(self) -> frozenset[int]:
        """Values of the graph that are arrays of lossy codes."""
        graph, staged = self.graph, self.staged
        named = ((name, staged.values[name]) for name in graph.index if name in staged.values)
        written = ((name, i, staged.writer[i]) for name, i in named)
        return frozenset(graph.index[name] for name, i, e in written if is_lossy_code(e, i))

    @property
    def touch_seconds_per_byte(self) -> float:
        """What a byte of temporaries takes, where the clock prices the graph; 0 elsewhere."""
        return self.compiler.prices(self.traced.spread).touch_seconds_per_byte

    @functools.cached_property
    def plain(self) -> "TracedJudge":
        """The program without operators where these change it unasked, or this one."""
        changes_program = self.traced.terms.operators and self.staged.program.keeps_other
        if not changes_program:
            return self
        pins = without_values(self.staged, self.pins)
        traced = without_operators(self.traced, self.target.name)
        plain = self.other(traced, pins)
        plain.name = "the function without operators"
        return plain

    def unplanned_bytes(self) -> CompiledBytes:
        """Compile the function as it is, and analyze its programs meanwhile."""
        with meanwhile(self._analyses()):
            return self.compiler.bytes_of(self.traced)

    def _analyses(self) -> Iterator[None]:
        """Analyze the function's programs; none where the clock runs ops, which needs quiet."""
        if self.traced.spread > 1 or not measures(self.target, self.compiler.costs):
            _ = self.graph
            yield
            _ = self.plain.graph
            yield

    def planned_bytes(self, decisions: planners.Plan) -> CompiledBytes:
        """Compile a plan.

        Raises:
            CompilationFailed: the compiler fails on this program.
            OtherOptions: it was compiled under other options than those before it.
        """
        try:
            return self.compiler.bytes_of(self.traced, PlannedProgram(decisions, self.chunks))
        except CompilerFailed as error:
            raise CompilationFailed(str(error)) from error

    def begin(self, decisions: planners.Plan) -> None:
        """Begin to compile a plan, beside another program."""
        self.compiler.begin(self.traced, PlannedProgram(decisions, self.chunks))

    def runnable(self, decisions: planners.Plan | None) -> Callable[[], Any]:
        """A plan's program, or the function as it is, ready to run on made-up arrays.

        Raises:
            NotImplementedError: the arguments are sharded.
        """
        if self.traced.spread > 1:
            raise NotImplementedError(
                f'`verify="time"` runs programs on one device, and the arguments are sharded over '
                f"{self.traced.spread}. Leave it out: compiled bytes are verified."
            )
        planned = decisions and PlannedProgram(decisions, self.chunks)
        function = planned.function(self.traced) if planned else self.traced.flat
        return step_on(self.traced, function, lambda: self.compiler.arguments_of(self.traced))

    def on_device[Result](self, function: Callable[[], Result]) -> Result:
        """What a function returns that runs programs, though another one is being traced."""
        return apart(function)


#: Plans of a traced function.
type TracedPlans = CompiledPlans[TracedJudge]


def compiled_plans_of(
    traced: Traced,
    target: Target,
    pins: Pins,
    *,
    bound: ErrorBound | None = None,
    cap: Cap | None = None,
    verify: bool = True,
    costs: str = "model",
    host: HostMemory | None = None,
) -> TracedPlans:
    """The plans of a traced function on a target, of which none is compiled yet."""
    cap = cap or Cap()
    options = options_of(target, traced.program_hash)
    compiler = Compiler(target, options, costs=costs, announce=cap.announce)
    judge = TracedJudge(traced, target, pins, bound=bound, compiler=compiler, host=host)
    return CompiledPlans(judge, cap, verify)
