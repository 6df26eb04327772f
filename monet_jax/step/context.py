"""The step that is being traced: it records the calls of its marks, or runs them as planned."""

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .._sources import Source
from ..planning.failures import warn
from ..planning.mistakes import missing_gradient
from ..tracing.marked import Marked, Traces
from ..tracing.signature import abstract_leaf
from ..tracing.trace import hidden_axes
from ..tracing.traced import Terms, Traced
from .updates.emission import with_layout
from .updates.layout import AS_TRACED, UpdateLayout

#: A traced function and its flat inputs -> its flat outputs, as planned.
type Emission = Callable[[Traced, Sequence[Any]], Sequence[Any]]


#: Why a marked function has no plan that is only called.
NOT_DIFFERENTIATED = (
    "no gradient is taken of it in the step, or a rule of its own (`jax.custom_vjp`) hides it: "
    "take the gradient in the step, and mark what the rule is for"
)


class Tracer:
    """Traces the functions of a step's marks, each once where nothing tells two calls apart.

    Arguments:
        terms: the options that they are planned with.
        target: the name of the target.
        devices: over how many devices the step is sharded.
    """

    def __init__(self, terms: Terms, target: str, devices: int):
        self.terms, self.target, self.devices = terms, target, devices
        self._traces = Traces()
        self._said: set[str] = set()

    def traced(self, marked: Marked) -> Traced:
        """The trace of a marked call, the same for every trace of the step round it."""
        with within(None):
            return self._traces.traced(marked, self.terms, self.target, self.devices)

    def warn_once(self, message: str) -> None:
        """Warn, once for all traces of the step."""
        if message not in self._said:
            self._said.add(message)
            warn(message)

    def forget(self) -> None:
        """Drop all traces: JAX's caches keep what a step was traced with, and what that holds."""
        self._traces = Traces()


class StepTrace(abc.ABC):
    """One trace of a step."""

    def __init__(self, tracer: Tracer):
        self.tracer = tracer

    def note_call(self, marked: Marked) -> None:
        """Told that a marked function is called, before it is differentiated."""
        del marked

    @abc.abstractmethod
    def outputs(self, traced: Traced, marked: Marked) -> Sequence[Any] | None:
        """Flat outputs of a mark's call in this trace; None where it is called as it is."""


class Recording(StepTrace):
    """A trace in which all marks run as they are, and are written down.

    Attributes:
        found: hash of a marked program -> its trace, in the order of their first calls.
        names: the same hashes -> what the functions are called.
        unplanned: what marked functions are called that have no plan -> why.
    """

    def __init__(self, tracer: Tracer):
        super().__init__(tracer)
        self.found: dict[str, Traced] = {}
        self.names: dict[str, str] = {}
        self.unplanned: dict[str, str] = {}

    def note_call(self, marked: Marked) -> None:
        """A marked function is called; whether a gradient passes it is not known yet."""
        self.unplanned.setdefault(marked.name, NOT_DIFFERENTIATED)

    def outputs(self, traced: Traced, marked: Marked) -> Sequence[Any] | None:
        """Flat outputs of the function as it is; a program that is known needs no other plan."""
        mistake = missing_gradient(traced)
        if axes := hidden_axes(traced, marked.call):
            mistake = f"it depends on the mapped axes {axes} of what it is called in"
        if mistake is not None:
            self.unplanned[marked.name] = mistake
            self.tracer.warn_once(f"Nothing is planned for `{marked.name}`: {mistake}.")
            return None
        self.unplanned.pop(marked.name, None)
        abstract = map(abstract_leaf, traced.recorded.closed_over)  # tracers end with their trace
        self.found.setdefault(traced.program_hash, traced.closing_over([*abstract]))
        self.names.setdefault(traced.program_hash, marked.name)
        return traced.flat(marked.call.leaves)  # in which no mark is one: the outer one decides


class Applying(StepTrace):
    """A trace in which marks run as planned.

    Arguments:
        tracer: of the marks.
        emissions: hash of a marked program -> what runs it; others run as they are.
        known: hashes of all marked programs that were recorded.
        layout: of the step's updates.
    """

    def __init__(
        self,
        tracer: Tracer,
        emissions: Mapping[str, Emission],
        known: Sequence[str],
        layout: UpdateLayout = AS_TRACED,
    ):
        super().__init__(tracer)
        self.emissions, self.known, self.layout = emissions, known, layout

    def outputs(self, traced: Traced, marked: Marked) -> Sequence[Any] | None:
        """Flat outputs of the function as planned."""
        emission = self.emissions.get(traced.program_hash)
        if emission is not None:
            used = traced.narrowing if self.layout.is_ordered else traced
            return emission(used, marked.call.leaves)
        if traced.program_hash in self.known:
            return traced.flat(marked.call.leaves)
        if missing_gradient(traced) is None and not hidden_axes(traced, marked.call):
            self.tracer.warn_once(
                f"`{marked.name}` is another program in this trace of its step than in the first: "
                "it runs as it is, whatever memory it takes. A step must do the same each time "
                "that it is traced."
            )
        return None


# A context of JAX, not a variable: what was traced in one trace of a step must not come out of a
# cache of `jit` in another.
_current = jax.make_user_context(None)


def current_step() -> StepTrace | None:
    """The trace of a step round the caller, if there is one."""
    return _current.value


def run_step(
    step: StepTrace | None,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The results of a step under a trace, which says how its marks and its updates run."""
    layout = layout_of(step)
    with within(step):
        if layout.changes_the_step:
            return with_layout(fun, args, kwargs, layout)
        return fun(*args, **kwargs)


def layout_of(step: StepTrace | None) -> UpdateLayout:
    """How the updates of a step run in a trace."""
    return step.layout if isinstance(step, Applying) else AS_TRACED


def within(step: StepTrace | None) -> contextlib.AbstractContextManager[None]:
    """What is called under it is part of a trace of a step; of none where it is None."""
    return _current(step)


class MarkSource(Source):
    """The plans of a mark: those of the step round it."""

    @property
    def plans_here(self) -> bool:
        """Whether the mark stands in a step."""
        return _current.value is not None

    def traced(self, marked: Marked) -> Traced:
        """The trace of a call, as the step round it plans."""
        step = _current.value
        step.note_call(marked)
        return step.tracer.traced(marked)

    def outputs(self, traced: Traced, marked: Marked) -> Sequence[Any] | None:
        """Flat outputs of the function in this trace of the step."""
        step = _current.value  # none where a derivative is taken of the step itself, later
        return None if step is None else step.outputs(traced, marked)
