"""The seconds that XLA:GPU writes into compiled programs, read from a stored text."""

import jax
import jax.numpy as jnp
import pytest
from compilers import foreign_target
from paths import ROOT

from monet_jax.compiler.compile import Estimate, compile_bytes
from monet_jax.compiler.estimates import estimates_in
from monet_jax.compiler.options import estimates_seconds
from monet_jax.compiler.targets import TARGETS, resolve_target

#: For an H100, ahead of time, with `xla_gpu_collect_cost_model_stats`; the gradient by `w` of
#: `h, s = scan(lambda h, w: (tanh(h @ w), tanh(h @ w).sum()), x, w); (h ** 2).sum() + s.sum()`,
#: `w` bfloat16[4, 1024, 1024] and `x` bfloat16[2048, 1024]. Without what differs between machines.
TEXT = (ROOT / "tests/compiler/texts/xla_gpu_jax_0.12.0.txt").read_text()
LAYER, WEIGHT = 2048 * 1024, 1024 * 1024


def read(text: str) -> list[Estimate]:
    return [Estimate(*row) for row in estimates_in(text)]


def test_products_have_the_seconds_that_the_text_has_in_every_trip_of_their_loop():
    products = [x for x in read(TEXT) if x.flops]
    # Forward, and the gradients of its operands; the compiler splits the sum of the second.
    assert [x.seconds for x in products] == pytest.approx([11.104e-6, 379.784e-6, 11.104e-6])
    assert {x.flops for x in products} == {2 * 2048 * 1024 * 1024}
    assert {x.runs for x in products} == {4}
    assert products[0].read == (WEIGHT, LAYER) and products[0].written == (LAYER,)


def test_elementwise_work_is_known_by_what_it_reads_and_writes():
    found = [x for x in read(TEXT) if x.read == (LAYER, 4 * LAYER) and x.written == (LAYER,)]
    assert [(x.seconds, x.flops, x.runs) for x in found] == [(pytest.approx(3.76325e-6), 0, 4)]


@pytest.mark.parametrize("figure", ["0", "-3.5", "nan", "inf", '"much"', ""])
def test_an_estimate_that_is_no_time_counts_as_absent(figure):
    changed = TEXT.replace('"exec_time_us":11.104', f'"exec_time_us":{figure}')
    assert len(read(changed)) == len(read(TEXT)) - 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HloModule empty",
        TEXT.replace('"sol"', '"speed-of-light"'),
        TEXT.replace("exec_time_us", "exec_time_ns"),
        TEXT.replace(" = ", " := "),
        TEXT[: len(TEXT) // 3].replace("reification_cost", "cost"),
    ],
)
def test_a_text_of_another_format_has_no_estimates_or_fewer(text):
    assert len(estimates_in(text)) <= len(estimates_in(TEXT)) // 3


def test_only_cards_that_the_tables_of_the_compiler_know_are_asked():
    asked = {name for name, target in TARGETS.items() if estimates_seconds(target)}
    assert asked == {"gpu:h100", "gpu:h200"}


@pytest.mark.parametrize("name", [foreign_target("gpu:h100")])
def test_a_compilation_for_a_card_returns_its_estimates(name):
    def step(x, w):
        return jnp.tanh(x @ w).sum()

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 256), (256, 1024))]
    figures = compile_bytes(jax.grad(step), tuple(args), target=resolve_target(name))
    assert 2 * 512 * 256 * 1024 in {x.flops for x in figures.estimates}
    assert all(0 < x.seconds < 1e-3 for x in figures.estimates)
