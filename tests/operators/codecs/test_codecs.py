"""Codecs give back what they took, or its expectation, in the bytes that they state."""

import dataclasses
import functools as ft
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from lossy_operators import draws
from thinning import thinned

from monet_jax.compiler import child as child_module
from monet_jax.compiler.compile import compiled_bytes
from monet_jax.compiler.targets import TARGETS, TargetUnavailable, require_compiler
from monet_jax.operators.codecs import (
    BFloat16,
    Blocks,
    Codec,
    Float8,
    Groups,
    Integers,
    Kind,
    Mask,
    Pixel,
    Pool,
    PoolResidual,
    RandomBFloat16,
    Range,
    Rows,
    fold,
    nbytes,
    words_of,
)
from monet_jax.operators.codecs import (
    noise as noise_module,
)
from monet_jax.operators.codecs.groups import Grouping

Spec = jax.ShapeDtypeStruct
WORDS = words_of(jax.random.key(0))
FLOATS = ("float32", "bfloat16", "float16")
SHAPE = (2, 6, 7, 5)  # odd sizes, which no window, group, block or byte divides

EXACT = (Mask(), Integers(-3, 9), Integers(0, 200))
BIASED = (BFloat16(), Float8(8), Pool(2), Pool(3, "soft"), Blocks(0.3, (4, 2)))
UNBIASED = (
    RandomBFloat16(),
    Groups(8, 64),
    Groups(4, 48),
    Groups(2, 32),
    Range(-2, 9, 8),
    Range(-2, 9, 4),
    PoolResidual(2, 2, 32),
    PoolResidual(3, 4, 64),
    Pixel(2),
    Pixel(3),
    Rows(0.3),
    Rows(0.7),
    Range(-2, 9, 2),
)
ALL = (*EXACT, *BIASED, *UNBIASED)


def each(codecs):
    return pytest.mark.parametrize("codec", codecs, ids=lambda c: c.name)


def dtype_of(codec):
    """One of the dtypes that a codec takes."""
    return {Mask: jnp.bool, Integers: jnp.int32}.get(type(codec), jnp.float32)


