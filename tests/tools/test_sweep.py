"""A sweep states the compiled bytes of each program, and its picture shows all of them."""

import dataclasses

import jax
import pytest
from networks import by_hand, compiled, net, specs
from thinning import thinned

import monet_jax
from monet_jax.tools import sweep, sweep_result


def fails(params, x):
    raise RuntimeError("no such weights")


@pytest.fixture(scope="module")
def found():
    baselines = {"layers: nothing": by_hand, "broken": fails}
    return monet_jax.sweep(net, *specs(), points=4, baselines=baselines)


def test_programs_take_what_the_compiler_says(found):
    by_name = {point.program: point for point in found.points}
    assert by_name["plain"].total_bytes == compiled(net, *specs())
    assert by_name["layers: nothing"].total_bytes == compiled(by_hand, *specs())
    whole = jax.checkpoint(net, policy=jax.checkpoint_policies.dots_saveable)
    assert by_name["jax.checkpoint: dots"].total_bytes == compiled(whole, *specs())
    assert {"jax.checkpoint: nothing", "jax.checkpoint: dots_no_batch"} <= set(by_name)


def test_plans_keep_falling_budgets_at_rising_cost(found):
    planned, (plain,) = found.of_kind("planned"), found.of_kind("plain")
    assert len(planned) == 4 and planned[0].total_bytes == plain.total_bytes
    budgets = [point.budget_bytes for point in planned]
    assert budgets == sorted(budgets, reverse=True) and len(set(budgets)) == 4
    assert all(point.total_bytes <= point.budget_bytes for point in planned)
    seconds = [point.seconds for point in planned]
    assert seconds == sorted(seconds) and seconds[-1] > plain.seconds
    assert planned[-1].flops > plain.flops == planned[0].flops
    below = int(0.97 * budgets[-1])
    with pytest.raises(monet_jax.InfeasibleBudget):
        monet_jax.plan(net, *specs(), budget=below, cache=False)


def test_a_baseline_that_fails_is_a_row(found):
    (broken,) = [point for point in found.points if point.program == "broken"]
    assert "no such weights" in broken.error and broken.total_bytes is None
    assert "broken" not in {point.program for point in found.of_kind("baseline")}
    assert "failed: RuntimeError: no such weights" in str(found)


def test_file_and_back(found, tmp_path):
    found.save(tmp_path / "sweep.json")
    assert monet_jax.load_sweep(tmp_path / "sweep.json") == found
    for text in ("", "[1]", '{"format": 0}', '{"format": 1, "points": [{"a": 1}]}'):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(ValueError, match="does not hold a stored sweep"):
            monet_jax.load_sweep(tmp_path / "sweep.json")


@pytest.mark.parametrize("against", ["seconds", "flops"])
def test_every_program_is_in_the_picture(found, against):
    pytest.importorskip("matplotlib")
    axes = found.plot(against=against)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    baselines = [point.program for point in found.of_kind("baseline")]
    assert labels == ["planned", *baselines, "plain"]
    (plain,) = found.of_kind("plain")
    drawn = {tuple(point) for line in axes.get_lines() for point in line.get_xydata()}
    ratios = [
        (p.total_bytes, 100 * (getattr(p, against) / getattr(plain, against) - 1))
        for p in found.points
        if not p.error
    ]
    assert drawn == set(ratios)
    low, high = axes.get_xlim()
    assert all(low < nbytes < high for nbytes, _ in ratios)
    with pytest.raises(ValueError, match="against"):
        found.plot(against="bytes")


def test_memory_over_the_step_is_in_the_picture():
    pytest.importorskip("matplotlib")
    plan = monet_jax.plan(net, *specs(), budget=0.6)
    axes = plan.plot()
    line = next(x for x in axes.get_lines() if x.get_label() == "as written")
    assert line.get_ydata().max() == plan.before.live_bytes.max() + plan.fixed_bytes
    tops = [area.get_paths()[0].vertices[:, 1].max() for area in axes.collections]
    assert max(tops) == plan.after.live_bytes.max() + plan.fixed_bytes
    texts = [text.get_text() for text in axes.texts]
    assert any(text.startswith("budget ") for text in texts)
    assert any(text.startswith("compiled ") for text in texts)
    with pytest.raises(ValueError, match="make it again"):
        dataclasses.replace(plan, after=None).plot()


@pytest.mark.parametrize("ending", thinned([".svg", ".png", ".pdf"], ".svg"))
def test_the_same_picture_is_the_same_file(found, ending, tmp_path):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in paths:
        found.save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes() and paths[0].stat().st_size > 5000


def test_what_cannot_be_is_refused_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "compiled_plans_of", None)
    for points in (1, 2.0, True):
        with pytest.raises(ValueError, match="points"):
            monet_jax.sweep(net, *specs(), points=points)
    with pytest.raises(ValueError, match=r"must end in one of .json, .svg"):
        sweep_result.check_path(tmp_path / "sweep.gif")
