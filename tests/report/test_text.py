"""A report states the decisions, what they cost, and why memory is left over."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import monet_jax
from monet_jax.plans.record import ValueRow
from monet_jax.report.text import report, verdict
from monet_jax.report.values import DECISIONS, merge_rows, reason, shorten_source

LAYERS = 6


def chain(weights, x):
    for i, w in enumerate(weights):
        with jax.named_scope(f"layer{i}"):
            x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


def arguments():
    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * LAYERS
    return weights, jax.ShapeDtypeStruct((1024, 64), jnp.float32)


@pytest.fixture(scope="module")
def planned():
    return monet_jax.plan(chain, *arguments(), budget=0.8, target="cpu", cache=False)


def test_verdict_is_the_first_line(planned):
    first = report(planned).splitlines()[0]
    assert first == verdict(planned)
    assert first.startswith("Keeps its budget of ")
    for word in ("compiled (", "predicted", "unplanned", "Overhead", "(proven"):
        assert word in first
    assert f"{planned.compilations} compilation" in first
    assert f"for cpu ({planned.compiler})" in first


def test_str_is_the_report(planned):
    assert str(planned) == report(planned)


def test_in_a_notebook_the_text_is_the_same(planned, monkeypatch):
    text = str(planned)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(planned) == text


def test_every_large_value_has_a_row_with_its_source(planned):
    text = report(planned)
    assert "1024x64" in text and "float32" in text
    assert "test_text.py:" in text
    assert "recomputed" in text


def test_every_name_that_is_shown_can_be_pinned(planned):
    """A value of a row is named, and a plan that pins it decides as asked."""
    row = next(x for x in planned.values if x.decision == "recomputed")
    (line,) = [x for x in report(planned).splitlines() if f" {row.name}" in f" {x} "]
    assert line.split()[0] == "recomputed"
    pins = {row.name: "save"}
    again = monet_jax.plan(chain, *arguments(), budget=1.0, target="cpu", pins=pins, cache=False)
    assert all(x.decision != "recomputed" for x in again.values if x.name == row.name)


def test_totals_add_up(planned):
    text = report(planned)
    for decision in {row.decision for row in planned.values}:
        count = sum(row.decision == decision for row in planned.values)
        assert any(
            line.startswith(f"{DECISIONS.get(decision, decision)}: ")
            and f" in {count} value" in line
            for line in text.splitlines()
        )


def test_no_colour_codes_and_no_cut_lines(planned):
    text = report(planned)
    assert "\x1b" not in text and "…" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_plain_plan_says_that_it_fits():
    plan = monet_jax.plan(chain, *arguments(), budget=1.0, target="cpu", cache=False)
    assert plan.decisions is None
    assert report(plan).startswith("Fits as it is in ")


def test_a_budget_that_is_mostly_unused_is_explained(planned):
    roomy = dataclasses.replace(
        planned,
        budget_bytes=2 * planned.compiled_bytes,
        next_faster=(planned.base_seconds, 3 * planned.compiled_bytes),
    )
    line = report(roomy).splitlines()[1]
    assert "uses 50.0% of the budget" in line and "overhead 0.00%" in line
    unknown = dataclasses.replace(roomy, next_faster=None)
    assert "no faster plan was compiled" in report(unknown).splitlines()[1]


def test_a_broken_budget_is_shouted(planned):
    broken = dataclasses.replace(planned, budget_bytes=planned.compiled_bytes - 1)
    assert report(broken).startswith("BREAKS its budget")


def test_an_unverified_plan_says_so(planned):
    unverified = dataclasses.replace(planned, compiled_bytes=None)
    assert "not verified" in verdict(unverified) and "not compiled" in verdict(unverified)


def row(path, stage, decision="saved", nbytes=1000):
    shape, source = (nbytes // 4,), "train.py:7"
    return ValueRow(
        f"v{stage}", nbytes, decision, "exact", shape, "float32", "tanh", path, source, stage
    )


def test_rows_of_equal_layers_are_one():
    merged = merge_rows([row(f"net/block{i}/mlp2", i) for i in range(12)])
    assert [(m.count, m.nbytes, m.path) for m in merged] == [(12, 12_000, "net/block*/mlp2")]


def test_rows_with_different_decisions_stay_apart():
    rows = [row(f"block{i}", i, "saved" if i < 3 else "recomputed") for i in range(4)]
    merged = merge_rows(rows)
    assert [(m.count, m.example.decision, m.path) for m in merged] == [
        (3, "saved", "block*"),
        (1, "recomputed", "block3"),
    ]


def test_rows_with_different_shapes_or_modules_stay_apart():
    assert len(merge_rows([row("a1", 0), row("a2", 1, nbytes=2000), row("b1", 2)])) == 3


def test_what_no_plan_changes_is_taken_apart(planned):
    weights, x = LAYERS * 64 * 64 * 4, 1024 * 64 * 4
    parts = {row.what: row.nbytes for row in planned.fixed}
    assert parts["arguments that are differentiated"] == weights
    assert parts["other arguments"] == x
    assert weights <= parts["results and gradients"] <= weights + 1024
    assert sum(parts.values()) == planned.fixed_bytes
    step = monet_jax.jit(lambda w, x: monet_jax.value_and_grad(chain)(w, x), budget=0.8)
    assert "No plan changes" not in str(monet_jax.plan(step, *arguments()))
    assert "No plan changes" in report(planned) and "256.0 KiB other arguments" in report(planned)


def test_every_reason_says_what_a_value_holds_or_costs(planned):
    rows = merge_rows(planned.values)
    reasons = {m.example.decision: reason(m, planned.base_seconds) for m in rows}
    assert "recomputed" in reasons and set(reasons) - {"recomputed"}
    again = [m for m in rows if m.example.decision == "recomputed" and m.recompute_seconds]
    total = sum(m.recompute_seconds for m in again)
    # Each is turned round alone: what several need counts once for each.
    assert total >= 0.99 * (planned.seconds - planned.base_seconds) > 0
    for merged in again:
        share = f"{merged.recompute_seconds / planned.base_seconds:.2%}"
        assert f"and the step {share} less" in reason(merged, planned.base_seconds)
        line = next(x for x in report(planned).splitlines() if merged.label in x)
        assert line.split()[:2] == ["recomputed", share]


@pytest.mark.parametrize(
    ("decision", "seconds", "said"),
    [
        ("saved", 0.01, "holds 1000 B; computing it again takes 1.00% of the step"),
        ("saved", None, "has to be computed once"),
        ("recomputed", 0.0, "makes nothing faster"),
        ("passed", None, "a later stage needs it"),
        ("unread", None, "the backward pass does not read it"),
    ],
)
def test_reasons_in_words(decision, seconds, said):
    value = dataclasses.replace(row("a", 0, decision), recompute_seconds=seconds)
    (merged,) = merge_rows([value])
    assert said in reason(merged, 1.0)


def test_small_values_are_summed(planned):
    small = [row(f"tiny{chr(97 + i)}", i, nbytes=8) for i in range(5)]
    text = report(dataclasses.replace(planned, values=(row("large", 0, nbytes=10**6), *small)))
    assert any(
        "5x" in line and "40 B" in line and "smaller values" in line for line in text.splitlines()
    )


def test_sources_are_short(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert shorten_source(f"{tmp_path}/train.py:3") == "train.py:3"
    assert shorten_source("/env/lib/site-packages/flax/linear.py:9") == "flax/linear.py:9"
    assert shorten_source("/elsewhere/model.py:1") == "/elsewhere/model.py:1"
