"""Compiled bytes are the target compiler's own, here or in a child process."""

import dataclasses
import os
import re
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import CPU_CHILD, foreign_target

import monet_jax
from monet_jax import zoo
from monet_jax.compiler import child as child_module
from monet_jax.compiler import options as options_module
from monet_jax.compiler import targets, worker
from monet_jax.compiler.compile import CompilerFailed, compile_bytes, compiled_bytes
from monet_jax.compiler.export import exported_program
from monet_jax.compiler.options import Options
from monet_jax.compiler.targets import TARGETS, TargetUnavailable, resolve_target

Spec = jax.ShapeDtypeStruct
WIDTH = 256


@pytest.fixture(scope="module", autouse=True)
def _no_child_outlives_the_tests():
    yield
    child_module._stop_children()


def _block(weights, x, key):
    weights, x = jax.lax.optimization_barrier((weights, x))
    scores = jnp.einsum("btd,bsd->bts", x @ weights["q"], x @ weights["k"]).astype(jnp.float32)
    x = x + jax.nn.softmax(scores).astype(x.dtype) @ x
    kept = jax.random.bernoulli(key, 0.9, x.shape)
    return x + jnp.where(kept, jax.nn.gelu(x @ weights["up"]) @ weights["down"], 0)


def _loss(params, tokens, key, unread):
    x = params["embedding"][tokens]
    for i, weights in enumerate(params["blocks"]):
        x = jax.checkpoint(_block)(weights, x, jax.random.fold_in(key, i))
    return jnp.mean(x.astype(jnp.float32) ** 2)


def _step(params, tokens, key, unread):
    grads = jax.grad(_loss)(params, tokens, key, unread)
    return jax.tree.map(lambda p, g: p - g, params, grads)


def _transformer_args():
    def matrix(m, n):
        return Spec((m, n), jnp.bfloat16)

    block = {
        "q": matrix(WIDTH, WIDTH),
        "k": matrix(WIDTH, WIDTH),
        "up": matrix(WIDTH, 2 * WIDTH),
        "down": matrix(2 * WIDTH, WIDTH),
    }
    params = {"embedding": matrix(512, WIDTH), "blocks": [block] * 2}
    key = jax.eval_shape(lambda: jax.random.key(0))
    return params, Spec((8, 128), jnp.int32), key, Spec((1000, 1000), jnp.float32)


def _wide_mlp(x, weights):
    for w in weights:
        x = jnp.sin(jnp.tanh(x @ w) * jax.nn.gelu(x))
    return (x**2).sum()


def _mlp_args(batch):
    return Spec((batch, 512), jnp.float32), [Spec((512, 512), jnp.float32)] * 4


def test_the_child_says_what_this_process_says():
    """Typed keys, bfloat16, integers, donated and unread arguments all cross the boundary."""
    step = jax.jit(_step, donate_argnums=0)
    args = _transformer_args()
    here = compile_bytes(step, args, target=resolve_target("cpu"))
    there = compile_bytes(step, args, target=CPU_CHILD)
    assert dataclasses.replace(there, compiler=here.compiler) == here
    assert here.alias_bytes > 0 and here.argument_bytes < 4_000_000  # donated; `unread` left out


def _convolution(x, kernels):
    for kernel in kernels:
        x = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME"))
    return jnp.mean(x**2)


