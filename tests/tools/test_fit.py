"""The size that fits is the largest one, as JAX's own compilation says."""

import dataclasses
import json
import os
import random

import jax
import pytest
from compilers import foreign_target
from networks import by_hand, compiled, net, skip_without_compiler, specs

import monet_jax
from monet_jax import zoo
from monet_jax.compiler import child, compile
from monet_jax.tools.sizes.largest import largest

BUDGET = 1 << 18


def make_args(batch: int, depth: int = 2):
    return specs(batch=batch, depth=depth)


@pytest.fixture(scope="module")
def found():
    return monet_jax.fit(net, make_args, budget=BUDGET)


def test_the_planned_step_fits_and_the_next_size_does_not(found):
    planned = found.plan.apply(net)
    assert compiled(planned, *make_args(found.size)) == found.planned.total_bytes <= BUDGET
    assert found.planned_next.size == found.size + 1
    assert found.planned_next.total_bytes > BUDGET
    # Neither by hand, nor with this size's plan, whatever its arguments are.
    assert compiled(by_hand, *make_args(found.size + 1)) > BUDGET
    with pytest.raises(monet_jax.InfeasibleBudget) as error:
        monet_jax.plan(net, *make_args(found.size + 1), budget=BUDGET, cache=False)
    assert error.value.minimum_budget == found.planned_next.total_bytes


def test_the_plain_step_fits_and_the_next_size_does_not(found):
    assert compiled(net, *make_args(found.plain.size)) == found.plain.total_bytes <= BUDGET
    assert found.plain_next.size == found.plain.size + 1
    assert compiled(net, *make_args(found.plain_next.size)) == found.plain_next.total_bytes > BUDGET
    assert found.plain.size < found.size


def test_what_is_said_of_it(found):
    text = str(found)
    assert f"batch {found.size} planned" in text and f"({found.plain.size})" in text
    data = json.loads(found.to_json())
    assert data["planned"] == dataclasses.asdict(found.planned)
    assert monet_jax._plan.plan_from_json(json.dumps(data["plan"])) == found.plan


@pytest.mark.slow
@pytest.mark.parametrize("name", [foreign_target("gpu:h100")])
def test_the_first_two_programs_of_a_size_are_compiled_side_by_side(name, monkeypatch):
    begun, begin = [], compile.begin_in_child
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(compile, "begin_in_child", lambda *a: (begun.append(a), begin(*a)))
    some = monet_jax.fit(net, make_args, budget="64MiB", step=64, limit=128, target=name)
    assert some.size == 128 and len(begun) == 2
    assert not child._begun  # each was asked for


def test_sizes_are_multiples_of_the_step_and_end_at_the_limit():
    some = monet_jax.fit(net, make_args, budget="1GiB", step=48, limit=100)
    assert some.size == some.plain.size == some.limit == 96
    assert some.planned_next is None and some.plain_next is None
    assert "Sizes above 96 were not tried." in str(some)


def test_where_not_even_one_fits():
    with pytest.raises(monet_jax.InfeasibleBudget, match="`batch=1`") as error:
        monet_jax.fit(net, make_args, budget=20_000, reserved=1000)
    assert error.value.minimum_budget > 20_000


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet50", "gpt2"])
def test_models_on_a_card_that_is_not_here(model):
    """Few and narrow layers of them; `docs/measurements/fit.py` takes all of these."""
    skip_without_compiler("gpu:h100")
    loss, target = zoo.build(model, scale="tiny").loss, "gpu:h100"

    def arguments(batch: int):
        return zoo.build(model, scale="tiny", batch=batch).args

    def taken(fun, batch: int) -> int:
        step = jax.value_and_grad(fun, has_aux=True)
        return monet_jax.compiled_bytes(step, *arguments(batch), target=target).total_bytes

    budget = taken(loss, 128)
    found = monet_jax.fit(loss, arguments, budget=budget, target=target, step=32)
    assert taken(found.plan.apply(loss), found.size) <= budget < found.planned_next.total_bytes
    assert found.planned_next.size == found.size + 32
    assert found.plain.size == 128 < found.size
    assert taken(loss, found.plain_next.size) > budget


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0.5}, "is a share of what the step takes"),
        ({"budget": "many"}, "many"),
        ({"axis": "width"}, "keyword `width`"),
        ({"step": 0}, "`step` must be"),
        ({"limit": True}, "`limit` must be"),
        ({"step": 9, "limit": 8}, "less than one `step`"),
        ({"reserved": BUDGET}, "`reserved` alone"),
        ({"make_args": lambda batch: [batch]}, "must return a tuple"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    options = {"make_args": make_args, "budget": BUDGET, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        monet_jax.fit(net, options.pop("make_args"), **options)


# ----------------------------------------------------------------------------------- search


#: Bytes needed at size `n`; none ever falls.
NEEDS = {
    "a line": lambda n, a, b: a + b * n,
    "a square": lambda n, a, b: a + b * n * n,
    "a root": lambda n, a, b: b + a * int(n**0.5) + n // 50,
    "stairs": lambda n, a, b: b + 100 * (n // (a + b)),
}


@pytest.mark.parametrize("kind", NEEDS)
def test_the_search_finds_what_trying_all_finds(kind):
    for seed in range(200):
        rng = random.Random(seed)
        a, b, room = rng.randint(0, 50), rng.randint(1, 9), rng.randint(0, 3000)
        count, step = rng.randint(1, 400), rng.randint(1, 3)
        tried: list[int] = []

        def need(size, a=a, b=b, tried=tried):
            tried.append(size)
            return NEEDS[kind](size, a, b)

        sizes = range(step, count * step + 1, step)
        fits = [size for size in sizes if NEEDS[kind](size, a, b) <= room]
        best, above = largest(need, room, count, step, {})
        assert best == max(fits, default=None)
        over = (best or 0) + step
        assert above == (over if over <= count * step else None)
        assert len(tried) == len(set(tried)) <= 32
        assert above is None or above in tried


@pytest.mark.parametrize("room", [5_000, 24_000, 100_000])
def test_where_plans_fill_the_memory_few_sizes_are_tried(room):
    """Where saving nothing by hand does not fit, a plan does for a while, with all there is."""
    tried: list[int] = []

    def need(size: int) -> int:
        tried.append(size)
        base, least = 1000 + 600 * size, 1000 + 400 * size
        return base if base <= room else room - size % 3 if least <= room else least

    best, above = largest(need, room, 1 << 20, 1, {})
    assert (best, above) == ((room - 1000) // 400, (room - 1000) // 400 + 1)
    assert len(tried) == len(set(tried)) <= 12


def test_on_a_line_few_sizes_are_tried():
    tried: list[int] = []
    best, above = largest(lambda n: tried.append(n) or 1000 + 7 * n, 10_000, 1 << 20, 1, {})
    assert (best, above) == (1285, 1286) and len(tried) <= 6


def test_from_two_known_sizes_on_a_line_only_the_answer_and_the_next_are_tried():
    """No size is doubled that nearly fills the limit: its next one is over."""
    tried: list[int] = []
    known = {8: 1056, 64: 1448}
    best, above = largest(lambda n: tried.append(n) or 1000 + 7 * n, 10_000, 1 << 20, 1, known)
    assert (best, above) == (1285, 1286) and tried == [1286, 1285]
