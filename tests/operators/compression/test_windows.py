"""A kernel's gradient by means of windows equals the one by decoded means, in fewer FLOPs."""

import dataclasses
import itertools as it

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emission import Flat, emitted, flat, flops, gradient_jaxpr, graph_and_stages
from lossy_operators import LAYOUTS, Whole, convolve, lossy_bytes
from programs import Case, array
from thinning import thinned

from monet_jax import operators
from monet_jax.compiler.backend import Backend
from monet_jax.operators.codecs import Pool
from monet_jax.operators.compression import encoding, windows
from monet_jax.operators.compression.operands import Convolutions
from monet_jax.transformer import transform
from planners.plan import Plan
from planners.regions.simple_plans import saving_codes

KERNELS = [(1, 1), (3, 3), (5, 5), (2, 2), (4, 3), (1, 3)]
#: Before and behind the image, along both axes.
PADDINGS = {"same": None, "valid": ((0, 0), (0, 0)), "asymmetric": ((2, 0), (0, 3))}
POOL2 = Convolutions(Pool())


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small values may be kept as codes."""
    monkeypatch.setattr(encoding, "_LEAST", 2)
    monkeypatch.setattr(encoding, "_SHARE", 0.0)


def decoded(image, p):
    """The means of an NHWC image's windows in place of their elements."""
    image, found = np.asarray(image, np.float64), np.empty(image.shape)
    for h, w in it.product(range(0, image.shape[1], p), range(0, image.shape[2], p)):
        window = np.s_[:, h : h + p, w : w + p]
        found[window] = image[window].mean((1, 2), keepdims=True)
    return found


def gradient_of_kernel(image, cotangent, size, padding):
    """By its definition: for each of the kernel's pixels, a sum over those that it met."""
    padded = np.pad(image, ((0, 0), *padding, (0, 0)))
    rows, columns = cotangent.shape[1:3]
    found = np.empty((*size, image.shape[3], cotangent.shape[3]))
    for r, s in it.product(*map(range, size)):
        met = padded[:, r : r + rows, s : s + columns]
        found[r, s] = np.einsum("nhwc,nhwo->co", met, np.asarray(cotangent, np.float64))
    return found


def laid_out(array, axes, layout):
    """An array in another layout."""
    return jnp.asarray(array, jnp.float32).transpose([axes.index(a) for a in layout])


