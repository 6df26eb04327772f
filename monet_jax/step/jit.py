"""`monet_jax.jit`: a step under `jax.jit`, whose marks are planned when it is traced."""

import copy
import functools
import logging
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.core

from ..compiler.host import Bandwidth
from ..planning.failures import STATEMENTS, report
from ..planning.mistakes import budget_by_keyword
from ..planning.options import PlanOptions
from ..plans.multihost import FirstProcessFailed
from ..plans.record import PlanMismatch
from ..seconds.sources import BY_CLOCK
from ..tracing.marked import name_of
from .call import Shardings, StepCall, shardings_of
from .context import current_step, run_step
from .planning import applied, plan_step
from .step_plan import StepPlan
from .updates.placement import arrays_in, check_placed, placed_arguments, refuse_shardings

log = logging.getLogger("monet_jax")

#: Options of `remat` and `plan` that a step does without.
_OF_FUNCTIONS = {"argnums", "reserved", "error", "sample"}
#: Errors of planning that a call raises.
_RAISED = (*STATEMENTS, FirstProcessFailed, PlanMismatch)

#: A call of a step, and what its user wants of its plans -> the plan that it runs by.
type Planner = Callable[[StepCall, PlanOptions], StepPlan]


class PlannedStep:
    """A step that runs as planned; made by `monet_jax.jit`. It has what a jitted function has."""

    def __init__(
        self, fun: Callable[..., Any], options: PlanOptions, jit_options: Mapping[str, Any]
    ):
        self._fun, self._options, self._jit_options = fun, options, dict(jit_options)
        self._jitted: dict[Shardings | None, Any] = {}
        self._plan_for, self._is_noted = plan_step, False
        self._jitted_for(None)  # refuses bad options now

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if jax.config.jax_disable_jit or current_step() is not None:
            return self.as_it_is(*args, **kwargs)
        self._note_outer((args, kwargs))
        shardings = None if jax.device_count() == 1 else shardings_of((args, kwargs))
        return self._jitted_for(shardings)(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """As of a jitted function: the step as planned for these arguments, traced."""
        return self._jitted_for(shardings_of((args, kwargs))).trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As of a jitted function: the step as planned for these arguments, lowered."""
        return self._jitted_for(shardings_of((args, kwargs))).lower(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function: shapes and types of the results; nothing is planned."""
        call = PlannedStep.call_for(self, args, kwargs)  # where a state lives changes no shape
        return self.as_it_is.eval_shape(*call.args, **call.kwargs)

    def clear_cache(self) -> None:
        """As of a jitted function: forget what was traced, planned and compiled."""
        self.as_it_is.clear_cache()
        for jitted in self._jitted.values():
            jitted.clear_cache()
        self._jitted.clear()

    @functools.cached_property
    def as_it_is(self) -> Any:
        """The step under `jax.jit` alone."""
        return jax.jit(self._fun, **self._jit_options)

    def trace_as_it_is(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The step under `jax.jit` alone, traced."""
        call = PlannedStep.call_for(self, args, kwargs)
        return self.as_it_is.trace(*call.args, **call.kwargs)

    def place(self, *args: Any, **kwargs: Any) -> Any:
        """The donated arguments, each leaf of them where the plan for these arguments has it.

        To be called once, before the first step, and after a checkpoint was restored elsewhere:
        `state = step.place(state, batch)`. Abstract arguments are given the shardings of the plan,
        into which a checkpoint can be restored.

        Arguments:
            *args, **kwargs: those of the step.

        Returns:
            The positional argument that is donated, or a tuple of them where several are. Leaves
            that lie where the plan has them are the same arrays.

        Raises:
            ValueError: no positional argument is donated.
            InfeasibleBudget: no plan fits the budget.
        """
        call = self.call_for(args, kwargs)
        layout = self._plan_for(call, self._options).layout
        donated = [x.donated for x in jax.tree.leaves(call.traced(None).args_info)]
        return placed_arguments((call.args, call.kwargs), args, donated, layout)

    @property
    def jit_options(self) -> Mapping[str, Any]:
        """Keyword arguments of `jax.jit`."""
        return self._jit_options

    @property
    def options(self) -> PlanOptions:
        """What its user wants of its plans."""
        return self._options

    def running_by(self, plan_for: Planner, options: PlanOptions) -> "PlannedStep":
        """The same step, planned by another function and with other options."""
        made = copy.copy(self)
        made._plan_for, made._options, made._jitted = plan_for, options, {}
        return made

    def call_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepCall:
        """The call with some arguments, as `jax.jit` tells what is static among them."""
        found = []

        @functools.wraps(self._fun)
        def seen(*given: Any, **named: Any) -> None:
            shardings = shardings_of((args, kwargs))
            found.append(StepCall.of(self._fun, self._jit_options, (given, named), shardings))

        options = {k: v for k, v in self._jit_options.items() if k != "out_shardings"}
        jax.jit(seen, **options).trace(*args, **kwargs)
        return found[0]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<planned step {name_of(self._fun)}>"

    def _note_outer(self, arguments: Any) -> None:
        """Say once that an outer transformation hides something of what is planned for."""
        tracers = (isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(arguments))
        if not self._is_noted and any(tracers):
            self._is_noted = True
            log.warning(
                "The step `%s` is called under an outer `jit`, `vmap` or `grad`: it is planned for "
                "the shapes that it sees there. Sizes of mapped axes, and what the outer program "
                "keeps, are not in its bytes, and it donates nothing.",
                name_of(self._fun),
            )

    def _jitted_for(self, shardings: Shardings | None) -> Any:
        """The step under `jax.jit`, planned for arguments that are sharded like that."""
        if shardings not in self._jitted:

            @functools.wraps(self._fun)
            def planned(*args: Any, **kwargs: Any) -> Any:
                return self._traced(shardings, args, kwargs)

            self._jitted[shardings] = jax.jit(planned, **self._jit_options)
        return self._jitted[shardings]

    def _traced(
        self, shardings: Shardings | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The results of the step while it is traced: as planned, where that succeeds."""
        call = StepCall.of(self._fun, self._jit_options, (args, kwargs), shardings)
        step, fault = None, None
        try:
            plan = self._plan_for(call, self._options)
            check_placed(arrays_in((args, kwargs)), plan.layout, name_of(self._fun))
            step = applied(plan, call, self._options) if plan.changes_the_step else None
        except _RAISED:
            raise
        except Exception as error:
            fault = error
        results = run_step(step, self._fun, args, kwargs)  # an error of its own is raised here
        if step is not None:
            step.tracer.forget()
        if fault is not None:
            report(name_of(self._fun), fault)
        return results


@budget_by_keyword
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    budget: int | float | str,
    target: str | None = None,
    operators: str | Sequence[str] = "exact",
    checkpoints: str = "keep",
    pins: Mapping[str, str] | None = None,
    planner: Any = None,
    time_limit: float | None = None,
    max_compilations: int = 6,
    max_seconds: float | None = None,
    verify: bool = True,
    cache: bool = True,
    costs: str = "model",
    host: str | Sequence[str] = "never",
    host_budget: int | str | None = None,
    host_bandwidth: Bandwidth | None = None,
    **jit_options: Any,
) -> Any:
    """`jax.jit(fun)`, such that the compiled program takes at most `budget` bytes.

    What is planned is marked: a gradient that `monet_jax.grad`, `value_and_grad`, `vjp` or
    `linearize` takes, and each function under `monet_jax.remat` without a budget. All else of the
    step runs as it is: the optimizer's update, clipping, averages. The step is planned once for
    each signature of its arguments, when it is traced. Where the plain step fits, a mark is
    planned only if that should be clearly faster. Where planning fails, the step runs as under
    `jax.jit`, and a warning says so.

    Arguments:
        fun: the step, or None to use `jit(...)` as a decorator.
        budget: an int is bytes; a str is an amount ("12GiB", "12GB"); a float in (0, 1] is a
            fraction of what the step takes unplanned, and so is "60%"; "auto" is the target's
            memory less a reserve. It covers argument + output + temp - alias of the compiled step,
            on one device: donate what the step replaces.
        target, operators, checkpoints, pins, planner, time_limit, verify, cache: as in `remat`.
        costs, host, host_budget, host_bandwidth: as in `remat`.
        max_compilations: steps that planning may compile for each mark, as in `remat`.
        max_seconds: the same for seconds.
        **jit_options: what `jax.jit` takes: `donate_argnums`, `static_argnames`, `in_shardings`...

    Returns:
        A function like those that `jax.jit` makes, with `lower`, `trace`, `eval_shape` and
        `clear_cache`.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        InfeasibleBudget: when called: no plan fits the budget.
        TargetUnavailable: when called: the target's compiler is not installed.
    """
    if wrong := sorted(_OF_FUNCTIONS & jit_options.keys()):
        raise TypeError(
            f"{wrong} cannot be given to `monet_jax.jit`: the optimizer is in the step, and its "
            "marks say what is differentiated. Give `argnums` to `monet_jax.value_and_grad`."
        )
    if verify == BY_CLOCK:
        raise ValueError(
            'got `verify="time"` for a step, whose plans are verified by bytes alone: leave it '
            "out, or give it to `monet_jax.remat` or `monet_jax.plan` of the loss."
        )
    options = PlanOptions(
        budget=budget,
        target=target,
        operators=operators,
        checkpoints=checkpoints,
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
    if "states" in options.host_options.kinds:
        refuse_shardings(jit_options)
    decorate = functools.partial(_decorate, options, jit_options)
    return decorate if fun is None else decorate(fun)


def _decorate(
    options: PlanOptions, jit_options: Mapping[str, Any], fun: Callable[..., Any]
) -> PlannedStep:
    made = PlannedStep(fun, options, jit_options)
    functools.update_wrapper(made, fun, updated=())
    return made
