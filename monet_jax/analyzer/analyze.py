"""Builds the planning graph of a staged program, and what leads from it back to the program.

`joint` finds the ops of a stage, once for all stages that are isomorphic. `builder`, `loops` and
`choices` put them together.
"""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planners.graph import Chip, Graph, Op, Value
from planners.graph import Choice as PlannerChoice
from planners.graph import Stage as PlannerStage

from ..compiler.backend import Backend
from ..ir import compat
from ..ir.program import Program, parameters_of
from ..ir.stage import Stage
from ..seconds.prices import Prices
from ..tracing.conditionals import Choice
from ..tracing.staged import StagedProgram
from .builder import add_backward, add_forward
from .choices import (
    enter_branch,
    enter_branch_backward,
    expect_choice,
    leave_branch,
    leave_branch_backward,
)
from .graph_state import GraphState, Place
from .inverse import InverseData
from .joint import Joint, joint_of
from .loops import (
    close_loop,
    close_loop_backward,
    expect_loop,
    iterations_of,
    open_loop,
    open_loop_backward,
    price_saving,
    with_slices,
    with_stacks,
)
from .pins import Pins, find, saved_by_name

NO_PINS = Pins()


def analyze(
    staged: StagedProgram,
    prices: Prices,
    backend: Backend,
    pins: Pins = NO_PINS,
    results: Sequence[int] | None = None,
) -> tuple[Graph, InverseData]:
    """The planning graph of a program's value and gradient, and what leads back from it.

    Arguments:
        staged: the program.
        prices: what ops take on the target.
        backend: the compiler that is planned for.
        pins: values that must be saved or must be recomputed.
        results: bytes of each result of the step that uses the gradients, and is compiled; None
            where the gradients are the results. A gradient without a result of its size is a
            temporary, gone once it is used; the others lie in the results that replace them.

    Raises:
        ValueError: a pin names nothing in the program.
    """
    choices = [*staged.all_choices()]
    program, stages = staged.program, staged.stages
    pinned = find(staged, pins)
    cloned = _cloned(stages)
    saved = saved_by_name(staged, pins)
    keys = [_key(staged, cloned, saved, stage) for stage in stages]
    in_loops = {key for loop in staged.loops for key in keys[loop.first : loop.stop]}
    last = None if keys[-1] in in_loops else f"{keys[-1]}:last"
    keys[-1] = last or keys[-1]
    joints: dict[str, tuple[Stage, Joint]] = {}
    for key, stage in zip(keys, stages, strict=True):
        if key not in joints:
            invariant = staged.invariant_values if key in in_loops else None
            at_once = key == last
            with compat.within_axes(staged.axes):
                joint = joint_of(program, stage, prices, backend, saved, invariant, at_once)
            joints[key] = stage, joint
    arguments = {*program.inputs, *program.constants}
    returned = {i for i in program.outputs if isinstance(i, int)}
    further: list[int] = []
    if results is not None:
        arguments, further = _matched(program, staged.derivative.inputs & arguments, results)
    state = GraphState(staged, pinned, cloned, backend, arguments, returned)
    templates = [joints[key] for key in keys]
    _build(state, staged, choices, templates)
    if further:
        keys = [f"{keys[0]}:further results", *keys[1:]]
        written = tuple(state.new(nbytes, returned=True) for nbytes in further)
        state.backwards[-1].append(Op("update", (), written, 0.0))
    values = state.stored_values()
    price_saving(state, values, prices)
    of_stages = [joint for _, joint in templates]
    graph = _graph(state, choices, keys, tuple(values), of_stages, _chip(backend, prices))
    graph = with_stacks(graph, staged, of_stages, prices)
    graph = with_slices(graph, staged, of_stages, backend)
    return graph, InverseData(_as_returned(state), state.lines, state.seconds_by_source)


def _chip(backend: Backend, prices: Prices) -> Chip | None:
    """Where temporaries of short lives stay on the target."""
    if not backend.chip_fills:
        return None
    fill_seconds = backend.on_chip_bytes / prices.roofline.bandwidth_bytes_per_second
    return Chip(int(backend.on_chip_bytes), backend.chip_fills * fill_seconds)


def _as_returned(state: GraphState) -> dict[str, int]:
    """The bytes of the step's results by name, gradients behind others and in their order."""
    gradients = (state.gradients[i] for i in state.program.inputs if i in state.gradients)
    place = {state.values[value].name: n for n, value in enumerate(gradients)}
    return dict(sorted(state.output_bytes.items(), key=lambda x: place.get(x[0], -1)))


def _graph(
    state: GraphState,
    choices: Sequence[Choice],
    keys: Sequence[str],
    values: tuple[Value, ...],
    joints: Sequence[Joint],
    chip: Chip | None,
) -> Graph:
    """The graph of a state that has all stages, with its values as they are stored."""
    staged = state.staged
    made = zip(state.forwards, reversed(state.backwards), keys, staged.stages, joints, strict=True)
    return Graph(
        values,
        tuple(
            PlannerStage(
                _title(stage),
                _fitted(f, values),
                _fitted(b, values),
                _with_count(key, f),
                # The backward of the last stage follows at once, so that nothing waits for it.
                alone_bytes=0 if stage is staged.stages[-1] else joint.waiting_bytes,
                may_be_alone=not _must_recompute(stage, state.pinned),
                result_bytes=state.results_of(b),
            )
            for f, b, key, stage, joint in made
        ),
        state.backend.recomputes_late,
        tuple(iterations_of(x, state.backend) for x in staged.loops),
        tuple(PlannerChoice(tuple(b.first for b in x.branches), x.stop) for x in choices),
        uniform_blocks=True,
        zeros_first=state.backend.zeroes_results_first,
        spared_seconds=state.spared_seconds,
        chip=chip,
    )