def by_windows(size, padding, layout, sides=(8, 12), p=2):
    """A kernel's gradient by the code, and by definition; none by the code if that is decoded."""
    padding = padding or tuple(((k - 1) // 2, k // 2) for k in size)
    x, kernel = np.asarray(array(1, 2, *sides, 3)), np.asarray(array(2, *size, 3, 4))
    arrays = laid_out(x, "NHWC", layout[0]), laid_out(kernel, "HWIO", layout[1])

    def convolved(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=layout)

    (eqn,) = jax.make_jaxpr(convolved)(*arrays).jaxpr.eqns
    codec = Pool(p, axes=tuple(layout[0].index(a) for a in "HW"))
    result = jax.eval_shape(convolved, *arrays)
    cotangent = np.asarray(array(3, *(result.shape[layout[2].index(a)] for a in "NHWC")))
    wanted = gradient_of_kernel(decoded(x, p), cotangent, size, padding)
    by = windows.Windows.of(eqn, 0, codec)
    if by is None:
        return None, wanted
    pushed = lambda kernel: by(codec.encode(arrays[0]), kernel)  # noqa: E731
    (found,) = jax.linear_transpose(pushed, arrays[1])(laid_out(cotangent, "NHWC", layout[2]))
    return laid_out(found, layout[1], "HWIO"), wanted


@pytest.mark.parametrize(
    ("size", "padding", "layout"),
    thinned(
        it.product(
            [pytest.param(x, id=str(x)) for x in KERNELS],
            PADDINGS,
            [pytest.param(x, id=x[0]) for x in LAYOUTS],
        ),
        *(f"{size}-same-NHWC" for size in KERNELS),
        *("(3, 3)-valid-NCHW", "(4, 3)-asymmetric-NCHW", "(5, 5)-asymmetric-NHWC"),
    ),
)
def test_a_kernels_gradient_is_that_by_what_is_decoded(size, padding, layout):
    found, wanted = by_windows(size, PADDINGS[padding], layout)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_windows_of_other_sizes_serve_as_well():
    found, wanted = by_windows((3, 3), None, LAYOUTS[1], p=4)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "size, padding, is_direct",
    [((3, 3), "same", False), ((3, 3), "valid", True), ((1, 1), "valid", True)],
)
def test_windows_that_are_cut_serve_where_nothing_lies_behind_them(size, padding, is_direct):
    found, wanted = by_windows(size, PADDINGS[padding], LAYOUTS[0], sides=(7, 9))
    assert (found is not None) == is_direct
    if is_direct:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_a_window_at_the_wrong_place_is_noticed(monkeypatch):
    right = windows._Side.padding
    wrong = property(lambda side: tuple(np.add(right.fget(side), (1, -1))))
    monkeypatch.setattr(windows._Side, "padding", wrong)
    with pytest.raises(AssertionError):
        test_a_kernels_gradient_is_that_by_what_is_decoded((3, 3), "same", LAYOUTS[0])


# ------------------------------------------------------------------------------ in plans


def with_codes(case: Case, *codecs, compiled_plan: bool = False):
    """The case, and what saves every code of it; where errors are measured, codes are decoded."""
    exact = operators.rewriter(operators.selected("exact"), operators.Context(Backend()))
    made: Flat = flat(case, dataclasses.replace(exact, codecs=codecs))
    graph, staged = graph_and_stages(made)
    regions = saving_codes(graph)
    found = emitted(made, graph, staged, regions)
    assert lossy_bytes(found)
    if not compiled_plan:
        return made, found
    hooks = [e for stage in staged.stages for e in stage.equations if operators.is_hook(e)]
    codes = {i: jnp.int32(1) for e in hooks for i in e.outputs[1:]}
    planned = transform.transform(
        staged, Plan(regions, 0, 0.0, 0, 0.0, "test"), operators.Encoding(None, codes)
    )
    constants = list(made.program.constants.values())
    return made, dataclasses.replace(found, function=lambda *x: planned(x, constants))


def layers(weights, x):
    """Convolutions; the last kernel is computed itself."""
    for w in weights[:-1]:
        x = jnp.tanh(convolve(x, w))
    return jnp.sum(convolve(x, jnp.sin(weights[-1])).astype(jnp.float32) ** 2)


def scanned(weights, x):
    """The same layers as iterations of a loop."""
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(convolve(x, w)), None), x, jnp.stack(weights))
    return jnp.sum(x**2)


WEIGHTS = [array(n, 3, 3, 4, 4) / 4 for n in range(3)]
IMAGES = array(9, 2, 8, 12, 4)


def gradients(found, args):
    leaves = jax.tree.leaves(args)
    step = jax.grad(lambda leaves: found.function(*leaves)[0])
    return step(leaves)


@pytest.mark.parametrize(
    ("dtype", "function", "codecs"),
    thinned(
        it.product(
            [jnp.float32, jnp.bfloat16],
            [layers, scanned],
            [pytest.param((POOL2,), id="alone"), pytest.param((Whole(), POOL2), id="kernel too")],
        ),
        "float32-layers-kernel too",
        "float32-scanned-alone",
    ),
)
def test_plans_have_the_gradients_that_they_would_have_by_decoding(function, codecs, dtype):
    args = jax.tree.map(lambda x: x.astype(dtype), (WEIGHTS, IMAGES))
    found = gradients(with_codes(Case(function, args), *codecs)[1], args)
    wanted = gradients(with_codes(Case(function, args), *codecs, compiled_plan=True)[1], args)
    for a, b in zip(found, wanted, strict=True):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        assert jnp.linalg.norm(a - b) <= 8 * jnp.finfo(dtype).eps * jnp.linalg.norm(b)


def test_what_is_passed_on_is_that_of_jax_bit_for_bit():
    """No gradient but those of kernels reads codes."""
    args = WEIGHTS, IMAGES
    _, found = with_codes(Case(layers, args), POOL2)
    exact = jax.grad(layers, argnums=(0, 1))(*args)
    first, *others, image = gradients(found, args)
    np.testing.assert_array_equal(image, exact[1])
    np.testing.assert_array_equal(first, exact[0][0])  # its image is an argument, and kept anyway
    for a, b in zip(others, exact[0][1:], strict=True):
        assert not jnp.allclose(a, b, rtol=1e-2)


