"""The page of a plan says what replay says, and needs no other file."""

import collections
import dataclasses
import html.parser
import itertools as it
import json
import re

import numpy as np
import pytest
from verified_plans import plan_and_graph

import monet_jax
import planners
from monet_jax import Plan
from monet_jax.compiler.budget import format_bytes
from monet_jax.plans.record import CompiledRow
from monet_jax.report.charts import COLOURS
from monet_jax.report.html import page, snippet
from monet_jax.report.peak import modules_at_peak, values_at_peak
from monet_jax.report.trade import trade_of


class Parser(html.parser.HTMLParser):
    """The parts of a page that the tests look at."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.data, self.open = "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open = dict(attrs).get("id") or tag

    def handle_data(self, data):
        if self.open == "mj-data":
            self.data += data
        self.texts.append(data.strip())

    def handle_endtag(self, tag):
        self.open = ""

    @property
    def charts(self) -> list[dict]:
        return json.loads(self.data)["charts"]

    def areas(self) -> list[list[tuple[str, str]]]:
        """For each chart, its areas: kind and path."""
        found = []
        for tag, attrs in self.tags:
            if "data-chart" in attrs:
                found.append([])
            if tag == "path" and "data-kind" in attrs:
                found[-1].append((attrs["data-kind"], attrs["d"]))
        return found


def parsed(plan: Plan) -> Parser:
    return Parser(page(plan))


def bytes_in(chart: dict) -> np.ndarray:
    """Bytes at each sample, by adding up what the page's script is given."""
    total = np.full(len(chart["samples"]), chart["fixed"])
    for _, start, stop, nbytes, *_ in chart["bands"]:
        total[start : stop + 1] += nbytes
    return total + sum(np.array(nbytes) for nbytes in chart["rest"].values())


def check_numbers(plan: Plan, graph: planners.Graph) -> None:
    """That both charts show the bytes that replay counts, and the table those of the peaks."""
    shown = parsed(plan)
    both = planners.save_all(graph).regions, plan.decisions.regions
    for chart, areas, regions in zip(shown.charts, shown.areas(), both, strict=True):
        live = np.array(planners.replay(graph, regions).live_bytes) + plan.fixed_bytes
        at = [run for run, *_ in chart["samples"]]
        assert bytes_in(chart).tolist() == live[at].tolist()
        assert chart["runs"] == len(live) and live[at].max() == live.max()
        assert f"peak {format_bytes(int(live.max()))}" in shown.texts
        heights = [float(y) for _, path in areas for y in re.findall(r",([-\d.]+)", path)]
        assert (1 - min(heights) / 1000) * chart["top"] == pytest.approx(live.max(), rel=2e-4)


def test_the_page_shows_what_replay_counts():
    check_numbers(*plan_and_graph())


@pytest.mark.parametrize("change", ["a band less", "a larger rest", "other arguments"])
def test_numbers_that_are_wrong_are_noticed(change):
    plan, graph = plan_and_graph()
    after = plan.after
    if change == "a band less":
        plan = dataclasses.replace(plan, after=dataclasses.replace(after, bands=after.bands[1:]))
    elif change == "a larger rest":
        rest = (*after.rest, ("compressed", (1,) * len(after.samples)))
        plan = dataclasses.replace(plan, after=dataclasses.replace(after, rest=rest))
    else:
        plan = dataclasses.replace(plan, fixed_bytes=plan.fixed_bytes + 4096)
        graph = plan_and_graph()[1]
        shown = parsed(plan)
        assert bytes_in(shown.charts[0])[0] != bytes_in(parsed(plan_and_graph()[0]).charts[0])[0]
        return
    with pytest.raises(AssertionError):
        check_numbers(plan, graph)


def test_a_plan_that_was_stored_has_the_same_page(tmp_path):
    plan, _ = plan_and_graph()
    plan.save(tmp_path / "plan.json")
    plan.to_html(tmp_path / "plan.html")
    loaded = monet_jax.load_plan(tmp_path / "plan.json")
    assert page(loaded) == (tmp_path / "plan.html").read_text() == page(plan)


def test_the_page_needs_nothing_else():
    text = page(plan_and_graph()[0])
    assert not re.findall(r"https?:|//\w|@import|url\(", text.replace('"use strict";\n//', ""))
    tags = Parser(text).tags
    assert not [attrs for _, attrs in tags if {"src", "href", "srcset"} & set(attrs)]
    assert not {tag for tag, _ in tags} & {"link", "iframe", "img", "object"}


def test_the_page_names_every_large_value_and_its_line():
    plan, _ = plan_and_graph()
    shown = parsed(plan)
    rows = {row.name: row for row in plan.values}
    named = {title.split(":")[0]: source for *_, title, _, source in shown.charts[1]["bands"]}
    saved = {row.name for row in plan.values if row.decision == "saved"}
    assert saved & set(named)
    for name in set(named) & set(rows):
        assert named[name] and rows[name].source.endswith(named[name].rpartition("/")[2])
    sizes = [a["data-key"] for t, a in shown.tags if t == "td" and "data-key" in a]
    assert str(max(row.nbytes for row in plan.values)) in sizes


def test_what_is_shown_is_text_and_never_a_program():
    plan, _ = plan_and_graph()
    bad = "</script><script>alert(1)</script><b>"
    rows = [dataclasses.replace(row, path=bad, source=bad) for row in plan.values]
    text = page(dataclasses.replace(plan, values=tuple(rows), compiler=bad))
    assert bad not in text and "alert(1)" in text
    kinds = [attrs.get("type") for tag, attrs in Parser(text).tags if tag == "script"]
    assert kinds == ["application/json", None]
    assert snippet(dataclasses.replace(plan, compiler=bad)).count("<script") == 0


