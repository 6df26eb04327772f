"""XLA:GPU's own rematerialization works towards a cap, and compiled bytes say what came of it."""

import re

import jax
import jax.numpy as jnp
import pytest
from compilers import foreign_target

from monet_jax.bench.models.xla_remat import can_cap, capped
from monet_jax.compiler.compile import CompiledBytes, compile_bytes
from monet_jax.compiler.targets import TARGETS, resolve_target

MIB = 2**20


def wide_mlp(x, weights):
    for w in weights:
        x = jnp.sin(jnp.tanh(x @ w) * jax.nn.gelu(x))
    return (x**2).sum()


@pytest.mark.parametrize("name", [foreign_target("gpu:h100")])
def test_xla_repeats_what_a_cap_leaves_no_memory_for(name):
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in [(8192, 512), *[(512, 512)] * 4]]
    program = jax.value_and_grad(wide_mlp, argnums=1), (specs[0], specs[1:])
    target = resolve_target(name)
    plain = compile_bytes(*program, target=target)

    def at(share):
        there = capped(target, int(share * plain.total_bytes), plain)
        return compile_bytes(*program, target=there, xla_remat=True)

    assert at(1.5) == plain
    assert at(0.5).temp_bytes < 0.9 * plain.temp_bytes


def test_a_cap_is_where_xla_s_limit_is():
    plain = CompiledBytes(100 * MIB, 50 * MIB, 300 * MIB, 0, "gpu:h100", "XLA:GPU")
    there = capped(TARGETS["gpu:h100"], 350 * MIB, plain)
    (found,) = re.findall(r"device_memory_size: (\d+)", there.gpu_config or "")
    memory = int(found)
    limit_of_xla = 0.95 * (0.8 * memory - plain.argument_bytes - plain.output_bytes)
    assert limit_of_xla == pytest.approx(350 * MIB - plain.argument_bytes)
    assert capped(TARGETS["gpu:h100"], 0, plain).gpu_config != there.gpu_config


def test_what_has_no_card_has_no_cap():
    plain = CompiledBytes(1, 1, 1, 0, "tpu:v5e", "XLA:TPU")
    assert not can_cap(TARGETS["cpu"]) and not can_cap(TARGETS["tpu:v5e"])
    with pytest.raises(ValueError, match="tpu:v5e has no memory to cap; need a GPU"):
        capped(TARGETS["tpu:v5e"], 10, plain)