@pytest.mark.parametrize("sides, strides", [((7, 9), (1, 1)), ((8, 12), (2, 2))])
def test_what_cannot_be_read_as_it_is_is_decoded(sides, strides):
    """Windows that are cut, with zeros behind them, and kernels that move by more than a pixel."""
    first, second, x = *WEIGHTS[:2], array(9, 2, *sides, 4)

    def loss(first, second, x):
        return jnp.sum(convolve(jnp.tanh(convolve(x, first)), second, strides=strides) ** 2)

    _, found = with_codes(Case(loss, (first, second, x)), POOL2)
    hidden = jnp.tanh(convolve(x, first))
    cotangent = 2 * convolve(hidden, second, strides=strides)
    means = jnp.asarray(decoded(hidden, 2), jnp.float32)
    pull = jax.vjp(lambda kernel: convolve(means, kernel, strides=strides), second)[1]
    result = gradients(found, (first, second, x))[1]
    np.testing.assert_allclose(result, *pull(cotangent), rtol=1e-5, atol=1e-4)


def test_gradients_are_mapped_and_pushed_forward_as_they_are_pulled_back():
    _, found = with_codes(Case(layers, (WEIGHTS, IMAGES)), POOL2)
    leaves = [*WEIGHTS, IMAGES]
    loss = lambda leaves: found.function(*leaves)[0]  # noqa: E731
    step = jax.grad(loss)
    one, two = step(leaves), step([2 * x for x in leaves])
    both = jax.vmap(step)([jnp.stack([x, 2 * x]) for x in leaves])
    for a, b, c in zip(one, two, both, strict=True):
        np.testing.assert_allclose(c, jnp.stack([a, b]), rtol=1e-4, atol=1e-4)
    along = [array(n, *x.shape) for n, x in enumerate(leaves)]
    _, local_derivative = jax.jvp(loss, [leaves], [along])
    wanted = sum(jnp.vdot(a, b) for a, b in zip(one, along, strict=True))
    np.testing.assert_allclose(local_derivative, wanted, rtol=1e-4)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_codes_that_are_not_decoded_are_not_differentiated_twice(wrap):
    _, found = with_codes(Case(layers, (WEIGHTS, IMAGES)), POOL2)
    step = wrap(jax.grad(lambda leaves: found.function(*leaves)[0]))
    leaves = [*WEIGHTS, IMAGES]
    with pytest.raises(TypeError, match='operators="exact"'):
        jax.jvp(step, [leaves], [leaves])
    with pytest.raises(TypeError, match='operators="exact"'):
        jax.grad(lambda leaves: jnp.sum(step(leaves)[-1]))(leaves)


def test_flops_fall_as_planned_and_as_compiled():
    """To a quarter, of the gradients of all kernels but the first."""
    args = [array(n, 3, 3, 32, 32) / 9 for n in range(4)], array(9, 2, 16, 16, 32)
    case = Case(lambda weights, x: layers([*weights, weights[0]], x), args)
    counted, compiled = [], []
    for compiled_plan in (False, True):
        made, found = with_codes(case, POOL2, compiled_plan=compiled_plan)
        counted.append(flops(gradient_jaxpr(made, found.function)))
        step = jax.jit(lambda *leaves, f=found.function: jax.grad(lambda x: f(*x)[0])(leaves))
        compiled.append(step.lower(*made.leaves).compile().cost_analysis()["flops"])
        if not compiled_plan:
            assert found.replayed.flops == counted[0]
    of_one = 2 * (2 * 16 * 16) * 9 * 32 * 32
    assert counted[1] - counted[0] == 4 * of_one * 3 // 4
    assert compiled[1] - compiled[0] == pytest.approx(4 * of_one * 3 / 4, rel=0.15)


def test_what_is_summed_up_is_planned_as_workspace():
    """Sums of a convolution's cotangent over windows; of one by single pixels, one a window."""
    shape = (2, 16, 16, 8)
    for size, sums in ((3, 17 * 17), (1, 8 * 8)):
        x, kernel = jnp.ones(shape), jnp.ones((size, size, 8, 4))
        (eqn,) = jax.make_jaxpr(convolve)(x, kernel).jaxpr.eqns
        by = windows.Windows.of(eqn, 0, Pool())
        assert by is not None
        assert by.workspace_bytes == 2 * sums * 4 * 4
        assert by.flops == 2 * (2 * 8 * 8) * size * size * 8 * 4