def test_what_a_page_says_where_there_is_less_to_say():
    plan, _ = plan_and_graph()
    old = dataclasses.replace(plan, before=None, after=None, fixed_bytes=None)
    assert "without its timeline" in page(old) and not parsed(old).charts
    same = dataclasses.replace(plan, decisions=None, before=None, after=plan.before)
    assert "As it is" in page(same) and len(parsed(same).charts) == 1
    broken = dataclasses.replace(plan, budget_bytes=plan.compiled_bytes - 1)
    assert "BREAKS its budget" in page(broken) and "mj-bad" in page(broken)
    unverified = dataclasses.replace(plan, compiled_bytes=None)
    assert "not verified" in page(unverified) and "not compiled" in page(unverified)
    huge = dataclasses.replace(plan, budget_bytes=1 << 50)
    assert "budget 1024.0 TiB" not in parsed(huge).texts
    many = dataclasses.replace(plan, devices=8)
    assert "values of all 8 devices together" in page(many)
    assert parsed(many).charts[0]["fixed"] == 0


def test_modules_and_values_at_the_peak_add_up_to_it():
    plan, graph = plan_and_graph()
    for timeline, regions in (
        (plan.before, planners.save_all(graph).regions),
        (plan.after, plan.decisions.regions),
    ):
        peak = planners.replay(graph, regions).peak_bytes
        modules = modules_at_peak(plan, timeline)
        assert sum(row.nbytes for row in modules) == peak
        values = values_at_peak(plan, timeline)
        assert 0.5 * peak <= sum(value.nbytes for value in values) <= peak
        sizes = [value.nbytes for value in values]
        assert sizes == sorted(sizes, reverse=True)
        assert any("networks.py:" in value.source for value in values)
    shown = parsed(plan)
    assert format_bytes(modules_at_peak(plan, plan.before)[0].nbytes) in shown.texts


def test_what_more_bytes_buy_tells_compiled_from_modelled():
    plan, _ = plan_and_graph()
    plain = CompiledRow("the function as it is", plan.base_seconds, 4000, 4000, 1.0)
    plans = [
        CompiledRow("a plan", 1.1 * plan.base_seconds, 2000, 1900, 1.0),
        CompiledRow("a plan", 1.04 * plan.base_seconds, 3000, 3200, 1.0),
        CompiledRow("a plan", 1.01 * plan.base_seconds, 3500, None, None),  # the compiler failed
    ]
    made = dataclasses.replace(
        plan, budget_bytes=3000, reserved_bytes=0, compiled_bytes=1900, compiled=(plain, *plans)
    )
    trade = trade_of(made)
    kinds = collections.Counter(point.kind for point in trade.points)
    assert kinds == {"plain": 1, "chosen": 1, "compiled": 1, "modelled": 2}
    assert "3.1 KiB" in trade.sentence and "4.00%" in trade.sentence
    assert all(0 <= p.across <= 1 and 0 <= p.up <= 1 for p in trade.points)
    assert 0 < trade.budget < 1
    assert trade.sentence in page(made)
    assert trade_of(dataclasses.replace(made, compiled=(plain,))) is None
    tight = dataclasses.replace(made, compiled=(plain, plans[0]), decisions=None)
    assert "No plan above the budget" in trade_of(tight).sentence


def test_a_page_says_what_it_is_of():
    plan, _ = plan_and_graph()
    named = dataclasses.replace(plan, name="train.loss", made="2026-11-26")
    text = page(named)
    assert "<title>train.loss: Keeps its budget" in text and "planned on 2026-11-26" in text
    assert f"monet_jax {monet_jax.__version__}" in text
    assert all(x in parsed(named).texts[0:] or x in text for x in plan.inputs)
    for row in plan.values:
        if row.nbytes >= 0.01 * max(x.nbytes for x in plan.values):
            assert f"{row.name}" in text


def test_a_notebook_gets_a_short_answer():
    plan, _ = plan_and_graph()
    text = plan._repr_html_()
    assert "Keeps its budget" in text and "<svg" in text and len(text) < len(page(plan)) / 2
    assert "<html" not in text and "<script" not in text


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    plan, _ = plan_and_graph()
    with pytest.raises(OSError):
        plan.to_html(tmp_path / "none" / "plan.html")
    (tmp_path / "plan.html").mkdir()
    with pytest.raises(OSError):
        plan.to_html(tmp_path / "plan.html")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


# ---------------------------------------------------------------------------------- colours

#: What reds, greens and blues become for eyes without one kind of cones (Machado et al., 2009,
#: at full severity), on linear RGB.
EYES = {
    "all cones": np.eye(3),
    "no long ones": np.array(
        [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
    ),
    "no middle ones": np.array(
        [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
    ),
    "no short ones": np.array(
        [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]
    ),
}


def seen(colour: str, eye: np.ndarray) -> np.ndarray:
    """A colour as it is seen, in CIELAB, where distances are differences."""
    parts = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(to_xyz @ np.clip(eye @ linear, 0, 1) / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def closest(colours, eye: np.ndarray) -> float:
    """The smallest difference of two of them; 2.3 can just be noticed."""
    pairs = it.combinations([seen(colour, eye) for colour in colours], 2)
    return min(float(np.linalg.norm(a - b)) for a, b in pairs)


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("ground", [0, 1])
def test_all_eyes_can_tell_the_areas_apart(eye, ground):
    assert closest([pair[ground] for pair in COLOURS.values()], EYES[eye]) > 12
    assert closest(["#d62728", "#8c6d31", "#2ca02c"], EYES["no middle ones"]) < 12
