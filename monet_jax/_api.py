"""`remat`, `plan` and `apply`: from a function and a budget to a planned function.

trace     the function on abstract values              -> a flat program
plan      analyze, solve, emit, compile, correct       -> a plan whose compiled program fits
emit      the program again, stage by stage            -> a function
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._calls import plan_call as plan_call
from ._calls import within_error as within_error
from ._plan import Plan
from ._sources import Fixed
from ._sources import Planned as Planned
from ._sources import Source as Source
from ._wrapped import Rematerialized as Rematerialized
from ._wrapped import rematerialized
from ._wrapped import run_planned as run_planned
from ._wrapped import runs_as_it_is as runs_as_it_is
from .compiler.host import Bandwidth
from .planning.failures import PlanningWarning as PlanningWarning
from .planning.mistakes import budget_by_keyword, refuse
from .planning.options import PlanOptions as PlanOptions
from .planning.progress import progress
from .planning.reserved import Optimizer
from .step.jit import PlannedStep
from .step.marks import given_options, refuse_states
from .step.marks import source_for as source_for
from .step.questions import plan_of_step, refuse_step
from .step.step_plan import StepPlan
from .step.stored import stored_step
from .tracing.modules import Given


@budget_by_keyword
def remat(
    fun: Callable[..., Any] | None = None,
    *,
    budget: int | float | str | None = None,
    target: str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    reserved: int | str | Optimizer = 0,
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float | None = None,
    max_compilations: int = 6,
    max_seconds: float | None = None,
    verify: bool | str = True,
    cache: bool = True,
    costs: str = "model",
    host: str | Sequence[str] = "never",
    host_budget: int | str | None = None,
    host_bandwidth: Bandwidth | None = None,
) -> Callable[..., Any]:
    """`fun`, such that the compiled value-and-gradient of it takes at most `budget` bytes.

    The result takes the same arguments and returns the same values. It is planned once for each
    signature of its inputs, when it is differentiated; where it is not, it runs `fun`. Derivatives
    are exact: they differ from those of `fun` by rounding. Where planned functions call each other,
    the outermost plan decides for all of them. Where planning fails, `fun` runs as it is, and a
    warning says so; `MONET_JAX_STRICT=1` makes that an error.

    Without a budget the result is a mark: `monet_jax.jit` around it plans it within the budget of
    the whole step. In no such step, it is `fun`.

    Arguments:
        fun: the function, or None to use `remat(...)` as a decorator. It must be traceable by JAX.
        budget: an int is bytes; a str is an amount ("12GiB", "12GB"); a float in (0, 1] is a
            fraction of what the function takes unplanned, at the largest of the shapes that came
            so far, and so is "60%"; "auto" is the target's memory less a reserve. It covers
            argument + output + temp - alias of the value and gradient. None: the step's budget.
        target: "cpu", "gpu:h100", "tpu:v5e", ...; None is the default device. Where no such device
            is attached, its compiler runs ahead of time, in another process.
        argnums: the arguments that the gradient is taken with respect to. Traced floats that `fun`
            closes over count as such.
        static_argnums, static_argnames: arguments that are not arrays, as in `jax.jit`. Leaves that
            are bool, str, None or no array at all are static wherever they stand.
        operators: how residuals may be kept: "exact", in every way that leaves gradients as they
            are (see `monet_jax.operators`); "lossy", also as 8 bits, with unbiased noise, from
            which no second derivative can be taken; "none", as JAX keeps them; or names. With
            "none" nothing in the plan has a derivative of its own, so that forward mode works
            everywhere; all iterations of a loop are alike then.
        checkpoints: "keep" or "plan": whether the `jax.checkpoint` regions in `fun` stay as they
            are, each run again as a whole, or the plan decides for the values in them as for all
            others. Then their policies are dropped, and what these name or offload is not saved for
            it: `pins` can name the same values.
        reserved: bytes of the budget for what lives outside, or an amount ("2GiB"); or an optimizer
            (an `optax.GradientTransformation`), for the bytes of its state for the arguments of
            `argnums`: on each device, where these are sharded; or such a state itself, or an
            `nnx.Optimizer`. Its temporaries and what it updates out of place are not in it.
        pins: name -> "save" or "recompute", for values that you decide. A name is a
            `checkpoint_name` of yours, a module path, or a value's name in the report.
        planner: a `(planners.Graph, int) -> planners.Plan`, or a `planners.RegionPlanner`, which is
            prepared once for several budgets; None is `planners.Stages`.
        time_limit: seconds for the solver, per plan; None for twice as long as the function
            takes to compile, but 3 to 10 s.
        max_compilations: programs that planning may compile, the function as it is and the plan
            that calibrates the model included; where none of them fits, as many more to find the
            smallest. Where that ends the search, the best plan so far is used, and says so.
        max_seconds: the same for the seconds of planning; a compilation that has begun is awaited.
        verify: compile the planned program, and correct the plan until it keeps the budget. "time":
            run what was compiled on this process's device, too, and take the fastest by the clock.
        cache: keep plans on disk.
        costs: "model": seconds come from a roofline; plans are the same on every machine.
            "measured": where the target is this process's device, each distinct op is timed there
            once, in at most 20 s, and the seconds are kept on disk.
        host: what may live in the host's memory: "never"; "activations", residuals that leave the
            device and come back for the backward; "states"; "parameters"; a tuple of these; or
            "auto", all that can be moved. Not for the CPU.
        host_budget: bytes of the host's memory for each device, or an amount; None is what XLA:GPU
            pins (64 GiB, or XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB); a TPU needs a number.
        host_bandwidth: of the link to the host, in bytes a second, or a pair, out to the host and
            back; None where the target's is known.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        InfeasibleBudget: when differentiated: no plan fits the budget.
        TargetUnavailable: when differentiated: the target's compiler is not installed.
    """
    options = PlanOptions(
        budget="auto" if budget is None else budget,
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators=operators,
        checkpoints=checkpoints,
        reserved=reserved,
        pins=pins,
        planner=planner,
        time_limit=time_limit,
        max_compilations=max_compilations,
        max_seconds=max_seconds,
        verify=verify,
        cache=cache,
        costs=costs,
        host=host,
        host_budget=host_budget,
        host_bandwidth=host_bandwidth,
    )
    source = source_for(budget, options)
    decorate = functools.partial(_decorate, source, options.given)
    return decorate if fun is None else decorate(fun)


def plan(
    fun: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    budget: int | float | str | None = None,
    target: str | None = None,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    operators: str | Sequence[str] = "exact",
    error: float | None = None,
    sample: Sequence[Any] | None = None,
    checkpoints: str = "keep",
    reserved: int | str | Optimizer = 0,
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float | None = None,
    max_compilations: int = 6,
    max_seconds: float | None = None,
    verify: bool | str = True,
    cache: bool = True,
    costs: str = "model",
    host: str | Sequence[str] = "never",
    host_budget: int | str | None = None,
    host_bandwidth: Bandwidth | None = None,
) -> Any:
    """The plan that `remat` would use for these arguments; nothing is allocated or run.

    Of a step that `monet_jax.jit` made it is the `StepPlan` that the step would use, within the
    step's own options; only `budget` and `target` may be given, in the place of these. Of a
    function that `remat` made, and without a budget, it is the plan that the function would use.

    But with `costs="measured"`, ops run on made-up arrays, and with `verify="time"` plans. With an
    `error`, gradients of a sample are computed to measure what lossy codes do to them, one for each
    value that may be encoded; such a plan is not kept on the disk.

    Arguments:
        fun: the function, or a step that `monet_jax.jit` made.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s, with shardings where they matter.
        kwargs: its keyword arguments.
        error: with lossy operators: the relative error of the gradient that a plan may bring in,
            as in 0.02: the root mean square, over draws of the codes' noise, of the norm of what is
            wrong over the gradient's norm. "lossy" then means 8, 4 and 2 bits, value by value.
        sample: a tuple of arguments, of the shapes of `args`, on which errors are measured; `args`
            themselves if nothing is said. Or a list of such tuples: the error is that on the worst.
            Gradients get smaller as training goes on, and errors with them relatively larger: give
            a batch with parameters of the beginning, and one with those of later.

    The other arguments and the errors are those of `remat`.
    """
    options = PlanOptions(
        budget="auto" if budget is None else budget,
        target=target,
        argnums=argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        operators=within_error(operators, error),
        checkpoints=checkpoints,
        reserved=reserved,
        pins=pins,
        planner=planner,
        time_limit=time_limit,
        max_compilations=max_compilations,
        max_seconds=max_seconds,
        verify=verify,
        cache=cache,
        costs=costs,
        host=host,
        host_budget=host_budget,
        host_bandwidth=host_bandwidth,
    )

    if isinstance(fun, PlannedStep):
        given = error is not None or sample is not None
        return plan_of_step(fun, args, kwargs or {}, budget, options, given)
    if isinstance(fun, Rematerialized) and isinstance(fun.source, Planned) and budget is None:
        return _own_plan(fun, args, kwargs or {}, options)
    if budget is None:
        raise TypeError('`plan` needs a budget: give it one, as in `budget="12GiB"`.')
    refuse_states(options)
    return plan_call(options, fun, args, kwargs or {}, error, sample)


def apply(
    plan: Plan | StepPlan,
    fun: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    **jit_options: Any,
) -> Any:
    """`fun`, run as a plan says. Needs no solver.

    A plan of another JAX version or device is compiled again; a warning says if it is outgrown.

    Arguments:
        plan: of a function, or of a step.
        fun: what the plan was made for; a step as it was written, or of `monet_jax.jit`.
        argnums, static_argnums, static_argnames: as in `plan`; a step has no `argnums`.
        **jit_options: of a step: what `jax.jit` takes, as when the plan was made.

    Returns:
        A function with the arguments, values and derivatives of `fun`; as `jit` makes of a step.

    Raises:
        TypeError: there are options of another kind of plan.
        PlanMismatch: when called: the plan was made for another function or other arguments.
    """
    if isinstance(plan, StepPlan):
        static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
        return stored_step(plan, fun, argnums, {**static, **jit_options})
    if jit_options:
        raise TypeError(f"{sorted(jit_options)} are of `jax.jit`, and only for the plan of a step.")
    return rematerialized(fun, Fixed(plan), (argnums, static_argnums, static_argnames))


def _own_plan(
    fun: Rematerialized, args: Sequence[Any], kwargs: Mapping[str, Any], options: PlanOptions
) -> Plan:
    """The plan that a function which `remat` made uses for these arguments.

    Raises:
        ValueError: options were given, or there is no plan for these arguments.
    """
    if given := given_options(options, ("budget",)):
        raise ValueError(
            f"{given} cannot be given with a function of `monet_jax.remat`, which has its own "
            "options: give them there, or a budget here, or plan the function inside it."
        )
    source, marked = fun.source, fun.planned_call(args, kwargs)
    assert isinstance(source, Planned)
    with progress():
        traced = source.traced(marked)
        refuse(traced, marked.name)
        record = source.plan_for(traced, marked)
    if record is None:
        raise ValueError(f"No plan was made for `{marked.name}`; the warning before says why.")
    return Plan.of(record)


def _decorate(source: Source, given: Given, fun: Callable[..., Any]) -> Any:
    refuse_step(fun, "remat")
    return rematerialized(fun, source, given)
