"""A timeline is what replay says, however many runs and values it leaves out."""

import json

import numpy as np
import pytest
from networks import net, specs

import planners
from monet_jax.analyzer.analyze import analyze
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.plans import timeline
from monet_jax.plans.timeline import timeline_from_json, timeline_of
from monet_jax.seconds.attained import modelled
from monet_jax.tracing.trace import trace_for


@pytest.fixture(scope="module")
def step():
    """The planning graph of the network on CPU, the lines of its values, and a plan."""
    target = resolve_target("cpu")
    traced = trace_for(target, net, specs())
    graph, inverse = analyze(traced.staged(), modelled(target), backend_of("cpu"))
    return graph, inverse.source_of, planners.save_nothing(graph).regions


def test_all_of_it_is_what_replay_counts(step):
    graph, _, regions = step
    made, found = timeline_of(*step), planners.replay(graph, regions)
    assert made.live_bytes.tolist() == list(found.live_bytes)
    assert made.runs == len(made.samples) == len(found.schedule)
    assert made.samples[made.peak].run == found.peak_run
    again = [m for m in made.samples if m.phase == "again"]
    assert len(again) == made.runs - len(graph.ops) > 0


def test_less_of_it_keeps_the_peak_and_every_sum(step, monkeypatch):
    graph, _, regions = step
    monkeypatch.setattr(timeline, "MAX_SAMPLES", 7)
    monkeypatch.setattr(timeline, "BANDS", 5)
    made, found = timeline_of(*step), planners.replay(graph, regions)
    assert len(made.samples) == 7 and len(made.bands) <= 5 and made.rest
    assert made.live_bytes.tolist() == [found.live_bytes[m.run] for m in made.samples]
    assert made.live_bytes.max() == found.peak_bytes


def test_backward_values_know_the_line_that_they_differentiate(step):
    made = timeline_of(*step)
    first = net.__code__.co_firstlineno
    lines = {f"networks.py:{first + n}" for n in range(2, 5)}
    gradients = [band for band in made.bands if band.kind == "gradient" and band.name]
    assert gradients
    assert all(band.source.rpartition("/")[2] in lines for band in gradients)


def test_text_and_back(step):
    made = timeline_of(*step)
    again = timeline_from_json(json.loads(json.dumps(made.to_json())))
    assert again == made and np.array_equal(again.live_bytes, made.live_bytes)


DAMAGED = {
    "no object": lambda d: [],
    "no bands": lambda d: d.pop("bands") and d,
    "outside": lambda d: d["bands"][0].__setitem__(6, len(d["samples"])) or d,
    "unknown kind": lambda d: d["bands"][0].__setitem__(0, "borrowed") or d,
    "unknown phase": lambda d: d["samples"][0].__setitem__(1, "sideways") or d,
    "short row": lambda d: d["samples"][0].pop() and d,
    "half a byte": lambda d: d["bands"][0].__setitem__(7, 0.5) or d,
    "no sample": lambda d: {**d, "samples": [], "bands": [], "rest": {}},
    "rest too short": lambda d: {**d, "rest": {"saved": [1]}},
    "rest is a list": lambda d: {**d, "rest": []},
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_data_is_refused(kind, step):
    data = DAMAGED[kind](timeline_of(*step).to_json())
    with pytest.raises(ValueError):
        timeline_from_json(data)