@pytest.mark.parametrize("name", ["cpu", foreign_target("gpu:h100", slow=True)])
def test_code_that_is_made_quickly_or_not_at_all_takes_the_same_bytes(monkeypatch, name):
    pictures = Spec((16, 32, 32, 32), jnp.float32), [Spec((32, 32, 3, 3), jnp.float32)] * 3
    cases = [(jax.jit(jax.grad(_convolution, 1)), pictures), (jax.jit(_step), _transformer_args())]
    target = resolve_target(name)
    quick = [compile_bytes(step, args, target=target) for step, args in cases]
    monkeypatch.setattr(options_module, "_QUICK_CODE", {})
    monkeypatch.setattr(options_module, "_NO_AUTOTUNING", {})
    monkeypatch.setattr(options_module, "_ESTIMATES", {})
    monkeypatch.setattr(child_module, "_AFTER_ASSIGNMENT", {target.platform: None})
    slow = [compile_bytes(step, args, target=target) for step, args in cases]
    if target.platform == "cuda" and jax.__version_info__ < (0, 12):
        # Without autotuning, products have 32 MiB of workspace there, and else 4 MiB.
        assert all(
            0 <= a.temp_bytes - b.temp_bytes <= 28 * 2**20 for a, b in zip(quick, slow, strict=True)
        )
    else:
        assert quick == slow


#: No compiler knows it, so that every program fails, as some do by an option that is known.
FAILING = {"xla_no_such_option": True}


@pytest.fixture
def compilations(monkeypatch):
    """Options of every compilation that was asked for, where those that save time make it fail."""
    asked = []
    ask, here = child_module._ask, worker.compiled_figures
    monkeypatch.setattr(child_module, "_ask", lambda x, y: asked.append(y.options) or ask(x, y))
    monkeypatch.setattr(worker, "compiled_figures", lambda x, y: asked.append(y) or here(x, y))
    monkeypatch.setattr(options_module, "_QUICK_CODE", FAILING)
    return asked


@pytest.mark.parametrize("target", [resolve_target("cpu"), CPU_CHILD])
def test_what_fails_under_options_that_save_time_is_compiled_without_them(compilations, target):
    options, always = Options(target), options_module._REMAT_OFF["cpu"]
    args = (Spec((8, 8), jnp.float32),)
    for n in (7, 8):
        figures = compile_bytes(lambda x, n=n: x @ x + n, args, target=target, options=options)
        assert figures.output_bytes == 256
        assert "XLA's default options, since" in figures.compiler
        assert "xla_no_such_option=True" in figures.compiler
    assert compilations == [FAILING | always, always, always]  # the second program fails no more


def _with_little_shared_memory(target):
    """A card on which none of XLA's kernels for products compiles by itself."""
    config = re.sub(r"(shared_memory_per_\w+): \d+", r"\1: 512", target.gpu_config)
    return dataclasses.replace(target, name="gpu:little", gpu_config=config)


def _merged_product(x, *weights):
    y = x @ jnp.concatenate([w.astype(x.dtype) for w in weights], 1)
    return (y.astype(jnp.float32) ** 2).sum()


@pytest.mark.parametrize("name", [foreign_target("gpu:h100")])
def test_a_product_without_a_configuration_is_by_cublas(name):
    """XLA's kernels failed there: "No supported config found for HLO"."""
    weights = [Spec((256, n), jnp.float32) for n in (256, 128, 128)]
    target = _with_little_shared_memory(TARGETS[name])
    gradient = jax.grad(_merged_product, (1, 2, 3))
    figures = compile_bytes(gradient, (Spec((64, 256), jnp.bfloat16), *weights), target=target)
    assert figures.output_bytes >= 4 * 256 * 512
    assert figures.compiler.endswith("nothing autotuned, products by cuBLAS")


@pytest.mark.slow
@pytest.mark.parametrize("name", [foreign_target("gpu:h100")])
def test_products_ahead_of_time_are_by_what_takes_the_most_bytes(monkeypatch, name):
    """An H100 took 670 and 4327 MiB for two programs: XLA's kernels say 596 and 4198."""
    target, args = resolve_target(name), _transformer_args()
    by_cublas = compile_bytes(jax.jit(_step), args, target=target)
    monkeypatch.setattr(options_module, "_MOST_BYTES", {})
    by_kernels = compile_bytes(jax.jit(_step), args, target=target)
    assert by_cublas.temp_bytes > by_kernels.temp_bytes


