"""What a target cannot run is refused before anything is compiled for it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import monet_jax
from monet_jax.compiler import compile as compile_module

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def spec(shape, dtype=jnp.float32, axes=None):
    sharding = None if axes is None else NamedSharding(MESH, P(*axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


@pytest.fixture(autouse=True)
def nothing_compiles(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("compiled")

    monkeypatch.setattr(compile_module, "exported_program", fails)
    monkeypatch.setattr(compile_module, "require_compiler", lambda target: None)


def planned(w, x, target, fun=loss):
    return monet_jax.plan(fun, w, x, budget=0.5, target=target, cache=False)


@pytest.mark.parametrize("target", ["cpu", "gpu:h100", "tpu:v5e"])
@pytest.mark.parametrize("axes, axis, parts, padded", [
    (("data",), 0, 4, 12), ((("data", "model"),), 0, 8, 16), ((None, "model"), 1, 2, 6),
])  # fmt: skip
def test_a_mesh_that_does_not_divide_an_axis(target, axes, axis, parts, padded):
    x = spec((10, 5), axes=axes)
    with pytest.raises(ValueError) as raised:
        planned(spec((5, 8), axes=()), x, target)
    said = str(raised.value)
    assert f"axis {axis}, of size {x.shape[axis]}, does not divide into {parts} parts" in said
    assert f"Pad the axis to {padded}" in said


def test_a_mesh_that_divides_all_axes_is_not_refused():
    with pytest.raises(AssertionError, match="compiled"):
        planned(spec((6, 8), axes=()), spec((8, 6), axes=("data", "model")), "cpu")


def inside(w, x):
    """Computes in float64 in the body of a loop only."""

    def step(total, row):
        return total + jnp.sum((row.astype(jnp.float64) @ w.astype(jnp.float64)) ** 2), None

    return jax.lax.scan(step, jnp.zeros((), jnp.float64), x)[0].astype(jnp.float32)


@pytest.mark.parametrize(
    "fun, dtype", [(loss, "float64"), (loss, "complex128"), (inside, "float32")]
)
def test_a_dtype_that_a_tpu_lacks(fun, dtype):
    with jax.enable_x64(True):
        real = fun if dtype != "complex128" else lambda w, x: jnp.abs(fun(w, x))
        args = spec((8, 8), dtype), spec((4, 8), dtype)
        with pytest.raises(ValueError, match=r"computes in (float64|complex128).*tpu:v5e lacks"):
            planned(*args, "tpu:v5e", real)
        with pytest.raises(AssertionError, match="compiled"):
            planned(*args, "gpu:h100", real)
