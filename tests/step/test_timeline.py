"""The timeline of a whole step: what is live at its peak, beside the compiler and in words."""

import json

import jax
import jax.numpy as jnp
import optax
import pytest
from hosted import layout_of, small_counts
from steps import ADAMW, DEPTH, STEPS, WIDTH, Step, layers, loss, normal, plain, updated
from thinning import thinned

import monet_jax
from monet_jax.compiler.backend import backend_of
from monet_jax.step.timeline.liveness import GRADIENT, liveness
from monet_jax.step.timeline.step_timeline import step_timeline
from monet_jax.step.updates.emission import with_layout
from monet_jax.step.updates.placement import placed_specs

SQUARE = WIDTH * WIDTH * 4


def planned(case: Step, share: float = 0.6) -> monet_jax.StepPlan:
    return monet_jax.plan(case.planned(share, max_compilations=2), case.state, case.batch)


@pytest.fixture(scope="module")
def made():
    return planned(plain())


def test_arguments_are_told_apart(made):
    at_peak = made.timeline.at_peak
    assert at_peak["parameters"] == DEPTH * SQUARE
    assert at_peak["optimizer state"] == 2 * DEPTH * SQUARE + 4  # moments and a count
    assert at_peak["other arguments"] == plain().batch.nbytes
    fixed = made.unplanned.total_bytes - made.unplanned.temp_bytes
    assert sum(at_peak[x] for x in ("parameters", "optimizer state", "other arguments")) == (
        made.unplanned.argument_bytes
    )
    assert at_peak["results"] == fixed - made.unplanned.argument_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(["plain", "clipped", "adapted", "of_nnx"], "adapted"))
def test_the_peak_is_near_that_of_the_compiled_step(name):
    plan = planned(STEPS[name](), 0.5)
    assert plan.plans
    assert max(plan.timeline.total_bytes) == pytest.approx(plan.compiled_bytes, rel=0.2)


def test_the_peak_is_in_the_backward_and_holds_what_was_saved(made):
    moment = made.timeline.moments[made.timeline.peak]
    assert moment.part == "backward" and "steps.py:" in moment.source
    saved = [x for x in made.timeline.largest if x.kind == "saved values"]
    assert saved[0].array == "float32[512,32]" and saved[0].nbytes == 512 * WIDTH * 4
    tight = planned(plain(), 0.4).timeline.at_peak["saved values"]
    assert tight < made.timeline.at_peak["saved values"]


def test_inside_a_loop_is_live_what_its_body_needs():
    timeline = planned(STEPS["accumulated"]()).timeline
    assert timeline.moments[timeline.peak].part == "forward and backward"
    assert timeline.at_peak["saved values"] >= 2 * 512 * WIDTH * 4


def gradients_at_once(optimizer) -> int:
    """The most bytes of gradients that are live at once."""

    def step(state, x):
        return updated(optimizer, state, jax.grad(loss)(state[0], x))

    state = layers(8), optimizer.init(layers(8))
    jaxpr = jax.jit(step).trace(state, normal(9, 16, WIDTH)).jaxpr
    return int(liveness(jaxpr, backend_of("cpu")).bytes_of(GRADIENT).max())


def test_gradients_are_gone_with_their_updates_unless_they_are_clipped():
    clipped = optax.chain(optax.clip_by_global_norm(1.0), ADAMW)
    assert gradients_at_once(ADAMW) <= 2 * SQUARE < 8 * SQUARE <= gradients_at_once(clipped)


def test_what_lives_on_the_host_is_not_on_the_device(monkeypatch):
    small_counts(monkeypatch)
    case, layout = plain(), layout_of(plain())
    args, _ = placed_specs(((jax.eval_shape(lambda: case.state), case.batch), {}), layout)
    run = jax.jit(lambda *args: with_layout(case.make(jax), args, {}, layout))
    timeline = step_timeline(run.trace(*args), backend_of("gpu:h100"), 0, 1)
    assert layout.host_bytes == 2 * DEPTH * SQUARE and timeline
    assert timeline.at_peak["optimizer state"] == 4  # the count


def test_a_value_is_live_from_its_op_to_its_last_reader():
    def program(x):
        kept = jnp.sort(x)
        other = jnp.sort(jnp.cumsum(x))
        return jnp.sum(other) + jnp.sum(kept @ kept)

    found = liveness(jax.make_jaxpr(program)(jnp.ones((8, 8))), backend_of("cpu"))
    names = [op.equation.primitive for op in found.ops]
    writes = {op.outputs[0]: n for n, op in enumerate(found.ops)}
    ends = {i: n for n, op in enumerate(found.ops) for i in op.inputs}
    for span in found.spans:
        assert writes[span.value] == span.start and ends[span.value] >= span.stop
    (first,) = [x for x in found.spans if x.start == names.index("sort")]
    assert names[first.stop] == "dot_general" and first.nbytes == 256


def test_it_is_told_in_text_in_json_and_on_a_page(made, tmp_path):
    text = str(made)
    assert "most is live at op" in text and "optimizer state" in text
    stored = json.loads(made.to_json())["timeline"]
    assert stored["peak"] == made.timeline.peak
    assert stored["live"]["gradients"] == [*made.timeline.live["gradients"]]
    made.to_html(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text()
    assert "The whole step, by the model" in page and page.count("<polygon") == 7
    assert page.index("<polygon") < page.index("</main>")