def test_an_error_is_believed_that_is_one_under_all_options(compilations, monkeypatch):
    monkeypatch.setitem(options_module._REMAT_OFF, "cpu", {"xla_nor_such": 1})
    options = Options(CPU_CHILD)
    with pytest.raises(CompilerFailed, match="xla_nor_such") as raised:
        compile_bytes(
            lambda x: x + 9, (Spec((8,), jnp.float32),), target=CPU_CHILD, options=options
        )
    assert len(compilations) == 2 and options.failure is None
    said = str(raised.value)
    assert "a program of 1 equations, with 32 B of arguments and 32 B of results" in said
    assert "Compile it once with a smaller batch" in said


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes"),
        NotImplementedError("no such mesh"),
        ValueError("an argument"),
    ],
)
def test_what_is_no_fault_of_the_options_is_not_repeated(error):
    asked = []

    def compiled(options):
        asked.append(options)
        raise error

    with pytest.raises(type(error)):
        Options(CPU_CHILD).figures(compiled, xla_remat=True)
    assert len(asked) == 1


def test_a_compiler_that_dies_of_the_options_is_asked_without_them():
    def compiled(options):
        if options:
            raise child_module.CompilerDied("twice")
        return {"temp": 0}

    options = Options(CPU_CHILD)
    assert options.figures(compiled, xla_remat=True) == {"temp": 0}
    assert str(options).endswith(
        "since a program failed under xla_backend_optimization_level=0: twice"
    )


@pytest.mark.slow
def test_plans_of_a_function_are_measured_under_equal_options(monkeypatch):
    """The third program fails: those before it are measured again, and later plans begin so."""
    asked = []
    here = worker.compiled_figures

    def compiled(lowered, options):
        asked.append("xla_backend_optimization_level" in options)
        if asked[-1] and len(asked) >= 3:
            raise RuntimeError("no configuration")
        return here(lowered, options)

    monkeypatch.setattr(worker, "compiled_figures", compiled)

    def plan(budget):
        args = Spec((4096, 64), jnp.float32), [Spec((64, 64), jnp.float32)] * 16
        return monet_jax.plan(_small_mlp, *args, budget=budget, target="cpu", cache=False)

    found = plan(0.7)
    assert asked[:3] == [True] * 3 and not any(asked[3:])
    assert asked.count(False) >= 3 and "no configuration" in found.compiler
    assert found.compiled_bytes <= found.budget_bytes
    asked.clear()
    assert "no configuration" in plan(0.8).compiler and not any(asked)


def _small_mlp(x, weights):
    for w in weights:
        x = jnp.sin(x @ w)
    return (x**2).sum()


def test_the_total_is_arguments_outputs_and_temporaries_less_what_is_donated():
    x = Spec((1024, 256), jnp.float32)
    donated = compiled_bytes(jax.jit(lambda x: x + 1, donate_argnums=0), x)
    kept = compiled_bytes(lambda x: x + 1, x)
    assert (donated.total_bytes, kept.total_bytes) == (2**20, 2**21)
    assert str(donated) == (
        "1.0 MiB on cpu (arguments 1.0 MiB, outputs 1.0 MiB, temporaries 0 B, less 1.0 MiB donated)"
    )


def test_static_arguments_keywords_and_unregistered_classes_reach_the_child():
    fun = jax.jit(lambda x, n, *, scale: {"y": x["x"] * n * scale}, static_argnums=1)
    args = ({"x": Spec((1024,), jnp.float32)}, 3)
    figures = compile_bytes(fun, args, kwargs={"scale": 2.0}, target=CPU_CHILD)
    assert figures.output_bytes == 4096


def test_it_compiles_inside_an_outer_trace_and_over_its_tracers():
    seen = []

    def outer(y):
        seen.append(compile_bytes(lambda x: jnp.sin(x) * y, (y,), target=CPU_CHILD))
        return y.sum()

    jax.grad(outer)(jnp.ones(1024))
    jax.jit(outer).lower(jnp.ones(1024))
    assert [s.argument_bytes for s in seen] == [8192, 8192]