def activations(shape=SHAPE, dtype=jnp.float32, seed=0):
    """Some zeros, some rows much larger than others; in [-2, 9]. Or small integers, or booleans."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * np.exp(rng.normal(size=(*shape[:-1], 1)))
    x = np.where(x < -1, 0, np.clip(x, -2, 9))
    return jnp.asarray(x > 0 if dtype == jnp.bool else x, dtype)


@ft.partial(jax.jit, static_argnums=0)
def round_trip(codec: Codec, x, words=WORDS):
    return codec.decode(codec.encode(x, words), x)


@ft.partial(jax.jit, static_argnums=0)
def mean_square(codec: Codec, x):
    return codec.mean_square(x)


def exactly_equal(x, y):
    """Bit for bit."""
    x, y = np.asarray(x), np.asarray(y)
    return (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


# ------------------------------------------------------------------------------- statistics


def decoded_draws(codec, x, count=600):
    return draws(lambda key: round_trip(codec, x, words_of(key)), x, count)


@pytest.mark.parametrize(
    ("codec", "dtype"),
    thinned(
        [
            *((c, "float32") for c in UNBIASED),
            *(
                (c, "bfloat16")
                for c in (Groups(8, 64), PoolResidual(2, 2, 32), Pixel(3), Rows(0.3))
            ),
            (Groups(8, 64), "float16"),
            (Rows(0.3), "float16"),
        ],
        "pool2+int2-float32",
        "rows0.3-float32",
        "int8-float16",
    ),
    ids=lambda p: getattr(p, "name", p),
)
def test_decoded_arrays_have_what_was_encoded_as_their_expectation(codec, dtype):
    x = activations(dtype=dtype)
    drawn = decoded_draws(codec, x)
    assert drawn.bias < 1.5
    stated = np.asarray(mean_square(codec, x), np.float64)
    deviation = np.sqrt(stated)
    assert drawn.largest_z(deviation) < math.sqrt(2 * math.log(x.size)) + 1
    # The variance is not only bounded but known: some percent are chance.
    assert drawn.mean_square.sum() == pytest.approx(stated.sum(), rel=0.08)


def metadata_rounded_afterwards(x, key, bits=8, dtype=None):
    """A group quantizer as published: codes from float32 metadata, which are then rounded."""
    low, high = x.min(), x.max()
    scale = (high - low) / (2**bits - 1)
    code = jnp.floor((x - low) / scale + jax.random.uniform(key, x.shape))
    low, scale = (m.astype(dtype or jnp.float32).astype(jnp.float32) for m in (low, scale))
    return code * scale + low


def range_of_earlier_steps(x, key):
    """A quantizer whose range is a running mean: what is outside today is clipped."""
    low, high = 0.9 * x.min(), 0.9 * x.max()
    scale = (high - low) / 255
    noise = jax.random.uniform(key, x.shape)
    return jnp.clip(jnp.floor((x - low) / scale + noise), 0, 255) * scale + low


def test_known_faults_of_quantizers_are_found_and_not_in_ours():
    x = 5 + 0.3 * jax.random.normal(jax.random.key(3), (256,))

    def bias(estimate, exact=x):
        return draws(estimate, exact, 1000).bias

    assert bias(lambda key: round_trip(Groups(8), x, words_of(key))) < 1.5
    assert bias(ft.partial(metadata_rounded_afterwards, x)) < 1.5
    assert bias(ft.partial(metadata_rounded_afterwards, x, dtype=jnp.bfloat16)) > 3
    assert bias(ft.partial(range_of_earlier_steps, x)) > 3
    # Levels that are right in float32 are not when they are rounded to the dtype of the array.
    narrow = (5 + 10 * (x - 5)).astype(jnp.bfloat16)
    wide = narrow.astype(jnp.float32)
    assert bias(lambda key: round_trip(Groups(8), narrow, words_of(key)), narrow) < 1.5
    assert (
        bias(lambda key: round_trip(Groups(8), wide, words_of(key)).astype("bfloat16"), narrow) > 3
    )


def test_what_is_linear_in_the_decoded_array_is_unbiased_and_what_is_not_is_not():
    rng = np.random.default_rng(0)
    x, g = (jnp.asarray(rng.normal(size=(64, 16)), jnp.float32) for _ in range(2))
    derivative = 1 - jnp.square(jnp.tanh(x))

    def decoded(codec, x, key):
        return round_trip(codec, x, words_of(key))

    for codec in (Groups(4, 64), Rows(0.3)):
        linear = draws(lambda key, c=codec: decoded(c, x, key).T @ g, x.T @ g, 1500)
        assert linear.bias < 1.5
    # The gradient of tanh, from its derivative and from its input.
    by_derivative = draws(
        lambda key: decoded(Range(0, 1, 4), derivative, key) * g, derivative * g, 1500
    )
    assert by_derivative.bias < 1.5
    of_input = draws(
        lambda key: (1 - jnp.square(jnp.tanh(decoded(Groups(4, 64), x, key)))) * g,
        derivative * g,
        1500,
    )
    assert of_input.bias > 3


@pytest.mark.parametrize("dtype", thinned(FLOATS, "float32", "bfloat16"))
def test_the_variance_of_levels_is_at_most_a_quarter_of_their_distance_squared(dtype):
    x = activations((64, 32), dtype)
    groups = np.asarray(x, np.float64).T
    spread = groups.max(1) - groups.min(1)
    totals = {}
    for bits in (8, 4, 2):
        # The lowest level may lie 2^-7 of itself below, and the step is at most so much too large.
        step = (spread + 2.0**-7 * np.abs(groups.min(1))) / (2**bits - 1) * (1 + 2.0**-7)
        if dtype == "bfloat16":  # levels are rounded to it as well
            step += 2.0**-8 * np.abs(groups).max(1)
        totals[bits] = float(mean_square(Groups(bits, 64), x).sum())
        assert totals[bits] <= 64 * np.square(step).sum() / 4
    if dtype == "float32":
        assert totals[4] / totals[8] == pytest.approx((255 / 15) ** 2, rel=0.1)
        assert totals[2] / totals[4] == pytest.approx((15 / 3) ** 2, rel=0.25)


# ------------------------------------------------------------------------------------ exact


@pytest.mark.parametrize(("low", "high"), thinned([(-1, 0), (5, 8), (-3, 9)], "-3-9"))
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(shape=st.lists(st.integers(0, 9), max_size=4), seed=st.integers(0, 99))
def test_integers_come_back_bit_for_bit(low, high, shape, seed):
    x = np.random.default_rng(seed).integers(low, high + 1, shape)
    x = jnp.asarray(x, jnp.int8)
    assert exactly_equal(round_trip(Integers(low, high), x), x)


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(shape=st.lists(st.integers(0, 9), max_size=4), seed=st.integers(0, 99))
def test_masks_come_back_bit_for_bit(shape, seed):
    mask = jnp.asarray(np.random.default_rng(seed).random(shape) < 0.5)
    assert exactly_equal(round_trip(Mask(), mask), mask)


@pytest.mark.parametrize(
    ("dtype", "low", "high", "width"),
    [
        ("int8", -128, -113, 4),
        ("int8", 112, 127, 4),
        ("uint8", 252, 255, 2),
        ("int16", -128, 127, 8),
        ("int16", 32512, 32767, 8),
        ("uint32", 2**32 - 2, 2**32 - 1, 1),
        ("int32", -(2**31), -(2**31) + 65535, 16),
        ("int32", -7, -7, 1),
        ("int32", -128, 128, 16),
    ],
)
def test_integers_take_the_fewest_bits_up_to_both_ends_of_their_range(dtype, low, high, width):
    codec = Integers(low, high)
    x = jnp.asarray(np.array([low, high, low, (low + high) // 2, high], dtype))
    assert codec.width == width
    assert codec.applies(x)
    assert exactly_equal(jax.jit(ft.partial(round_trip, codec))(x), x)
    assert nbytes(codec, x) == (5 * width + 7) // 8 if width < 8 else 5 * width // 8


def test_integers_apply_only_where_they_save_bits_and_their_range_fits():
    assert not Integers(0, 200).applies(Spec((3,), jnp.uint8))
    assert not Integers(-1, 3).applies(Spec((3,), jnp.uint16))
    assert not Integers(0, 300).applies(Spec((3,), jnp.int8))
    assert not Integers(0, 3).applies(Spec((3,), jnp.float32))
    assert Integers(0, 200).applies(Spec((3,), jnp.int16))


def test_what_lies_on_levels_comes_back_exactly():
    """Constants, one-hot rows, and integers that the bits can count."""
    constant, one_hot = jnp.full((300,), 2.5), jnp.eye(20)
    count = jnp.arange(-100.0, 156.0)
    for codec, largest in ((Groups(8), 255), (Groups(2), 3), (Float8(), 448)):
        assert exactly_equal(round_trip(codec, constant * 0), constant * 0)
        assert exactly_equal(round_trip(codec, one_hot * largest), one_hot * largest)
    assert exactly_equal(round_trip(Groups(2), constant), constant)
    assert exactly_equal(round_trip(Groups(8), count), count)
    assert exactly_equal(round_trip(Range(0, 14, 4), count[100:115]), count[100:115])


# ----------------------------------------------------------------------------------- biased

FLOAT32 = np.finfo(np.float32)


def adversarial_floats():
    """All magnitudes and both signs, ties of bfloat16, the ends, and what is not finite."""
    rng = np.random.default_rng(0)
    some = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    some = some[(np.abs(some) > 2.0**-118) | (some == 0)]
    barriers = np.arange(0x3F80_8000, 0x3F90_8000, 0x1_0000, dtype=np.uint32).view(np.float32)
    special = np.array([0, -0.0, 1, FLOAT32.max, FLOAT32.min, np.inf, -np.inf, np.nan], np.float32)
    return np.concatenate([some, barriers, -barriers, special])


def test_bfloat16_rounds_to_nearest_like_a_cast():
    x = adversarial_floats()
    (code,) = jax.jit(BFloat16().encode)(x)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(code, np.float32), expected.astype(np.float32))
    finite = np.isfinite(expected.astype(np.float32))
    decoded = np.asarray(BFloat16().decode((code,), Spec(x.shape, np.float32)))
    assert (np.abs(decoded[finite] - x[finite]) <= 2.0**-8 * np.abs(x[finite])).all()


def test_random_bfloat16_goes_to_one_of_the_two_neighbours():
    x = adversarial_floats()
    decoded = np.asarray(round_trip(RandomBFloat16(), x))
    bits = x.view(np.uint32)
    toward = (bits & 0xFFFF_0000).view(np.float32)
    away = ((bits & 0xFFFF_0000) + 0x1_0000 * (bits & 0xFFFF > 0)).astype(np.uint32)
    finite = np.isfinite(x)
    assert ((decoded == toward) | (decoded == away.view(np.float32)))[finite].all()
    np.testing.assert_array_equal(decoded[~finite], x[~finite])
    assert 0.4 < (decoded == toward)[finite].mean() < 0.6


@pytest.mark.parametrize("dtype", thinned(FLOATS, "float32"))
def test_float8_keeps_its_bound(dtype):
    spread = jnp.linspace(-20, 10, 64)[:, None]  # down to subnormal float16
    x = (activations((64, 33)) * jnp.exp2(spread)).astype(dtype)
    scale = np.repeat(np.asarray(Float8(8).encode(x)[1], np.float32), 8, axis=0)
    exact = np.asarray(x, np.float32)
    error = np.abs(np.asarray(round_trip(Float8(8), x), np.float32) - exact)
    bound = np.maximum(2.0**-4 * np.abs(exact), 2.0**-10 * scale)
    rounding = {"float32": 0, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    bound += rounding * (np.abs(exact) + bound) + 2.0**-24 * (dtype == "float16")
    assert (error <= bound).all()
    assert (error > 2.0**-6 * np.abs(exact)).any()  # a sharper bound would not hold


def test_float8_rounds_like_a_cast():
    x = jnp.linspace(-448, 448, 4096).at[:500].multiply(2.0**-14).at[-1].set(448)
    code, scale = Float8(x.size).encode(x)
    assert scale == 1
    levels = np.asarray(code).view(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(levels, np.asarray(x).astype(ml_dtypes.float8_e4m3fn))


def windows_of(x, p):
    """The elements of each window of a numpy array, window by window."""
    for i in range(0, x.shape[1], p):
        for j in range(0, x.shape[2], p):
            yield (slice(None), slice(i, i + p), slice(j, j + p))


@pytest.mark.parametrize(("p", "pooling"), [(2, "mean"), (3, "mean"), (2, "soft"), (3, "soft")])
def test_pooling_is_what_it_is_in_numpy(p, pooling):
    x = np.asarray(activations(), np.float64)
    expected = np.empty_like(x)
    for window in windows_of(x, p):
        weight = np.exp(x[window]) if pooling == "soft" else np.ones_like(x[window])
        mean = (weight * x[window]).sum((1, 2)) / weight.sum((1, 2))
        expected[window] = mean[:, None, None]
    found = round_trip(Pool(p, pooling), jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [2, 3])
def test_mean_pooling_is_the_orthogonal_projection(p):
    x, y = activations(), activations(seed=1)
    project = ft.partial(round_trip, Pool(p))
    np.testing.assert_allclose(project(project(x)), project(x), rtol=1e-5)
    assert float(jnp.vdot(x - project(x), project(y))) == pytest.approx(0, abs=1e-4)
    constant = project(jnp.round(y * 4))  # such as one finds where it is blank
    np.testing.assert_allclose(project(constant), constant, rtol=1e-6)


def test_soft_pooling_does_not_overflow():
    x = jnp.full(SHAPE, 60000, jnp.float16).at[0, 0, 0].set(-60000)
    assert exactly_equal(round_trip(Pool(2, "soft"), x)[:, 2:], x[:, 2:])
    assert jnp.isfinite(round_trip(Pool(2, "soft"), x)).all()


def test_pooling_over_other_axes_is_that_of_the_transposed_array():
    x = activations()
    channels_first = jnp.moveaxis(x, -1, 1)
    for codec in (Pool(2), Pixel(2)):
        other = dataclasses.replace(codec, axes=(2, 3))
        assert other.applies(channels_first)
        found = jnp.moveaxis(round_trip(other, channels_first), 1, -1)
        if isinstance(codec, Pool):
            assert exactly_equal(found, round_trip(codec, x))
        kept = np.asarray(found != 0)
        assert all(kept[window].sum((1, 2)).max() <= 4 for window in windows_of(kept, 2))


@pytest.mark.parametrize("keep", [0.05, 0.3, 1.0])
def test_blocks_keep_the_largest_and_nothing_else(keep):
    x = activations((3, 11, 10))
    codec = Blocks(keep, (4, 2))
    padded = np.zeros((36, 10))
    padded[:33] = np.asarray(x).reshape(33, 10)
    blocks = padded.reshape(9, 4, 5, 2).transpose(0, 2, 1, 3).reshape(45, 8)
    energy = np.sort(np.square(blocks).sum(1))
    left_out = energy[: 45 - math.ceil(keep * 45)].sum()
    decoded = round_trip(codec, x)
    assert float(jnp.square(decoded - x).sum()) == pytest.approx(left_out, rel=1e-5)
    assert bool(((decoded == x) | (decoded == 0)).all())
    assert bool((decoded == x).all()) == (keep == 1)


@each(BIASED)
def test_biased_codecs_know_their_error(codec):
    x = activations()
    error = np.asarray(round_trip(codec, x), np.float64) - np.asarray(x, np.float64)
    np.testing.assert_allclose(mean_square(codec, x), np.square(error), rtol=1e-4, atol=1e-12)
    assert np.square(error).sum() > 0


# --------------------------------------------------------------------------------- sampling


def test_a_sample_of_all_rows_is_the_array():
    x = activations()
    assert exactly_equal(round_trip(Rows(1.0), x), x)
    assert not np.asarray(mean_square(Rows(1.0), x)).any()


def test_few_rows_that_matter_are_kept_as_they_are():
    """Chances are by norms: with two large rows among tiny ones, the large ones always win."""
    x = activations((100, 8)) * 1e-3
    x = x.at[jnp.array([17, 60])].set(5.0)
    for seed in range(5):
        decoded = round_trip(Rows(0.05), x, words_of(jax.random.key(seed)))
        assert exactly_equal(decoded[jnp.array([17, 60])], x[jnp.array([17, 60])])
        assert int((decoded != 0).any(1).sum()) <= 5


def test_rows_vary_as_the_estimator_of_the_paper_does():
    """The variance of WTA-CRS, from its formula in float64, and below that of plain sampling."""
    x = activations((60, 5))
    norm = np.linalg.norm(np.asarray(x, np.float64), axis=1)
    chance = norm / norm.sum()
    order, k = np.argsort(-chance), 18
    rest = [1 - chance[order[:c]].sum() for c in range(k)]
    winners = min(range(k), key=lambda c: rest[c] / (k - c))
    others = order[winners:]
    q = chance[others] / rest[winners]
    expected = (np.square(norm[others]) * (1 - q) / np.maximum(q * (k - winners), 1e-30)).sum()
    plain = (np.square(norm) * (1 - chance) / np.maximum(chance * k, 1e-30)).sum()
    found = float(mean_square(Rows(0.3), x).sum())
    assert winners > 0
    assert found == pytest.approx(expected, rel=0.02)
    assert found < 0.8 * plain


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_rows_are_sampled_alike_on_every_scale(scale):
    x = activations((40, 6))
    scaled = round_trip(Rows(0.3), x * scale)
    np.testing.assert_allclose(scaled, round_trip(Rows(0.3), x) * scale, rtol=1e-5)


def test_ticks_add_up_for_many_rows_of_very_different_norms():
    norms = jnp.exp(8 * jax.random.normal(jax.random.key(2), (200_000, 1)))
    x = norms.at[::7].set(0)
    decoded = round_trip(Rows(0.01), x)
    assert jnp.isfinite(decoded).all()
    error, square = float(decoded.sum() - x.sum()), float(mean_square(Rows(0.01), x).sum())
    assert abs(error) < 5 * math.sqrt(square) + 1e-5 * float(x.sum())


def test_a_pixel_of_each_window_is_the_same_for_all_channels():
    x = jnp.abs(activations((4, 9, 8, 5))) + 1
    decoded = np.asarray(round_trip(Pixel(3), x))
    kept = decoded != 0
    assert (kept == kept[..., :1]).all()
    for window in windows_of(kept, 3):
        elements = kept[window][0, ..., 0].size
        assert (kept[window].sum((1, 2)) == 1).all()
        ratio = decoded[window][kept[window]] / np.asarray(x)[window][kept[window]]
        np.testing.assert_allclose(ratio, elements, rtol=1e-6)
    assert not (kept[0] == kept[1]).all()


# ------------------------------------------------------------------------- what is not finite


INEXACT = [c for c in ALL if c.kind != Kind.BITWISE]


@pytest.mark.parametrize(
    ("codec", "bad"),
    thinned(
        itertools.product(INEXACT, [math.nan, math.inf, -math.inf]),
        *("int8-nan", "pool2+int2-nan", "pixel3-nan", "rows0.3-nan", "fp8-nan", "bf16-nan"),
        *("int8-inf", "bf16--inf"),
    ),
    ids=lambda p: getattr(p, "name", str(p)),
)
def test_what_is_not_finite_stays_so(codec, bad):
    for place in (0, 113, 419):
        x = np.array(activations())
        x.reshape(-1)[place] = bad
        for dtype in FLOATS if isinstance(codec, Groups) else FLOATS[:1]:
            decoded = np.asarray(round_trip(codec, jnp.asarray(x, dtype)), np.float32)
            assert not np.isfinite(decoded).all()


@each([Groups(8, 8), Groups(2, 8), Float8(8)])
def test_only_the_group_is_lost_with_what_is_not_finite(codec):
    x = activations((5, 8))
    x = x.at[0, 3].set(math.nan).at[2, 0].set(-math.inf).at[4].set(jnp.array([-3e38, 3e38] * 4))

    def by_columns(x):
        return round_trip(codec, x.T).T

    decoded = by_columns(x)
    lost = [0, 2] if isinstance(codec, Float8) else [0, 2, 4]  # the last has too wide a range
    assert not jnp.isfinite(decoded[jnp.array(lost)]).any()
    clean = by_columns(x.at[jnp.array(lost)].set(0))
    assert exactly_equal(decoded[jnp.array([1, 3])], clean[jnp.array([1, 3])])


def test_a_range_clamps_what_is_outside_and_marks_what_is_not_finite():
    x = jnp.array([-5, 7, math.nan, 0.5, math.inf, -math.inf], jnp.float32)
    for bits in (2, 4, 8):
        decoded = np.asarray(round_trip(Range(-1, 2, bits), x))
        np.testing.assert_allclose(decoded[:2], [-1, 2], rtol=1e-6)
        assert np.isnan(decoded).tolist() == [False, False, True, False, True, True]
        assert Range(-1, 2, bits).mean_square(x)[:2].tolist() == pytest.approx([16, 25])


# ---------------------------------------------------------------------- under transformations


SOME = (Mask(), Integers(-3, 9), *BIASED, *UNBIASED[:2], *UNBIASED[5:7], *UNBIASED[9:11])


@each(thinned(ALL, *(codec.name for codec in ALL[::2])))
def test_no_dtype_is_promoted_without_a_word(codec):
    for dtype in (dtype_of(codec), jnp.bfloat16, jnp.float16):
        x = jax.ShapeDtypeStruct((4, 6, 7, 8), dtype)
        if codec.applies(x):
            with jax.numpy_dtype_promotion("strict"):
                for run in (round_trip, mean_square):
                    assert jax.eval_shape(ft.partial(run, codec), x).shape == x.shape


@each(thinned(SOME, "mask", "int8", "pool2+int2", "pixel3"))
def test_codecs_are_the_same_apart_and_together_and_under_transformations(codec):
    """Apart, what is stored is rounded for certain; in one program XLA may drop pairs of casts."""
    batch = jnp.stack([activations(dtype=dtype_of(codec), seed=s) for s in range(4)])
    batch = batch.reshape(2, 2, *SHAPE)
    words = jnp.stack([fold(WORDS, i) for i in range(4)]).reshape(2, 2, 2)
    code = jax.jit(codec.encode)(batch[0, 0], words[0, 0])
    apart = jax.jit(lambda code: codec.decode(code, Spec(SHAPE, batch.dtype)))(code)
    members = jax.checkpoint(jax.vmap(ft.partial(round_trip, codec)))
    _, found = jax.jit(ft.partial(jax.lax.scan, lambda _, xw: (None, members(*xw)), None))(
        (batch, words)
    )
    # Some sum up first, in an order that depends on the program; chances of rows come from sums.
    rtol = 1e-4 if isinstance(codec, Rows) else 1e-6 * isinstance(codec, Pool | PoolResidual)
    np.testing.assert_allclose(apart, round_trip(codec, batch[0, 0], words[0, 0]), rtol=rtol)
    for i, j in ((0, 0), (1, 0), (1, 1)):
        alone = round_trip(codec, batch[i, j], words[i, j])
        np.testing.assert_allclose(found[i, j], alone, rtol=rtol)


@each([Groups(4, 32), Range(-2, 9, 4), PoolResidual(2), Pixel(2), Rows(0.3), RandomBFloat16()])
def test_equal_words_give_equal_codes_and_others_give_others(codec):
    x = activations()
    encode = jax.jit(codec.encode)
    code, again, other = encode(x, WORDS), encode(x, WORDS), encode(x, fold(WORDS, 1))
    assert all(map(exactly_equal, code, again))
    assert not all(map(exactly_equal, code, other))


def dense(codec):
    """x @ w, whose backward reads the decoded input."""

    @jax.custom_vjp
    def product(x, w, words):
        return x @ w

    def forward(x, w, words):
        return x @ w, (codec.encode(x, words), w, jnp.zeros_like(x))

    def backward(residuals, g):
        code, w, like = residuals
        return g @ w.T, codec.decode(code, like).T @ g, np.zeros((2,), jax.dtypes.float0)

    product.defvjp(forward, backward)
    return product


@each(thinned([Groups(4, 32), Rows(0.5)], "rows0.5"))
def test_codes_are_residuals_of_custom_derivatives(codec):
    x, w = activations((24, 6)), activations((6, 6), seed=1)
    layers = jnp.arange(3)

    def loss(w, x):
        def layer(x, i):
            return jnp.sin(dense(codec)(x, w, fold(WORDS, i))), None

        return jax.lax.scan(jax.checkpoint(layer), x, layers)[0].sum()

    def unrolled(w, x):
        for i in layers:
            x = jnp.sin(dense(codec)(x, w, fold(WORDS, i)))
        return x.sum()

    scanned = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(w, jnp.stack([x, 2 * x]))
    expected = jax.jit(jax.grad(unrolled))(w, x)
    np.testing.assert_allclose(scanned[0], expected, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------------ noise

DRAWN = 2**16


def naive_bits(words, shape):
    """A hash of the index and one word: words that differ by one permute the same bits."""
    return noise_module._finalize(noise_module._index(shape, jnp.uint32(0)) ^ words[0])


def leaves(bits):
    """Bits of neighbouring words, in either place, and of numbered leaves of one key."""
    first = np.array([12345, 678], np.uint32)
    words = [first + np.uint32(d) for d in ([0, 0], [1, 0], [0, 1], [1, 1], [2, 0])]
    words += [fold(jnp.asarray(first), i) for i in range(3)]
    words += [np.zeros(2, np.uint32), fold(jnp.zeros(2, jnp.uint32), 0)]
    return [np.asarray(bits(jnp.asarray(w), (DRAWN,))) for w in words]


def cross_correlation(a, b):
    """The largest correlation of two leaves at any distance; of a leaf with itself, but at none."""
    a, b = (np.fft.rfft((x - x.mean()) / x.std()) for x in (a / 2.0**32, b / 2.0**32))
    correlation = np.abs(np.fft.irfft(a * b.conj())) / DRAWN
    return correlation[1:].max() if a is b or np.array_equal(a, b) else correlation.max()


def shared_values(a, b):
    """How many values two leaves have in common; by chance, one in 2^32 pairs."""
    return len(np.intersect1d(a, b))


def test_noise_is_uniform():
    for bits in leaves(noise_module.bits):
        for shift in (0, 8, 16, 24):
            counts = np.bincount((bits >> shift) & 255, minlength=256)
            chi_square = (np.square(counts - DRAWN / 256) / (DRAWN / 256)).sum()
            assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


def test_neighbours_and_leaves_are_independent():
    found = leaves(noise_module.bits)
    limit = math.sqrt(2 * math.log(DRAWN * len(found) ** 2) / DRAWN) * 1.2
    for i, a in enumerate(found):
        for b in found[i:]:
            assert cross_correlation(a, b) < limit
            assert a is b or shared_values(a, b) < 10
    naive = leaves(naive_bits)
    assert shared_values(naive[0], naive[1]) > DRAWN // 2


def test_one_element_is_uniform_over_keys_and_steps():
    """What one element draws at step after step, or under neighbouring words."""
    numbers = jnp.arange(DRAWN, dtype=jnp.uint32)
    by_step = jax.vmap(lambda i: noise_module.uniform(fold(WORDS, i), (3,))[1])(numbers)
    by_word = jax.vmap(lambda i: noise_module.uniform(jnp.stack([WORDS[0], i]), (3,))[1])(numbers)
    for u in map(np.asarray, (by_step, by_word)):
        counts = np.bincount((u * 256).astype(int), minlength=256)
        assert abs((np.square(counts - 256) / 256).sum() - 255) < 5 * math.sqrt(2 * 255)
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(DRAWN)
        assert 0 <= u.min() < u.max() < 1


def test_noise_of_an_array_is_that_of_its_flat_one():
    flat = noise_module.bits(WORDS, (60,))
    assert exactly_equal(noise_module.bits(WORDS, (3, 4, 5)), flat.reshape(3, 4, 5))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_of_every_implementation_have_words(impl):
    keys = jax.random.split(jax.random.key(7, impl=impl), 50)
    words = np.asarray(jax.vmap(words_of)(keys))
    assert words.dtype == np.uint32 and words.shape == (50, 2)
    assert len(np.unique(words)) == 100


# ------------------------------------------------------------------------------------ bytes

BATCH = (8, 16, 16, 128)
SIZE = math.prod(BATCH)
BYTES = {
    Mask(): SIZE // 8,
    Integers(0, 1): SIZE // 8,
    Integers(-3, 9): SIZE // 2,
    Integers(0, 200): SIZE,
    BFloat16(): 2 * SIZE,
    RandomBFloat16(): 2 * SIZE,
    Float8(): SIZE + 2 * SIZE // 32,
    Groups(): SIZE + 4 * SIZE // 256,
    Groups(4, 128): SIZE // 2 + 4 * SIZE // 128,
    Groups(2, 64): SIZE // 4 + 4 * SIZE // 64,
    Range(0, 1, 8): SIZE,
    Range(0, 1, 4): SIZE // 2,
    Range(0, 1, 2): SIZE // 4,
    Pool(): SIZE,
    PoolResidual(): 2 * SIZE // 64 + SIZE // 4 + 4 * SIZE // 64,
    Pixel(): SIZE + 8,
    Blocks(0.25): SIZE + 4 * SIZE // 1024,
    Rows(0.25): SIZE + 4 * SIZE // 128 // 4,
}


def _targets():
    for name in ("cpu", "gpu:h100", "tpu:v5e"):
        try:
            require_compiler(TARGETS[name])
            missing = ()
        except TargetUnavailable:
            missing = (pytest.mark.skip(reason=f"no compiler for {name}"),)
        marks = [getattr(pytest.mark, name[:3]), pytest.mark.slow] if name != "cpu" else []
        yield pytest.param(name, marks=[*marks, *missing])


@pytest.fixture(scope="module", autouse=True)
def _no_child_outlives_the_tests():
    yield
    child_module._stop_children()


@pytest.mark.parametrize("codec", BYTES, ids=lambda c: c.name)
def test_bytes_are_those_of_the_table(codec):
    assert codec.applies(Spec(BATCH, dtype_of(codec)))
    assert nbytes(codec, Spec(BATCH, dtype_of(codec))) == BYTES[codec]


@pytest.mark.parametrize("target", list(_targets()))
def test_codes_take_their_bytes_as_compiled(target):
    avals = [Spec(BATCH, dtype_of(codec)) for codec in BYTES]
    words = Spec((2,), jnp.uint32)
    codes = [jax.eval_shape(c.encode, a, words) for c, a in zip(BYTES, avals, strict=True)]

    def read(codes):
        return [
            jnp.sum(codec.decode(code, aval).astype(jnp.float32))
            for codec, code, aval in zip(BYTES, codes, avals, strict=True)
        ]

    found = compiled_bytes(read, codes, target=target).argument_bytes
    # XLA:TPU fills arrays up to tiles of at most 4 KiB.
    slack = 4096 * len(jax.tree.leaves(codes)) if target.startswith("tpu") else 0
    assert sum(BYTES.values()) <= found <= sum(BYTES.values()) + slack


def test_noise_is_never_an_array():
    x, words = Spec(BATCH, jnp.float32), Spec((2,), jnp.uint32)

    def temporaries(encode):
        return jax.jit(encode).lower(x, words).compile().memory_analysis().temp_size_in_bytes

    def with_jax_noise(x, words):
        noise = jax.random.uniform(jax.random.wrap_key_data(words), x.shape)
        return jnp.floor(x * 15 + noise).astype(jnp.uint8)

    for codec in (RandomBFloat16(), Groups(8), Groups(4, 128), Groups(2, 64), Range(0, 1, 4)):
        assert temporaries(codec.encode) < SIZE / 4
    assert temporaries(with_jax_noise) >= 4 * SIZE


BY_AXES = (Mask(), Integers(-3, 9), Float8(), Groups(), Groups(4, 128), Groups(2, 64))


@each(BY_AXES)
@pytest.mark.parametrize("shape", [BATCH, (64, 32, 32, 64), (8, 197, 384), (4096, 200)], ids=str)
def test_no_code_cuts_or_merges_the_last_axis(codec, shape):
    """On a TPU that would copy the whole array, in float32."""
    aval = Spec(shape, dtype_of(codec))

    def both_ways(x, words):
        return codec.decode(codec.encode(x, words), x)

    for eqn in jax.make_jaxpr(both_ways)(aval, Spec((2,), jnp.uint32)).eqns:
        if eqn.primitive.name in ("reshape", "concatenate", "split", "slice"):
            before, after = eqn.invars[0].aval, eqn.outvars[0].aval
            assert before.shape[-1:] == after.shape[-1:] or before.size < aval.size / 8


@hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
@hypothesis.given(
    shape=st.lists(st.integers(0, 40), max_size=4).map(tuple), group=st.integers(1, 300)
)
def test_groups_are_as_large_as_stated_and_hold_each_element_once(shape, group):
    cut, size = Grouping.of(shape, group), math.prod(shape)
    x = jnp.arange(size, dtype=jnp.int32).reshape(shape)
    elements = math.prod(cut.shape[axis] for axis in cut.inside)
    assert min(size, group) <= 2 * elements <= 2 * max(group, 1)
    assert exactly_equal(cut.joined(cut.split(x), x), x)
    assert math.prod(cut.shape) <= max(2 * size, 1)


# ------------------------------------------------------------------------------------ refusal


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Groups(3), "3 `bits`"),
        (lambda: Groups(8, 0), "`group` of 0"),
        (lambda: Float8(0), "`group` of 0"),
        (lambda: Range(0, 1, 3), "3 `bits`"),
        (lambda: Range(1, 1), "from 1 to 1"),
        (lambda: Range(0, math.inf), "from 0 to inf"),
        (lambda: Range(math.nan, 1), "from nan to 1"),
        (lambda: Integers(3, 2), "from 3 to 2"),
        (lambda: Integers(0, 2**32), "less than"),
        (lambda: Pool(1), "1 x 1"),
        (lambda: Pool(2, "max"), "'max'"),
        (lambda: Pixel(2, (2, 1)), "`axes` \\(2, 1\\)"),
        (lambda: PoolResidual(8, 3), "3 `bits`"),
        (lambda: Blocks(0.0), "share of 0.0"),
        (lambda: Blocks(0.5, (0, 4)), "blocks of"),
        (lambda: Rows(1.5), "share of 1.5"),
    ],
)
def test_options_that_cannot_be_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@each(UNBIASED)
def test_unbiased_codecs_want_noise(codec):
    with pytest.raises(TypeError, match="two uint32 words"):
        jax.eval_shape(codec.encode, activations())


@each([c for c in ALL if c.kind != Kind.BITWISE])
def test_lossy_codecs_take_floats_only(codec):
    assert codec.applies(Spec(SHAPE, jnp.float32))
    assert not codec.applies(Spec(SHAPE, jnp.int32))
    assert not codec.applies(Spec(SHAPE, jnp.bool))


def test_windows_need_two_of_them_along_each_axis():
    for codec in (Pool(4), PoolResidual(4), Pixel(4)):
        assert not codec.applies(Spec((2, 7, 8, 3), jnp.float32))
        assert not codec.applies(Spec((8, 8), jnp.float32))
        assert codec.applies(Spec((2, 8, 8), jnp.float32))


@pytest.mark.parametrize(
    ("codec", "shape"),
    thinned(
        itertools.product(
            SOME,
            [pytest.param(x, id=str(x)) for x in ((), (0,), (1,), (0, 6, 6, 2), (1, 6, 6, 0))],
        ),
        *(f"{codec.name}-{shape}" for codec in SOME[::3] for shape in ((), (0,), (1, 6, 6, 0))),
        *(f"{codec.name}-{shape}" for codec in SOME[1::3] for shape in ((1,), (0, 6, 6, 2))),
    ),
)
def test_empty_and_tiny_arrays(codec, shape):
    aval = Spec(shape, dtype_of(codec))
    if codec.applies(aval):
        x = jnp.full(shape, -2, aval.dtype)
        decoded = round_trip(codec, x)
        assert (decoded.shape, decoded.dtype) == (shape, aval.dtype)
        np.testing.assert_allclose(decoded.astype(float), x.astype(float), rtol=0.01)
        square = jax.eval_shape(codec.mean_square, x)
        assert (square.shape, square.dtype) == (shape, jnp.float32)
    assert codec.applies(aval) or len(shape) < 2 or isinstance(codec, Rows)
