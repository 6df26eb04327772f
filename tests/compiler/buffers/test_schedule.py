"""What iterations of a loop keep, by the model's buffers and in compiled programs."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from graphs import Builder
from jax import lax

import planners
from monet_jax import zoo
from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.buffers import schedule
from monet_jax.compiler.buffers.model import predicted_temp_bytes
from monet_jax.compiler.compile import compile_bytes
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of
from monet_jax.planning.step import step_to_compile
from monet_jax.transformer import scan
from monet_jax.transformer.transform import transform
from planners.plan import Region
from planners.regions.simple_plans import minimal_region

CPU = resolve_target("cpu")
TRIPS, BATCH, WIDTH, DEPTH, DRAWS = 16, 32, 256, 3, 64


def recurrent(layers, inputs):
    """LSTMs, one after the other: what a step adds up is both carried on and read again."""
    for from_input, from_hidden in layers:

        def step(state, x, from_input=from_input, from_hidden=from_hidden):
            cell, hidden = state
            gates = x @ from_input + hidden @ from_hidden
            enter, forget, leave, new = jnp.split(gates, 4, axis=1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (cell, hidden), hidden

        start = jnp.zeros((BATCH, WIDTH))
        inputs = lax.scan(step, (start, start), inputs)[1]
    return jnp.sum(inputs**2)


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def compiled_and_modelled(traced, graph, output_bytes, regions):
    """Bytes of temporaries of a plan."""
    decisions = planners.Plan(tuple(regions), 0, 0.0, 0, 0.0, "test")
    step = step_to_compile(traced, transform(traced.staged(), decisions))
    modelled = predicted_temp_bytes(graph, regions, output_bytes)
    return compile_bytes(*step, target=CPU).temp_bytes, modelled


def test_what_an_iteration_saves_and_passes_on_is_stacked_twice(monkeypatch):
    args = [(array(WIDTH, 4 * WIDTH),) * 2] * DEPTH, array(TRIPS, BATCH, WIDTH)
    traced = trace_loss(recurrent, args, CPU)
    judge = compiled_plans_of(traced, CPU, Pins()).judge
    graph = judge.graph

    def saving(*names):
        return [
            Region(s, s, tuple(graph.values[i].name for i in written(s, names)))
            for s in range(len(graph.stages))
        ]

    def written(s, names):
        ops = graph.stages[s].forward if s in graph.looped else ()
        return [i for op in ops if op.name in names for i in op.outputs]

    def more(*names):
        """Bytes that it takes to save something more, compiled and modelled."""
        plans = (saving(*some) for some in (names, ()))
        some, none = (
            compiled_and_modelled(traced, graph, judge.output_bytes, plan) for plan in plans
        )
        return [a - b for a, b in zip(some, none, strict=True)]

    cells = DEPTH * 4 * TRIPS * BATCH * WIDTH
    assert more("add") == pytest.approx([cells, cells], rel=0.01)
    compiled, modelled = more("dot_general")
    assert modelled == pytest.approx(compiled, rel=0.01) and compiled > 7 * cells

    def once(in_loops, written, late):
        yield (in_loops[written[0]], written[1]), max(late.values())

    monkeypatch.setattr(schedule, "_stacks_with", once)
    compiled, modelled = more("add")
    assert modelled < 0.1 * compiled


def test_gradients_of_a_loop_begin_no_earlier_than_its_backward(monkeypatch):
    problem = zoo.build("lstm", scale="tiny")

    def compiled():
        traced = trace_loss(problem.loss, problem.args, CPU)
        judge = compiled_plans_of(traced, CPU, Pins()).judge
        regions = [Region(s, s) for s in range(len(judge.graph.stages))]
        return compiled_and_modelled(traced, judge.graph, judge.output_bytes, regions)[0]

    late = compiled()
    monkeypatch.setattr(
        scan,
        "_with_late_zeros",
        lambda carry, *like: (carry, *([jnp.zeros_like(x) for x in some] for some in like)),
    )
    assert late < 0.9 * compiled()


def two_loops(**more):
    """Of four iterations each; those of the second keep 100 bytes, a result is of the first."""
    make = Builder()
    late = range(4, 8)
    forward = [[make.op(f"f{n}", "", f"x{n}:{100 if n in late else 0}")] for n in range(8)]
    backward = [[make.op(f"g{n}", f"x{n}", "result:0!" if n == 3 else "")] for n in range(8)]
    loops = planners.Loop(0, 1, 4, **more), planners.Loop(4, 1, 4)
    return dataclasses.replace(make.graph(forward, backward), loops=loops)


@pytest.mark.parametrize(
    ("split", "result", "expected"),
    [
        (None, 399, 400),  # a stack lies in a result as a whole,
        (None, 400, 0),
        (2, 399, 200),  # or does not,
        (2, 199, 400),
        (1, 399, 100),  # and one lies there at a time.
    ],
)
def test_iterations_that_one_body_runs_have_one_stack(split, result, expected):
    graph = two_loops()
    # Iterations before the split save by name, the others are left alone.
    regions = [Region(n, n) for n in range(4)] + [
        Region(n, n, *([(f"x{n}",)] if split and n - 4 < split else [(), True]))
        for n in range(4, 8)
    ]
    assert predicted_temp_bytes(graph, regions, {"result": result}) == expected


def test_nothing_lies_in_a_result_of_a_loop_that_begins_as_zeros():
    regions = [Region(n, n, alone=n > 3) for n in range(8)]
    early, split = two_loops(zeros_first=True), [Region(0, 0, alone=True), *regions[1:]]

    def bytes_of(graph, regions):
        return predicted_temp_bytes(graph, regions, {"result": 400})

    assert bytes_of(two_loops(), regions) == bytes_of(early, split) == 0 < bytes_of(early, regions)


@pytest.mark.parametrize(("zeros_first", "expected"), [(False, 0), (True, 400)])
def test_nothing_lies_in_the_gradient_of_a_table_where_its_zeros_come_first(zeros_first, expected):
    make = Builder()
    forward = [[make.op("gather", "", "rows:0")], [make.op("f", "rows", "x:400")]]
    backward = [[make.op("scatter-add", "rows", "result:0!")], [make.op("g", "x", "")]]
    graph = dataclasses.replace(make.graph(forward, backward), zeros_first=zeros_first)
    regions = [Region(0, 0, alone=True), Region(1, 1, alone=True)]
    assert predicted_temp_bytes(graph, regions, {"result": 400}) == expected


def dropped_out(weights, inputs, key):
    """A loop of dense layers, each of which drops out what it makes several times over."""

    def layer(x, weight):
        weight, key = weight
        kept = jax.random.bernoulli(key, 0.5, (DRAWS, *x.shape))
        return jnp.mean(jnp.where(kept, jnp.tanh(x @ weight), 0.0), axis=0), None

    return jnp.sum(lax.scan(layer, inputs, (weights, jax.random.split(key, len(weights))))[0] ** 2)


def test_loops_that_draw_random_bits_share_their_counters(monkeypatch):
    args = array(4, WIDTH, WIDTH), array(BATCH, WIDTH), jax.eval_shape(lambda: jax.random.key(0))
    traced = trace_loss(dropped_out, args, CPU)
    judge = compiled_plans_of(traced, CPU, Pins()).judge
    again = [Region(s, s) for s in range(len(judge.graph.stages))]
    compiled, modelled = compiled_and_modelled(traced, judge.graph, judge.output_bytes, again)
    assert modelled == pytest.approx(compiled, rel=0.04)
    monkeypatch.setattr(schedule, "_counters", lambda *_: ())
    _, modelled = compiled_and_modelled(traced, judge.graph, judge.output_bytes, again)
    assert modelled == pytest.approx(compiled - 8 * DRAWS * BATCH * WIDTH, rel=0.04)


def gelus(weights, x):
    """The derivative of a `gelu` reads its `tanh`, as its value does."""
    for w in weights:
        x = jax.nn.gelu(x) @ w
    return jnp.mean(x**2)


@pytest.mark.parametrize("first, last", [(2, 3), (1, 4)])
def test_what_runs_again_keeps_costly_work_for_its_backward(first, last):
    traced = trace_loss(gelus, ([array(256, 256)] * 6, array(1024, 256)), CPU)
    plans = compiled_plans_of(traced, CPU, Pins())
    graph, outputs = plans.judge.graph, plans.judge.output_bytes
    singles = plans.calibration_plan.regions
    together = minimal_region(graph, first, last)
    regions = *singles[:first], together, *singles[last + 1 :]
    compiled, modelled = compiled_and_modelled(traced, graph, outputs, regions)
    assert modelled == pytest.approx(compiled, rel=0.01)
    assert predicted_temp_bytes(_keeping_nothing_again(graph), regions, outputs) < 0.9 * compiled


def _keeping_nothing_again(graph):
    stages = (
        dataclasses.replace(
            stage, forward=tuple(dataclasses.replace(x, kept_again=()) for x in stage.forward)
        )
        for stage in graph.stages
    )
    return dataclasses.replace(graph, stages=tuple(stages))


def test_what_is_kept_again_waits_for_the_op_that_reads_it():
    """Not where the stage is left alone, or only a region inside runs its backward."""
    make = Builder()
    forward, backward = [], []
    for n in range(2):
        keeps = {"kept_again": ((10, 1), (7, 0))}
        forward.append([make.op(f"f{n}", f"x{n - 1}" if n else "", f"x{n}:0", **keeps)])
        backward.append(
            [make.op(f"g{n}", f"x{n}", ""), make.op(f"h{n}", "", "", workspace_bytes=5)]
        )
    graph = make.graph(forward, backward)

    def taken(*regions):
        return predicted_temp_bytes(graph, regions, {})

    alone = Region(0, 0, alone=True), Region(1, 1, alone=True)
    assert taken(*alone) == 5
    assert taken(Region(0, 0), alone[1]) == taken(Region(0, 0), Region(1, 1)) == 17
    assert taken(Region(0, 1)) == 34
    assert taken(Region(0, 1, inner=(Region(0, 0), Region(1, 1)))) == 17
    assert taken(Region(0, 1, inner=alone)) == 5


def scanned(weights, x):
    """Layers with more weights than activations, which a loop takes in slices."""

    def layer(x, matrices):
        for w in matrices:
            x = jnp.tanh(x @ w)
        return x, None

    return jnp.mean(lax.scan(layer, x, weights)[0] ** 2)


@pytest.mark.parametrize("length", [1, 3])
def test_slices_that_products_read_are_copies(length):
    traced = trace_loss(scanned, ([array(4, 512, 512)] * 3, array(128, 512)), CPU)
    judge = compiled_plans_of(traced, CPU, Pins()).judge
    graph, outputs = judge.graph, judge.output_bytes
    regions = [minimal_region(graph, s, s + length - 1) for s in range(0, 12, length)]
    regions.append(minimal_region(graph, 12))
    compiled, modelled = compiled_and_modelled(traced, graph, outputs, regions)
    stages = (dataclasses.replace(stage, sliced_bytes=0) for stage in graph.stages)
    fewer = dataclasses.replace(graph, stages=tuple(stages))
    assert modelled == pytest.approx(compiled, rel=0.15)
    assert predicted_temp_bytes(fewer, regions, outputs) == modelled - 3 * 2**20


def test_slices_live_from_the_start_of_an_iterations_backward():
    make = Builder()
    forward = [[make.op(f"f{n}", f"x{n - 1}" if n else "", f"x{n}:0")] for n in range(4)]
    backward = [[make.op(f"g{n}", f"x{n}", "")] for n in range(4)]
    graph = make.graph(forward, backward)
    stages = (dataclasses.replace(x, sliced_bytes=10**n) for n, x in enumerate(graph.stages))
    loops = (planners.Loop(0, 2, 2),)
    graph = dataclasses.replace(graph, stages=tuple(stages), loops=loops)
    buffers, runs = schedule.buffers_of(graph, [Region(n, n) for n in range(4)], {})
    own = {x.nbytes: (runs[x.start].stage, runs[x.stop].stage) for x in buffers}
    assert own == {1: (1, 0), 10: (1, 1), 100: (3, 2), 1000: (3, 3)}


@pytest.mark.parametrize(
    ("drawing", "expected"),
    [
        ({}, 10),
        ({0: 100}, 100),  # the work of later iterations is beside no counters,
        ({0: 100, 5: 100}, 110),  # unless some of the next loop draws from them again,
        ({0: 100, 5: 70}, 100),  # and not from others.
        ({0: 100, 1: 70}, 170),
        ({8: 100}, 10),  # Outside of loops, they are no array.
    ],
)
def test_counters_live_from_the_first_loop_that_draws_to_the_last(drawing, expected):
    make = Builder()
    forward, backward = [], []
    for n in range(9):
        more = {"workspace_bytes": 10 * (n == 4), "counter_bytes": drawing.get(n, 0)}
        forward.append([make.op(f"f{n}", "", f"x{n}:0", **more)])
        backward.append([make.op(f"g{n}", f"x{n}", "")])
    graph = make.graph(forward, backward)
    loops = planners.Loop(0, 1, 4), planners.Loop(4, 1, 4)
    graph = dataclasses.replace(graph, loops=loops)
    regions = [Region(n, n, alone=True) for n in range(9)]
    assert predicted_temp_bytes(graph, regions, {}) == expected