def test_equal_programs_of_one_source_line_are_compiled_once(monkeypatch):
    asked = []
    ask = child_module._CompilerChild.ask
    monkeypatch.setattr(
        child_module._CompilerChild, "ask", lambda *args: asked.append(args) or ask(*args)
    )
    x = Spec((33,), jnp.float32)
    first, second = (
        compile_bytes(lambda x: jnp.cos(x) + 2, (x,), target=CPU_CHILD) for _ in range(2)
    )
    assert first == second and len(asked) == 1


def test_a_child_that_dies_is_replaced():
    x = Spec((8,), jnp.float32)
    compile_bytes(lambda x: x + 1, (x,), target=CPU_CHILD)
    process = child_module._compiler_child(CPU_CHILD)._running()
    os.kill(process.popen.pid, signal.SIGKILL)
    assert compile_bytes(lambda x: x + 4, (x,), target=CPU_CHILD).output_bytes == 32


def test_a_compiler_that_cannot_start_says_why():
    broken = dataclasses.replace(CPU_CHILD, name="broken", platform="abacus", topology="1x1")
    with pytest.raises(child_module.CompilerDied, match=r"(?s)broken ended twice.*abacus"):
        child_module._compiler_child(broken).ask({})


def test_an_interrupted_request_does_not_answer_the_next_one(monkeypatch):
    def interrupt(stream):
        raise KeyboardInterrupt

    child = child_module._compiler_child(CPU_CHILD)
    child._running()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(worker, "receive", interrupt)
        compile_bytes(lambda x: x + 5, (Spec((8,), jnp.float32),), target=CPU_CHILD)
    figures = compile_bytes(lambda x: x + 6, (Spec((16,), jnp.float32),), target=CPU_CHILD)
    assert figures.output_bytes == 64


