"""Kernels that nobody can look into are planned round: values, residuals and runs are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coming_rules import either_rules as either_rules
from compilers import foreign_target
from emission import flat, numpy_of, pulled, random_emissions
from jax.experimental import pallas as pl
from programs import Case, array
from thinning import thinned

import monet_jax
import planners
from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of

LAYERS, ROWS, WIDTH = 6, 2048, 128


def _body(x_ref, y_ref, out_ref):
    out_ref[...] = jnp.tanh(x_ref[...]) * y_ref[...]


def _launched(x, y):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(_body, out_shape=out, interpret=True)(x, y)


@jax.custom_vjp
def _kernel(x, y):
    """A Pallas kernel with a derivative of its own."""
    return _launched(x, y)


def _kernel_backward(kept, ct):
    x, y = kept
    return ct * y * (1 - jnp.tanh(x) ** 2), ct * jnp.tanh(x)


_kernel.defvjp(lambda x, y: (_launched(x, y), (x, y)), _kernel_backward)
calls = []


def _host(x):
    calls.append(len(calls))
    return np.sin(x)


@jax.custom_vjp
def _callback(x):
    """A call of the host with a derivative of its own."""
    return jax.pure_callback(_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


_callback.defvjp(lambda x: (_callback(x), x), lambda x, ct: (ct * jnp.cos(x),))


def _attended(x, y):
    heads = x.reshape(4, -1, 4, x.shape[1] // 4)
    return y + jax.nn.dot_product_attention(heads, heads, heads, is_causal=True).reshape(y.shape)


def _ragged(x, y):
    sizes = jnp.array([len(x) // 2, len(x) // 4, len(x) // 4], jnp.int32)
    return jnp.tanh(jax.lax.ragged_dot(x, jnp.stack([jnp.eye(x.shape[1])] * 3), sizes)) + y


KERNELS = {
    "pallas": _kernel,
    "callback": lambda x, y: _callback(x) + y,
    "fft": lambda x, y: jnp.fft.irfft(jnp.fft.rfft(jnp.tanh(x)) * 2.0, n=x.shape[1]) + y,
    "ragged_dot": _ragged,
    "attention": _attended,
}


def in_layers(kernel):
    def loss(weights, x):
        for w in weights:
            x = KERNELS[kernel](x @ w, x)
        return jnp.mean(x**2)

    return loss


@pytest.mark.parametrize("kernel", thinned(KERNELS, "ragged_dot", "pallas", "callback"))
def test_planned_programs_have_the_gradients_of_plain_jax(kernel):
    weights = [array(n, 16, 16) / 4 for n in range(3)]
    f = flat(Case(in_layers(kernel), (weights, array(9, 32, 16))))
    plain = jax.tree.leaves(jax.jit(pulled(f, f.function))(*f.leaves))
    made = list(random_emissions(f, 0, 2))
    assert any(x.recomputes for x in made)
    for x in made:
        got = jax.tree.leaves(jax.jit(pulled(f, x.function))(*f.leaves))
        for a, b in zip(got, plain, strict=True):
            np.testing.assert_allclose(numpy_of(a), numpy_of(b), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("either_rules")
def test_a_callback_is_never_run_again():
    weights = [array(n, 16, 16) / 4 for n in range(3)]
    f = flat(Case(in_layers("callback"), (weights, array(9, 32, 16))))
    for x in random_emissions(f, 0, 2):
        step = jax.jit(pulled(f, x.function))
        jax.block_until_ready(step(*f.leaves))
        calls.clear()
        jax.block_until_ready(step(*f.leaves))
        assert len(calls) == 3


@pytest.mark.parametrize("kernel", thinned(["pallas", "callback", "fft"], "pallas", "callback"))
def test_residuals_of_kernels_are_counted(kernel):
    spec, target = jax.ShapeDtypeStruct, resolve_target("cpu")
    args = [spec((WIDTH, WIDTH), jnp.float32)] * LAYERS, spec((ROWS, WIDTH), jnp.float32)
    plans = compiled_plans_of(trace_loss(in_layers(kernel), args, target), target, Pins())
    graph, nothing = plans.judge.graph, plans.calibration_plan
    everything = plans.model.modelled(planners.save_all(graph).regions, graph)
    assert everything == pytest.approx(plans.unplanned.temp_bytes, rel=0.1)
    figures = plans.of(nothing).figures
    assert figures is not None
    assert plans.model.modelled(nothing.regions, graph) == pytest.approx(
        figures.temp_bytes, rel=0.15
    )
    assert everything > LAYERS * 4 * ROWS * WIDTH  # a residual of each kernel at least


@pytest.mark.parametrize("name", [foreign_target("gpu:h100")])
def test_attention_of_cudnn_is_planned_round(name):
    """Needs the extra `aot-cudnn`."""
    pytest.importorskip("nvidia.cudnn")
    spec = jax.ShapeDtypeStruct

    def loss(weights, x):
        for w in weights:
            heads = (x @ w).reshape(8, 512, 8, 64)
            y = jax.nn.dot_product_attention(
                heads, heads, heads, is_causal=True, implementation="cudnn"
            )
            x = x + jax.nn.gelu(y.reshape(x.shape) @ w.T) @ w
        return jnp.mean(x.astype(jnp.float32) ** 2)

    args = [spec((512, 512), jnp.bfloat16)] * 4, spec((4096, 512), jnp.bfloat16)
    target = resolve_target(name)
    plans = compiled_plans_of(trace_loss(loss, args, target), target, Pins())
    figures = plans.of(plans.calibration_plan).figures
    assert figures is not None and figures.temp_bytes < 0.8 * plans.unplanned.temp_bytes


def test_attention_of_a_missing_cudnn_names_what_to_install():
    def loss(w, x):
        raise RuntimeError("cuDNN not found.")  # as JAX does while it traces

    with pytest.raises(monet_jax.TargetUnavailable, match=r'cuDNN not found.*"nvidia-cudnn-cu13'):
        monet_jax.plan(loss, jnp.ones(3), jnp.ones(3), budget=0.5, target="gpu:h100")
