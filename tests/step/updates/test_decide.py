"""The layout of a step is the cheapest that keeps its budget, by a compiler made of arithmetic."""

import dataclasses
import types

import pytest

import monet_jax
from monet_jax.compiler.host import HostMemory
from monet_jax.compiler.targets import TARGETS
from monet_jax.step.updates.decide import COMPILATIONS, Decision
from monet_jax.step.updates.hint import hint
from monet_jax.step.updates.layout import AS_TRACED, HostLeaf, UpdateLayout, within_host
from monet_jax.step.updates.link import CopySeconds, Gradients, copy_seconds

LEAVES = tuple(HostLeaf(f"args[0][{n}]", n, n, 10) for n in range(8))
#: Bytes of the step: as traced, in order, and what one state on the device takes, or rows of it.
TRACED, ORDERED, WINDOW, ROWS = 300, 260, 15, 2
#: Bytes that recomputation frees, and the seconds that it takes.
FREED, SECONDS = 40, 2.0


@dataclasses.dataclass(frozen=True)
class Search:
    """Plans of a step whose bytes add up."""

    layout: UpdateLayout = AS_TRACED
    compiled: set = dataclasses.field(default_factory=set)
    platform: str = "cuda"

    @property
    def target(self):
        return types.SimpleNamespace(platform=self.platform)

    def with_layout(self, layout):
        return dataclasses.replace(self, layout=layout)

    def small_bytes(self):
        return self.nbytes - FREED

    @property
    def nbytes(self):
        if not self.layout.on_host:
            return ORDERED if self.layout.is_ordered else TRACED
        return ORDERED - self.layout.host_bytes + (ROWS if self.layout.in_rows else WINDOW)

    def unplanned(self):
        self.compiled.add(self.layout)
        return types.SimpleNamespace(total_bytes=self.nbytes)

    def plans(self, budget):
        least = self.nbytes - FREED
        if least > budget:
            raise monet_jax.InfeasibleBudget("too small", least)
        return {
            "mark": types.SimpleNamespace(compiled_bytes=least, seconds=SECONDS, base_seconds=0)
        }


def made(budget, exposed=0.0, may_loop=True):
    def copies(layout):
        return CopySeconds(1.0, exposed * len(layout.on_host), 100.0)

    search = Search()
    found = Decision(budget, search, 8, LEAVES, copies, may_loop).made(lambda search: None)
    assert found.compiled_bytes <= budget
    return found, len(found.search.layout.on_host), len(search.compiled)


def test_order_is_tried_first_and_moves_nothing():
    found, moved, _ = made(ORDERED)
    assert found.search.layout == UpdateLayout(True) and moved == 0 and not found.plans


def test_a_cpu_keeps_its_order():
    decided = Decision(ORDERED, Search(platform="cpu"), 8, (), lambda layout: None)
    assert decided.made(lambda search: None).search.layout == AS_TRACED


@pytest.mark.parametrize("budget", range(ORDERED - 80 + WINDOW, ORDERED, 7))
def test_as_little_as_possible_moves(budget):
    _, moved, compiled = made(budget)
    least = next(k for k in range(1, 9) if ORDERED - 10 * k + WINDOW <= budget)
    assert moved == least and compiled <= COMPILATIONS + 2


def test_recomputation_is_taken_where_it_costs_less():
    found, moved, _ = made(ORDERED - 30, exposed=1.0)
    assert moved == 0 and found.plans  # 5 s of copies against 2
    found, moved, _ = made(ORDERED - 30, exposed=0.3)
    assert moved == 5 and not found.plans


def test_rows_move_where_whole_leaves_take_too_much():
    found, moved, _ = made(ORDERED - 80 + WINDOW)
    assert moved == 8 and not found.search.layout.in_rows
    found, moved, _ = made(ORDERED - 70 + ROWS)
    assert moved == 7 and found.search.layout.in_rows and not found.plans
    found, moved, _ = made(ORDERED - 80 + ROWS, may_loop=False)
    assert moved == 8 and found.plans and not found.search.layout.in_rows


def test_both_are_taken_where_neither_suffices():
    found, moved, _ = made(ORDERED - 80 + ROWS - FREED)
    assert moved == 8 and found.plans
    with pytest.raises(monet_jax.InfeasibleBudget) as caught:
        made(ORDERED - 80 + ROWS - FREED - 1)
    assert caught.value.minimum_budget == ORDERED - 80 + ROWS - FREED


def test_a_pool_takes_the_first_leaves():
    memory = HostMemory(("states",), 35, 1.0, 1.0)
    assert within_host(LEAVES, memory) == LEAVES[:3]
    card = TARGETS["gpu:h100"]
    small = hint(LEAVES, memory, card)
    assert "35 B of the 80 B" in small and "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" in small
    assert hint(LEAVES, dataclasses.replace(memory, budget_bytes=80), card) == ""
    assert 'With `host="states"` up to 80 B' in hint(LEAVES, None, card)
    assert hint((), None, card) == hint(LEAVES, None, TARGETS["cpu"]) == ""


def test_copies_hide_behind_later_gradients_only():
    """Four updates of 10 bytes, a byte a second out and two back, gradients each 20 s."""
    memory = HostMemory(("states",), 100, 1.0, 2.0)
    gradients = Gradients({n: 20.0 * (n + 1) for n in range(4)}, 80.0)

    def of(*numbers):
        return copy_seconds(
            UpdateLayout(True, tuple(LEAVES[n] for n in numbers)), gradients, memory
        )

    assert of(0) == CopySeconds(15.0, 0.0, 80.0)
    assert of(3).exposed_seconds == 10.0  # it waits for the last gradient, and goes back
    assert of(0, 1, 2, 3) == CopySeconds(60.0, 10.0, 80.0)
    slow = HostMemory(("states",), 100, 0.1, 0.1)
    assert copy_seconds(UpdateLayout(True, LEAVES[:4]), gradients, slow).exposed_seconds == 740.0
    rows = UpdateLayout(True, LEAVES[:4], in_rows=True)
    assert copy_seconds(rows, gradients, memory) == CopySeconds(60.0, 60.0, 80.0)