def test_threads_share_a_child():
    sizes = {}

    def work(n):
        figures = compile_bytes(lambda x: x * n, (Spec((n,), jnp.float32),), target=CPU_CHILD)
        sizes[n] = figures.output_bytes

    threads = [threading.Thread(target=work, args=(n,)) for n in (10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == {10: 40, 20: 80, 30: 120}


def _prints(x):
    jax.debug.print("{}", x)
    return x


def test_what_cannot_leave_the_process_says_so():
    with pytest.raises(NotImplementedError, match=r"side effects \(DebugEffect\)"):
        compile_bytes(_prints, (Spec((8,), jnp.float32),), target=CPU_CHILD)


def test_custom_calls_of_any_name_reach_the_child():
    """JAX stores none whose meaning may change; here the other process has the same JAX."""

    def kernels(x):
        for name in ("no_such_kernel", "another$kernel"):
            x = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
        return x

    jitted, args = jax.jit(kernels), (Spec((8,), jnp.float32),)
    blob, _ = exported_program(jitted, args, {}, jitted.trace(*args), CPU_CHILD, None)
    assert b"no_such_kernel" in blob and b"another$kernel" in blob


def test_a_compile_error_comes_back_in_words():
    request = child_module._Request(b"no program", (), None, {}, None, then=None)
    with pytest.raises(RuntimeError, match="the compiler of cpu says: "):
        child_module._ask(CPU_CHILD, request)


def test_targets_have_names_and_unknown_ones_a_list():
    assert resolve_target(None).name == "cpu" and resolve_target("cpu").attached
    with pytest.raises(ValueError, match=r"unknown target 'gpu:h1000'; use one of: cpu, gpu:a100"):
        resolve_target("gpu:h1000")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H200", "gpu:h200"),
        ("NVIDIA H100 80GB HBM3", "gpu:h100"),
        ("NVIDIA H100 PCIe", "gpu:nvidia-h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "gpu:a100"),
        ("NVIDIA A100-SXM4-40GB", "gpu:nvidia-a100-sxm4-40gb"),
        ("TPU v5 lite", "tpu:v5e"),
        ("TPU v5", "tpu:v5p"),
        ("TPU v6 lite", "tpu:v6e"),
    ],
)
def test_attached_devices_are_recognised(kind, name):
    @dataclasses.dataclass
    class Device:
        platform: str
        device_kind: str

        def memory_stats(self):
            return {"bytes_limit": 123}

    target = targets._attached_target(Device(name[:3], kind))
    assert target.name == name and target.attached
    assert target.memory_bytes == (TARGETS[name].memory_bytes if name in TARGETS else 123)


def test_a_missing_compiler_names_the_extra(monkeypatch):
    monkeypatch.setattr(targets, "_version", lambda package: None)
    with pytest.raises(TargetUnavailable, match=r'libtpu.*pip install "jax\[tpu\]'):
        compiled_bytes(lambda x: x, np.ones(3), target="tpu:v5e")


def test_usable_bytes_is_jax_s_pool_on_a_gpu_and_all_of_a_tpu(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    h100, v5e = TARGETS["gpu:h100"], TARGETS["tpu:v5e"]
    assert targets.usable_bytes(h100) == int(0.75 * h100.memory_bytes)
    assert targets.usable_bytes(v5e) == v5e.memory_bytes
    assert targets.usable_bytes(TARGETS["cpu"]) > 2**28


@pytest.mark.parametrize("name", [foreign_target("gpu:h100"), foreign_target("tpu:v6e")])
def test_a_device_that_is_not_here(name):
    step = jax.jit(_step, donate_argnums=0)
    figures = compiled_bytes(step, *_transformer_args(), target=name)
    assert figures.target == name and "ahead of time" in figures.compiler
    assert figures.temp_bytes > 0 and figures.alias_bytes > 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", [foreign_target("gpu:h100")])
def test_xla_remat_can_be_left_out_on_a_gpu(name):
    """On a card of 200 MiB, XLA rematerializes this program unless it is told not to."""
    config = TARGETS[name].gpu_config.replace(
        f"device_memory_size: {TARGETS[name].memory_bytes}", f"device_memory_size: {200 * 2**20}"
    )
    small = dataclasses.replace(TARGETS[name], name="gpu:small", gpu_config=config)
    grad = jax.value_and_grad(_wide_mlp, argnums=1)
    helped = compile_bytes(grad, _mlp_args(16384), target=small, xla_remat=True)
    written = compile_bytes(grad, _mlp_args(16384), target=small)
    assert helped.temp_bytes < 0.9 * written.temp_bytes


def _products(x, weights):
    for w in weights:
        x = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, w)
    return (x**2).sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", [foreign_target("tpu:v5e")])
def test_a_program_compiles_for_a_tpu_of_little_more_than_it_takes(name, monkeypatch):
    """`memory_analysis` counts fragmentation twice: what it says would not fit."""
    problem, target = zoo.build("lstm", scale="bench"), resolve_target(name)
    step = jax.value_and_grad(problem.loss, has_aux=True)
    taken = compile_bytes(step, problem.args, target=target).total_bytes

    request, remat_off = child_module._Request, options_module._REMAT_OFF["tpu"]
    memory = {"xla_tpu_max_hbm_size_mib": int(1.05 * taken / 2**20)}
    monkeypatch.setattr(child_module, "_Request", lambda *given: request(*given[:-1], None))
    monkeypatch.setitem(options_module._REMAT_OFF, "tpu", remat_off | memory)
    said = compile_bytes(step, problem.args, target=target)
    assert "refusal" not in said.compiler
    assert said.total_bytes > 1.05 * taken


@pytest.mark.parametrize("name", [foreign_target("tpu:v6e")])
def test_a_program_over_the_memory_of_a_tpu_has_a_size_all_the_same(name):
    grad = jax.grad(_products, argnums=1)
    figures = compile_bytes(grad, _mlp_args(8_000_000), target=resolve_target(name))
    assert figures.total_bytes > TARGETS[name].memory_bytes
    assert "refusal" in figures.compiler
