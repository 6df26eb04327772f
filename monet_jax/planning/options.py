"""The shared options of `remat`, `plan`, `fit`, `sweep`, `check` and `flax`, as one record.

They are checked once, when the record is made, and handed on whole.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import planners
from planners.regions.planner import FunctionPlanner, RegionPlanner
from planners.regions.stages import one_function

from ..analyzer.pins import Pins, find, make_pins, saved_by_name
from ..candidates.cap import Cap
from ..compiler.budget import as_share, parse_budget, validate_budget
from ..compiler.host import Bandwidth, HostMemory, HostOptions
from ..compiler.targets import Target, resolve_target, usable_bytes
from ..seconds.sources import BY_CLOCK, check_costs, check_verify
from ..tracing import trace
from ..tracing.modules import Given
from ..tracing.signature import Call
from ..tracing.traced import Terms, Traced
from .failures import statements
from .mistakes import refuse_reserved
from .reserved import as_reserved, reserved_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What a user wants of the plans of a function.

    The fields are the keyword arguments of `remat`, under their names and with their meanings. A
    function that takes fewer of them leaves the others at their defaults.

    Attributes:
        terms: the operators and checkpoints that the function is planned with.
        pinned: the values that the user decides.
        host_options: what may live in the host's memory, in which bytes, over which link.

    Raises:
        TypeError, ValueError: an option is not what it must be.
        TargetUnavailable: there is no such target.
    """

    budget: int | float | str = "auto"
    target: str | None = None
    argnums: int | Sequence[int] = 0
    static_argnums: int | Sequence[int] = ()
    static_argnames: str | Sequence[str] = ()
    operators: str | Sequence[str] = "exact"
    checkpoints: str = "keep"
    reserved: Any = 0  # an int or an `Optimizer` from here on
    pins: Mapping[str, str] | None = None
    planner: Any = None
    time_limit: float | None = None
    max_compilations: int = 6
    max_seconds: float | None = None
    verify: bool | str = True
    cache: bool = True
    costs: str = "model"
    host: str | Sequence[str] = "never"
    host_budget: int | str | None = None
    host_bandwidth: Bandwidth | None = None

    terms: Terms = dataclasses.field(init=False)
    pinned: Pins = dataclasses.field(init=False)
    host_options: HostOptions = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", Terms.of(self.operators, self.checkpoints))
        check_costs(self.costs)
        validate_budget(self.budget)
        object.__setattr__(self, "budget", as_share(self.budget))
        object.__setattr__(self, "reserved", as_reserved(self.reserved))
        _check_seconds("time_limit", self.time_limit)
        _check_seconds("max_seconds", self.max_seconds)
        _check_count(self.max_compilations)
        _check_planner(self.planner)
        host = HostOptions.of(self.host, self.host_budget, self.host_bandwidth)
        object.__setattr__(self, "host_options", host)
        if self.target is not None:
            self.host_memory(resolve_target(self.target))
        check_verify(self.verify, self.target)
        object.__setattr__(self, "pinned", make_pins(self.pins))
        _check_rest(self)

    @property
    def given(self) -> Given:
        """How the arguments of the function are meant."""
        return self.argnums, self.static_argnums, self.static_argnames

    @property
    def by_clock(self) -> bool:
        """Whether the clock decides between compiled plans."""
        return self.verify == BY_CLOCK

    @property
    def caps(self) -> tuple[int, float | None]:
        """The caps on compilations and seconds."""
        return self.max_compilations, self.max_seconds

    def kept_by(self, traced: Traced) -> tuple[Any, ...]:
        """What a plan of a function that is kept on the disk depends on, of these options.

        Pins count by the values that they name: names are no part of a fingerprint.

        Raises:
            ValueError: a pin names nothing.
        """
        staged, host = traced.staged(), self.host_memory(resolve_target(self.target))
        saved = sorted(saved_by_name(staged, self.pinned))
        named = sorted(find(staged, self.pinned).items())
        return self.terms, self.time_limit, self.verify, self.costs, saved, named, host

    def host_memory(self, target: Target) -> HostMemory | None:
        """The host's memory that plans for a target may use; None where there is none to use.

        Raises:
            ValueError: the target has none, or what is known of it does not suffice.
        """
        with statements():
            return self.host_options.on(target)

    def cap(self, **more: Any) -> Cap:
        """The cap on compilations and seconds; `more` are other fields of it."""
        return Cap(self.max_compilations, self.max_seconds or math.inf, **more)

    @property
    def region_planner(self) -> RegionPlanner | None:
        """The planner: the user's, or ours with the user's time; None where nothing is said."""
        if isinstance(self.planner, RegionPlanner):
            return self.planner
        if isinstance(self.planner, planners.SchedulePlanner):
            return planners.EmittedSchedules(self.planner)
        if self.planner is not None:
            return FunctionPlanner(self.planner)
        return None if self.time_limit is None else one_function(self.time_limit)

    @property
    def is_share(self) -> bool:
        """Whether the budget is a share of the unplanned bytes."""
        return not isinstance(self.budget, str | numbers.Integral)

    def traced(
        self, fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> Traced:
        """The trace of a function on some arguments.

        Raises:
            TypeError, ValueError: there is no function, or the options do not fit its arguments.
        """
        target = resolve_target(self.target)
        return trace.trace_call(fun, args, kwargs or {}, self.given, self.terms, target)[0]

    def for_call(self, call: Call, name: str = "") -> "PlanRequest":
        """The options for one call of a function, which has a name.

        Raises:
            ValueError: the optimizer to reserve for cannot make a state from its parameters.
        """
        return PlanRequest(self, reserved_bytes(self.reserved, call.params), name=name)

    def budget_bytes(self, target: Target, unplanned_bytes: Callable[[], int]) -> int:
        """The budget in bytes.

        Arguments:
            target: the target to plan for.
            unplanned_bytes: called for a share: the bytes that the function takes unplanned.
        """
        return parse_budget(
            self.budget,
            unplanned_bytes=unplanned_bytes,
            target_memory=lambda: usable_bytes(target),
        )


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """The options for one call of a function.

    Attributes:
        options: of the function.
        reserved_bytes: the part of the budget for other things; for an optimizer, the bytes of its
            state for the parameters of the call.
        floor_bytes: a budget that is a share is a share of at least these bytes: the largest
            program of the function, of those that were planned before, takes them unplanned.
        name: of the function, for its plan.
    """

    options: PlanOptions
    reserved_bytes: int
    floor_bytes: int = 0
    name: str = ""

    def budget_bytes(self, target: Target, unplanned_bytes: Callable[[], int]) -> int:
        """The budget in bytes; see `PlanOptions.budget_bytes`."""
        return self.options.budget_bytes(target, lambda: max(unplanned_bytes(), self.floor_bytes))

    def with_options(self, **changes: Any) -> "PlanRequest":
        """The same request with other options."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, **changes))


def _check_seconds(name: str, seconds: Any) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"`{name}` must be a number of seconds; got {seconds!r}.")
    if not seconds > 0:
        raise ValueError(f"`{name}` must be a positive number of seconds; got {seconds!r}.")


def _check_count(count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"`max_compilations` must be a number of programs; got {count!r}.")
    if count < 1:
        raise ValueError(f"`max_compilations` must be 1 or more; got {count!r}.")


def _check_planner(planner: Any) -> None:
    if planner is not None and not callable(planner):
        raise TypeError(f"`planner` must be callable: (Graph, int) -> Plan; got {planner!r}.")


def _check_rest(options: PlanOptions) -> None:
    """Check `cache`, and that `reserved` leaves some of the budget, where both are known."""
    if not isinstance(options.cache, bool):
        raise TypeError(f"`cache` must be True or False; got {options.cache!r}.")
    if options.is_share or options.budget == "auto" or not isinstance(options.reserved, int):
        return
    total = parse_budget(options.budget, unplanned_bytes=int, target_memory=int)
    refuse_reserved(total, options.reserved)