def _build(
    state: GraphState,
    staged: StagedProgram,
    choices: Sequence[Choice],
    joints: Sequence[tuple[Stage, Joint]],
) -> None:
    """Adds all stages, forward and then backward; `joints` are template stages and their ops."""
    starts = {loop.first: loop for loop in staged.loops}
    ends = {loop.stop - 1: loop for loop in staged.loops}
    branches = [(choice, b) for choice in choices for b in range(len(choice.branches))]
    entries, exits = collections.defaultdict(list), collections.defaultdict(list)
    for choice, b in branches:
        entries[choice.branches[b].first].append((choice, b))
        exits[choice.branches[b].stop - 1].insert(0, (choice, b))  # the inner one ends first
    for loop in staged.loops:
        expect_loop(state, loop)
    for choice in choices:
        expect_choice(state, choice)
    places = [_place(choices, s) for s in range(len(staged.stages))]
    for s, stage in enumerate(staged.stages):
        opened = open_loop(state, starts[s], joints[s][1]) if s in starts else []
        for branch in entries[s]:
            enter_branch(state, *branch)
        add_forward(state, stage, *joints[s], places[s], opened)
        for branch in exits[s]:
            leave_branch(state, *branch)
        if s in ends:
            close_loop(state, ends[s])
    for s, stage in reversed([*enumerate(staged.stages)]):
        opened = []
        if s in ends:
            opened = open_loop_backward(state, ends[s], joints[ends[s].first][1])
        for branch in reversed(exits[s]):
            enter_branch_backward(state, *branch)
        add_backward(state, stage, *joints[s], places[s], opened)
        for branch in reversed(entries[s]):
            leave_branch_backward(state, *branch)
        if s in starts:
            close_loop_backward(state, starts[s])


def _matched(
    program: Program, arguments: Iterable[int], results: Sequence[int]
) -> tuple[set[int], list[int]]:
    """The arguments whose gradients have results of their size, and the further results."""
    further, found = collections.Counter(results), set()
    for i in sorted(arguments):
        if further[program.nbytes(i)] > 0:
            further[program.nbytes(i)] -= 1
            found.add(i)
    return found, sorted(further.elements())


def _place(choices: Sequence[Choice], s: int) -> Place:
    """Where a stage stands in the choices."""
    around = [choice for choice in choices if choice.first <= s < choice.stop]
    odds = math.prod(1 / len(choice.branches) for choice in around)
    return Place(odds, all(choice.branches[-1].first <= s for choice in around))


def _with_count(key: str, ops: Iterable[Op]) -> str:
    """A stage's key; a loop's first stage has another key if it begins with ops of the loop."""
    return f"{key}:{sum(len(op.outputs) for op in ops)}"


def _fitted(ops: Iterable[Op], values: Sequence[Value]) -> tuple[Op, ...]:
    """The ops; none reuses more bytes of its inputs than it writes."""
    found = []
    for op in ops:
        least = -sum(values[i].nbytes for i in op.outputs)
        implementations = (
            dataclasses.replace(
                implementation, workspace_bytes=max(implementation.workspace_bytes, least)
            )
            for implementation in op.alternatives
        )
        found.append(
            dataclasses.replace(
                op,
                workspace_bytes=max(op.workspace_bytes, least),
                alternatives=tuple(implementations),
            )
        )
    return tuple(found)


def _title(stage: Stage) -> str:
    paths = [str(e.name_stack) for e in stage.equations if str(e.name_stack)]
    notes = [e.apart for e in stage.equations if e.apart]
    return ", ".join((paths[0] if paths else "(no module)", *notes))


def _must_recompute(stage: Stage, pinned: Mapping[int, str]) -> bool:
    """Whether a pin says that something in a stage must be recomputed."""
    return any(pinned.get(i) == "recompute" for e in stage.equations for i in e.outputs)


def _cloned(stages: Sequence[Stage]) -> set[int]:
    """Values that several stages compute, each for itself."""
    count = collections.Counter(i for s in stages for e in s.equations for i in e.outputs)
    return {i for i, times in count.items() if times > 1}


def _key(staged: StagedProgram, cloned: set[int], saved: set[int], stage: Stage) -> str:
    """Equal for stages that differ in nothing but their value numbers."""
    program = staged.program
    local: dict[int, int] = {}

    def number(atom) -> Any:
        if not isinstance(atom, int):
            return f"literal:{getattr(atom.aval, 'dtype', '')}"
        return local.setdefault(atom, len(local))

    def is_kept(i: int) -> bool | None:
        """For a loop-invariant value: whether it is the one that is kept."""
        return staged.invariant_values[i] == i if i in staged.invariant_values else None

    given = program.given
    returned = {i for i in program.outputs if isinstance(i, int)}
    parts: list[Any] = [
        (number(i), program.avals[i].str_short(), i in given, i in stage.differentiated_inputs)
        for i in stage.inputs
    ]
    for e in stage.equations:
        outputs = [
            (number(i), program.avals[i].str_short(), i in cloned, i in saved, is_kept(i))
            for i in e.outputs
        ]
        parts.append((e.primitive, [number(i) for i in e.inputs], outputs, parameters_of(e.eqn)))
    parts.append([(number(i), i in returned) for i in stage.outputs])
    parts.append([number(i) for i in stage.differentiated_outputs])
    parts.append((stage.repeats, stage.hoisted))
    return hashlib.sha256(repr(parts).encode()).hexdigest()
