"""A function is staged once, by one list of passes, and each value that is written has one name."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import pytest
from networks import args, net, specs

import monet_jax
from monet_jax.compiler.targets import resolve_target
from monet_jax.ir import compat
from monet_jax.tracing import pipeline, traced
from monet_jax.tracing.passes.draft import Passes, Place
from monet_jax.tracing.trace import trace_for

CPU = resolve_target("cpu")


@pytest.fixture
def stagings(monkeypatch):
    """The lengths of nested scans of each program that is staged."""
    found, plain = [], traced.stage

    def counted(program, derivative, nested_lengths):
        found.append(nested_lengths)
        return plain(program, derivative, nested_lengths)

    monkeypatch.setattr(traced, "stage", counted)
    return found


def test_planning_and_running_stage_a_function_once(stagings):
    f = monet_jax.remat(net, budget=0.6, cache=False)
    for _ in range(2):
        jax.grad(f)(*args())
    assert stagings == [None]


def test_a_stored_plan_stages_what_it_is_for_and_nothing_else(stagings):
    plan = monet_jax.plan(net, *specs(), budget=0.6)
    stagings.clear()
    f = plan.apply(net)
    for _ in range(2):
        jax.grad(f)(*args())
    assert stagings == [None]


def mixed(params, x):
    """A loop with a conditional in its body, a conditional, and stages that compute a mask each."""

    def layer(w):
        return lambda x: jnp.sin(x @ w)

    def step(x, w):
        return x + jax.lax.cond(x[0, 0] > 0, layer(w), layer(2 * w), x), None

    x = jax.lax.scan(step, x, jnp.stack(params))[0]
    x = jax.lax.cond(x[0, 0] > 0, layer(params[0]), layer(params[1]), x)
    mask = jnp.tril(jnp.ones(x.shape))
    for w in params:
        x = x + jnp.sin(jnp.sin(x @ w) @ w) * mask
    return jnp.mean(x**2)


@pytest.fixture(scope="module")
def staged():
    return trace_for(CPU, mixed, specs()).staged()


def test_every_value_that_stages_write_has_one_name(staged):
    written = [[i for e in stage.equations for i in e.outputs] for stage in staged.stages]
    times = collections.Counter(i for some in written for i in {*some})
    assert staged.loops and staged.choices and max(times.values()) > 1
    assert staged.names.keys() == times.keys()
    assert len({*staged.names.values()}) == len(times)
    assert staged.values == {name: i for i, name in staged.names.items()}
    first = {i: s for s, some in reversed([*enumerate(written)]) for i in some}
    assert all(
        name == f"s{first[i]}.{written[first[i]].index(i)}" for name, i in staged.values.items()
    )


def test_the_program_lists_what_the_stages_run_once_and_in_order(staged):
    known = {*staged.program.inputs, *staged.program.constants}
    listed = [i for e in staged.program.equations for i in e.outputs]
    assert sorted(listed) == sorted(staged.writer)
    # What loops and conditionals hand on has no equation of its own.
    wholes = [*staged.loops, *staged.all_choices()]
    known.update(i for x in wholes for i in x.equation.outputs)
    known.update(v for x in staged.all_choices() for b in x.branches for v in b.inputs)
    known.update(
        x.offsets[k] + v
        for x in staged.loops
        for k in range(x.blocks)
        for v in x.body.program.inputs
    )
    for equation in staged.program.equations:
        assert known.issuperset(equation.reads)
        known.update(equation.outputs)


def test_the_values_of_every_block_have_the_names_of_the_body(staged):
    (loop,) = staged.loops
    for k in range(loop.blocks):
        table = staged.names_in_body(loop, k)
        own = {name: x for name, x in table.items() if x not in loop.carried_inputs}
        assert sorted(own.values()) == sorted(loop.body.values)
        for name, x in own.items():
            assert loop.atom(k, loop.body.values[x]) == staged.values[name]


def test_the_same_passes_run_on_functions_bodies_and_branches(monkeypatch):
    ran = []

    def noted(one):
        def run(draft):
            ran.append((draft.place, one.name))
            one.run(draft)

        return dataclasses.replace(one, run=run)

    passes = Passes(pipeline.PASSES.program, tuple(map(noted, pipeline.PASSES.stages)))
    monkeypatch.setattr(pipeline, "PASSES", passes)
    made = trace_for(CPU, mixed, specs()).staged()
    counts = collections.Counter(ran)
    # Two branches in the body of the loop, and two behind it.
    for place, times in (Place.FUNCTION, 1), (Place.BODY, 1), (Place.BRANCH, 4):
        own = [x.name for x in passes.stages if place in x.places]
        assert len(own) >= 4 and all(counts[place, name] == times for name in own)
        assert times > 1 or [name for where, name in ran if where is place] == own
    assert made.loops and made.choices and made.loops[0].body.choices


def test_the_fingerprint_tells_programs_from_cuts(staged, monkeypatch):
    again = trace_for(CPU, mixed, specs())
    assert again.fingerprint == staged.fingerprint
    program, cut = staged.fingerprint.split("/")
    assert again.program_hash == program
    nested = again.staged((2,)).fingerprint.split("/")
    assert nested[0] == program and nested[1] != cut
    monkeypatch.setattr("monet_jax.tracing.passes.loops.MAX_BLOCKS", 2)
    blocks = trace_for(CPU, mixed, specs()).fingerprint.split("/")
    assert blocks[0] == program and blocks[1] not in (cut, nested[1])


def test_what_jax_traces_apart_has_the_line_that_calls_it():
    def clipped(x):
        return jax.nn.leaky_relu(x)

    def loss(x):
        x, _ = jax.lax.scan(lambda c, _: (clipped(c), None), x, None, length=3)
        x = jax.lax.cond(x[0, 0] > 0, clipped, lambda y: jnp.where(y > 0, y, 0.0), x)
        return jnp.sum(clipped(x))

    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    staged = trace_for(CPU, loss, [shape]).staged()
    inner = [e for loop in staged.loops for e in loop.body.program.equations]
    found = {e.primitive: [] for e in (*staged.program.equations, *inner)}
    for e in (*staged.program.equations, *inner):
        found[e.primitive].append(compat.source_of(e.eqn))
    assert len(found["select_n"]) >= 2  # one in the loop, one behind it
    assert all(line.startswith(__file__) for lines in found.values() for line in lines), found
