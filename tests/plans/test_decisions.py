"""Decisions are what the backward reads, and their seconds are those of replay."""

import dataclasses
import functools as ft

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import planners
from monet_jax.analyzer.pins import Pins
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import TracedJudge
from monet_jax.planning.options import PlanOptions
from monet_jax.plans.decisions import TURNABLE
from monet_jax.plans.tables import value_rows
from planners.plan import Region
from planners.regions.simple_plans import certified, saving_all

LAYERS = 3


def loss(weights, x):
    for up, down in weights:
        hidden = checkpoint_name(x @ up, "up")
        x = x + checkpoint_name(jnp.sin(hidden) @ down, "down")
    return jnp.sum(x**2)


@ft.cache
def judge():
    pair = jax.ShapeDtypeStruct((64, 256), "float32"), jax.ShapeDtypeStruct((256, 64), "float32")
    args = [pair] * LAYERS, jax.ShapeDtypeStruct((512, 64), "float32")
    traced = PlanOptions(operators="none").traced(loss, args)
    return TracedJudge(traced, resolve_target("cpu"), Pins())


def mixed(graph):
    """Every other stage saves all by name; the last one is left alone."""
    last = len(graph.stages) - 1
    some = planners.save_nothing(graph).regions
    named = (saving_all(graph, Region(s, s)) if s % 2 else x for s, x in enumerate(some[:-1]))
    return certified(graph, (*named, Region(last, last, alone=True)), planner="", bound_seconds=0)


PLANS = {"all": planners.save_all, "nothing": planners.save_nothing, "mixed": mixed}


def rows_of(name):
    plan = PLANS[name](judge().graph)
    return plan, value_rows(judge().staged, judge().graph, plan)


def test_values_that_the_backward_reads_are_kept_passed_or_run_again():
    named = {
        name: {(r.checkpoint_name, r.decision) for r in _before_the_last(rows_of(name)[1])}
        for name in ("all", "nothing")
    }
    assert named["all"] == {("up", "kept"), ("down", "unread")}
    assert named["nothing"] == {("up", "recomputed"), ("down", "unread")}
    for name in PLANS:
        sums = [row for row in rows_of(name)[1] if row.primitive == "add"]
        assert [(r.decision, r.reader - r.stage) for r in sums] == [("passed", 1)] * (LAYERS - 1)


def _before_the_last(rows):
    """Named values of all layers but the last, which the loss may be joined with."""
    last = max(row.stage for row in rows if row.checkpoint_name)
    return [row for row in rows if row.checkpoint_name and row.stage < last]


@pytest.mark.parametrize("name", PLANS)
def test_seconds_are_those_of_the_step_with_the_decision_turned_round(name):
    graph, (plan, rows) = judge().graph, rows_of(name)
    turned = [row for row in rows if row.recompute_seconds is not None]
    assert len(turned) >= LAYERS and {row.decision for row in turned} <= set(TURNABLE)
    for row in turned:
        seconds = {is_saved: _seconds(graph, plan, row, is_saved) for is_saved in (True, False)}
        assert row.recompute_seconds == pytest.approx(seconds[False] - seconds[True], abs=1e-12)
        now = row.decision != "recomputed"
        if row.decision != "kept":
            assert seconds[now] == pytest.approx(plan.seconds)
    assert any(row.recompute_seconds > 0 for row in turned)


def _seconds(graph, plan, row, is_saved):
    """Seconds of the step where the value is saved by name, or not, and all else stays."""
    regions = list(plan.regions)
    place = next(n for n, r in enumerate(regions) if r.first <= row.stage <= r.last)
    region = regions[place]
    region = saving_all(graph, region) if region.alone else region
    others = [name for name in region.saved if name != row.name]
    saved = (*others, row.name) if is_saved else tuple(others)
    regions[place] = dataclasses.replace(region, saved=saved)
    return planners.replay(graph, regions).seconds
