"""A call of each differentiable function of JAX on two square arrays of floats.

`TABLE` has a line for each public function of the modules in `MODULES` that has a derivative; what
has none, or is no function of arrays, is named in `LEFT_OUT` with the reason. A test goes through
the modules and sees that nothing is in neither.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import lax

MODULES = {
    "jnp": jnp,
    "lax": lax,
    "nn": jax.nn,
    "special": special,
    "linalg": jnp.linalg,
    "fft": jnp.fft,
}
SIZE = 8  # of the arrays, both ways: as many elements as operators ask for
INDEX = np.array([5, 0, 3, 3, 7, 1, 2, 6])
ONCE = np.array([5, 0, 3, 4, 7, 1, 2, 6])
MASK = np.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 3 > 0


@dataclasses.dataclass(frozen=True)
class Entry:
    """A function, and how it is called.

    Attributes:
        name: with the module's.
        call: of two arrays of `SIZE` by `SIZE` floats; returns any pytree.
        domain: where ordinary numbers lie that the function is called on: "all"; "unit", between 0
            and 1; "positive"; "beyond", above 1; "regular", matrices far from singular ones;
            "symmetric", positive definite matrices; "sorted", increasing along rows.
        narrow: whether it is called on bfloat16, too.
        special: whether it is called on numbers that are none.
    """

    name: str
    call: Callable[[jax.Array, jax.Array], Any]
    domain: str = "all"
    narrow: bool = True
    special: bool = True


# ------------------------------------------------------------------------------ called on arrays

#: Called on the first array.
UNARY = {
    "jnp": """abs absolute acos acosh amax amin angle arccos arccosh arcsin arcsinh arctan arctanh
        around array asarray asin asinh atan atanh atleast_1d atleast_2d atleast_3d average cbrt
        ceil clip conj conjugate copy cos cosh cov corrcoef cumprod cumsum deg2rad degrees diag
        diagflat diagonal diff ediff1d exp exp2 expm1 fabs flip fliplr flipud floor frexp gradient
        histogram histogram_bin_edges i0 imag log log10 log1p log2 matrix_transpose max mean median
        min minmax modf nan_to_num nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod
        nanstd nansum nanvar negative positive prod ptp rad2deg radians ravel real reciprocal rint
        rot90
        round sign sin sinc sinh sort sort_complex sqrt square squeeze std sum tan tanh trace
        transpose trapezoid tril triu trunc unstack unwrap var""",
    "lax": """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil conj cos cosh
        cumlogsumexp cummax cummin cumprod cumsum digamma erf erf_inv erfc exp exp2 expm1 floor
        lgamma log log1p log2 logistic neg one_minus_square optimization_barrier reciprocal round
        rsqrt sign sin sinh sort sqrt square stop_gradient tan tanh unstack""",
    "nn": """celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu
        log1mexp log_sigmoid log_softmax logmeanexp logsumexp mish relu relu6 selu sigmoid silu
        soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish tanh""",
    "special": """dawsn digamma entr erf erfc erfcinv erfcx erfinv exp1 expi expit factorial fresnel
        gamma gammaln gammasgn i0 i0e i1 i1e log_ndtr log_softmax loggamma logit logsumexp ndtr
        ndtri sici softmax spence wofz""",
    "linalg": """cholesky cond det diagonal eigh eigvalsh inv matrix_norm matrix_transpose norm pinv
        qr slogdet svd svdvals trace vector_norm""",
    "fft": """fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft
        rfft2 rfftn""",
}

#: Called on both.
BINARY = {
    "jnp": """add append arctan2 atan2 broadcast_arrays
        copysign divide divmod dot float_power floor_divide fmax fmin
        fmod geomspace heaviside hypot inner kron linspace logaddexp logaddexp2 logspace matmul
        matvec maximum minimum mod multiply nextafter outer pow power remainder subtract tensordot
        true_divide vdot vecdot vecmat""",
    "lax": """add atan2 batch_matmul complex div dot igamma igammac max min mul nextafter pow rem
        sort_key_val sub broadcast_like""",
    "special": """beta betaln boxcox boxcox1p comb expn gammainc gammaincc kl_div owens_t poch
        rel_entr xlog1py xlogy zeta""",
    "linalg": "lstsq matmul solve tensordot vecdot",
}

#: Called on a list of both.
LISTED = {
    "jnp": "concat concatenate column_stack dstack hstack vstack stack block",
    "lax": "stack",
    "linalg": "multi_dot",
}


def _images(x: jax.Array) -> jax.Array:
    """Two images of four by four, with two channels."""
    return x.reshape(2, 4, 4, 2)


def _kernel(y: jax.Array) -> jax.Array:
    """Of two by two, for two channels to two."""
    return y[:2].reshape(2, 2, 2, 2)


def _windows(reduce: Callable, start: float, padding: str = "SAME") -> Callable:
    return lambda x, y: lax.reduce_window(
        _images(x), np.asarray(start, x.dtype), reduce, (1, 3, 3, 1), (1, 1, 1, 1), padding
    )


def _scattered(scatter: Callable) -> Callable:
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return lambda x, y: scatter(x, ONCE[:4, None], y[:4], numbers, unique_indices=True)


def _gathered(x, y):
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.gather(x, INDEX[:, None], numbers, (1, SIZE)) * y


def _root(x, y):
    """The cube root, from its equation."""

    def solve(f, guess):
        return lax.fori_loop(0, 30, lambda _, z: z - f(z) / (3 * z * z), guess)

    return (
        lax.custom_root(
            lambda z: z**3 - x, jnp.ones_like(x), solve, lambda g, b: b / g(jnp.ones_like(b))
        )
        + y
    )


def _linear_solve(x, y):
    return lax.custom_linear_solve(
        lambda b: x @ b,
        y,
        lambda _, b: jnp.linalg.solve(x, b),
        lambda _, b: jnp.linalg.solve(x.T, b),
    )


def _scanned(x, y):
    def step(h, rows):
        h = jnp.tanh(h + rows[0]) * rows[1]
        return h, h

    return lax.scan(step, x[0], (x, y))


def _attended(x, y):
    heads = (1, SIZE, 2, SIZE // 2)
    return jax.nn.dot_product_attention(
        x.reshape(heads), y.reshape(heads), (x + y).reshape(heads), is_causal=True
    )


def _summed(reduce: Callable, start: float) -> Callable:
    return lambda x, y: lax.reduce(x * y, np.asarray(start, x.dtype), reduce, (1,))


def _matrices(n: int) -> Callable:
    return lambda x: x.reshape(2, n, 2 * n)


#: Called in ways of their own.
CALLS: dict[str, Callable[[jax.Array, jax.Array], Any]] = {
    "jnp.apply_along_axis": lambda x, y: jnp.apply_along_axis(jnp.cumsum, 0, x),
    "jnp.apply_over_axes": lambda x, y: jnp.apply_over_axes(jnp.sum, x, [1]),
    "jnp.argpartition": lambda x, y: jnp.take_along_axis(x, jnp.argpartition(x, 3), 1),
    "jnp.array_split": lambda x, y: jnp.array_split(x, 3),
    "jnp.astype": lambda x, y: jnp.astype(x, jnp.bfloat16).astype(x.dtype),
    "jnp.bincount": lambda x, y: jnp.bincount(INDEX, x[0], length=SIZE),
    "jnp.broadcast_to": lambda x, y: jnp.broadcast_to(x[0], (SIZE, SIZE)) * y,
    "jnp.choose": lambda x, y: jnp.choose(INDEX % 2, [x, y], mode="clip"),
    "jnp.compress": lambda x, y: jnp.compress(INDEX > 2, x, 0, size=5),
    "jnp.convolve": lambda x, y: jnp.convolve(x[0], y[0]),
    "jnp.correlate": lambda x, y: jnp.correlate(x[0], y[0], "same"),
    "jnp.cross": lambda x, y: jnp.cross(x[:, :3], y[:, :3]),
    "jnp.cumulative_prod": lambda x, y: jnp.cumulative_prod(x, axis=1),
    "jnp.cumulative_sum": lambda x, y: jnp.cumulative_sum(x, axis=1, include_initial=True),
    "jnp.delete": lambda x, y: jnp.delete(x, 3, 0),
    "jnp.dsplit": lambda x, y: jnp.dsplit(x.reshape(4, 4, 4), 2),
    "jnp.einsum": lambda x, y: jnp.einsum("ij,kj,ij->ik", x, y, x),
    "jnp.expand_dims": lambda x, y: jnp.expand_dims(x, 1) * y,
    "jnp.extract": lambda x, y: jnp.extract(MASK, x, size=12),
    "jnp.fill_diagonal": lambda x, y: jnp.fill_diagonal(x, y[0], inplace=False),
    "jnp.fromfunction": lambda x, y: jnp.fromfunction(lambda i, j: x * (i + j), (SIZE, SIZE)),
    "jnp.full": lambda x, y: jnp.full((SIZE, SIZE), x[0]) * y,
    "jnp.full_like": lambda x, y: jnp.full_like(x, y[0]) * x,
    "jnp.histogramdd": lambda x, y: jnp.histogramdd(x[:, :2], 4, weights=y[0]),
    "jnp.histogram2d": lambda x, y: jnp.histogram2d(x[0], x[1], 4, weights=y[0]),
    "jnp.hsplit": lambda x, y: jnp.hsplit(x, 2),
    "jnp.insert": lambda x, y: jnp.insert(x, 3, y[0], 0),
    "jnp.interp": lambda x, y: jnp.interp(x, jnp.linspace(-2, 2, SIZE, dtype=x.dtype), y[0]),
    "jnp.ldexp": lambda x, y: jnp.ldexp(x, INDEX),
    "jnp.meshgrid": lambda x, y: jnp.meshgrid(x[0], y[0]),
    "jnp.moveaxis": lambda x, y: jnp.moveaxis(x, 0, 1) * y,
    "jnp.nanpercentile": lambda x, y: jnp.nanpercentile(x, 30, axis=1),
    "jnp.nanquantile": lambda x, y: jnp.nanquantile(x, jnp.float32(0.7), axis=0),
    "jnp.pad": lambda x, y: [
        jnp.pad(x, 2, mode=m)
        for m in ("constant", "edge", "reflect", "wrap", "linear_ramp", "mean")
    ],
    "jnp.partition": lambda x, y: jnp.partition(x, 3),
    "jnp.percentile": lambda x, y: jnp.percentile(x, 30, axis=1),
    "jnp.permute_dims": lambda x, y: jnp.permute_dims(x, (1, 0)) * y,
    "jnp.piecewise": lambda x, y: jnp.piecewise(x, [x < 0, x > 1], [jnp.sin, jnp.cos, jnp.tanh]),
    "jnp.place": lambda x, y: jnp.place(x, MASK, y.ravel(), inplace=False),
    "jnp.poly": lambda x, y: jnp.poly(x[0]),
    "jnp.polyadd": lambda x, y: jnp.polyadd(x[0], y[0, :3]),
    "jnp.polyder": lambda x, y: jnp.polyder(x[0]),
    "jnp.polydiv": lambda x, y: jnp.polydiv(x[0], y[0, :3]),
    "jnp.polyfit": lambda x, y: jnp.polyfit(jnp.arange(8.0, dtype=x.dtype) / 4, x[0], 2),
    "jnp.polyint": lambda x, y: jnp.polyint(x[0], 2),
    "jnp.polymul": lambda x, y: jnp.polymul(x[0], y[0]),
    "jnp.polysub": lambda x, y: jnp.polysub(x[0], y[0, :3]),
    "jnp.polyval": lambda x, y: jnp.polyval(x[0, :4], y),
    "jnp.put": lambda x, y: jnp.put(x, ONCE, y[0], inplace=False),
    "jnp.put_along_axis": lambda x, y: jnp.put_along_axis(
        x, INDEX[:, None], y[:, :1], 1, inplace=False
    ),
    "jnp.quantile": lambda x, y: jnp.quantile(x, jnp.float32(0.7), axis=0),
    "jnp.repeat": lambda x, y: jnp.repeat(x, 2, 0),
    "jnp.reshape": lambda x, y: jnp.reshape(x, (4, 16)),
    "jnp.resize": lambda x, y: jnp.resize(x, (5, 9)),
    "jnp.roll": lambda x, y: jnp.roll(x, 3, 1) * y,
    "jnp.rollaxis": lambda x, y: jnp.rollaxis(x, 1) * y,
    "jnp.roots": lambda x, y: jnp.abs(jnp.roots(x[0, :3], strip_zeros=False)),
    "jnp.select": lambda x, y: jnp.select([x > 1, y > 0], [x, x * y], y),
    "jnp.split": lambda x, y: jnp.split(x, 2),
    "jnp.swapaxes": lambda x, y: jnp.swapaxes(x, 0, 1) * y,
    "jnp.take": lambda x, y: [jnp.take(x, INDEX, 0), jnp.take(x, INDEX + 2, 1)],
    "jnp.take_along_axis": lambda x, y: jnp.take_along_axis(x, jnp.argsort(y, 1), 1),
    "jnp.tile": lambda x, y: jnp.tile(x, (2, 1)),
    "jnp.top_k": lambda x, y: jnp.top_k(x, 3),
    "jnp.vander": lambda x, y: jnp.vander(x[0], 4),
    "jnp.vectorize": lambda x, y: jnp.vectorize(jnp.dot, signature="(n),(n)->()")(x, y),
    "jnp.vsplit": lambda x, y: jnp.vsplit(x, 2),
    "jnp.where": lambda x, y: jnp.where(x > y, x * x, y),
    "lax.approx_max_k": lambda x, y: lax.approx_max_k(x, 3),
    "lax.approx_min_k": lambda x, y: lax.approx_min_k(x, 3),
    "lax.associative_scan": lambda x, y: lax.associative_scan(lambda a, b: a * b + a, x),
    "lax.betainc": lambda x, y: lax.betainc(jnp.full_like(x, 2), jnp.full_like(x, 1.5), x),
    "lax.broadcast": lambda x, y: lax.broadcast(x[0], (SIZE,)) * y,
    "lax.broadcast_in_dim": lambda x, y: lax.broadcast_in_dim(x[0], (SIZE, SIZE), (0,)) * y,
    "lax.broadcast_to_rank": lambda x, y: lax.broadcast_to_rank(x, 3),
    "lax.clamp": lambda x, y: lax.clamp(np.asarray(-0.5, x.dtype), x, np.asarray(1, x.dtype)) * y,
    "lax.collapse": lambda x, y: lax.collapse(x, 0),
    "lax.concatenate": lambda x, y: lax.concatenate([x, y], 0),
    "lax.cond": lambda x, y: lax.cond(x[0, 0] > y[0, 0], jnp.sin, lambda x: x * y, x),
    "lax.conv": lambda x, y: lax.conv(x.reshape(1, 4, 4, 4), y.reshape(4, 4, 2, 2), (1, 1), "SAME"),
    "lax.conv_general_dilated": lambda x, y: lax.conv_general_dilated(
        *(_images(x), _kernel(y), (1, 1), "SAME"),
        rhs_dilation=(2, 1),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ),
    "lax.conv_general_dilated_local": lambda x, y: lax.conv_general_dilated_local(
        x.reshape(1, 1, 8, 8), y.reshape(1, 4, 4, 4), (2, 2), "VALID", (2, 2)
    ),
    "lax.conv_general_dilated_patches": lambda x, y: lax.conv_general_dilated_patches(
        x.reshape(1, 1, 8, 8), (2, 2), (1, 1), "VALID"
    ),
    "lax.conv_transpose": lambda x, y: lax.conv_transpose(_images(x), _kernel(y), (2, 2), "SAME"),
    "lax.conv_with_general_padding": lambda x, y: lax.conv_with_general_padding(
        x.reshape(1, 4, 4, 4), y.reshape(4, 4, 2, 2), (1, 1), [(1, 0), (0, 1)], None, None
    ),
    "lax.convert_element_type": lambda x, y: lax.convert_element_type(
        lax.convert_element_type(x, jnp.bfloat16), x.dtype
    ),
    "lax.custom_linear_solve": _linear_solve,
    "lax.custom_root": _root,
    "lax.dot_general": lambda x, y: lax.dot_general(
        *(x.reshape(2, 4, 8), y.reshape(2, 4, 8), (((2,), (2,)), ((0,), (0,)))),
        preferred_element_type=jnp.promote_types(x.dtype, jnp.float32),
    ),
    "lax.dynamic_index_in_dim": lambda x, y: lax.dynamic_index_in_dim(x, jnp.argmax(y[0])),
    "lax.dynamic_slice": lambda x, y: lax.dynamic_slice(x, (jnp.argmax(y[0]), 1), (3, 4)),
    "lax.dynamic_slice_in_dim": lambda x, y: lax.dynamic_slice_in_dim(x, jnp.argmax(y[0]), 3),
    "lax.dynamic_update_index_in_dim": lambda x, y: lax.dynamic_update_index_in_dim(
        x, y[0], jnp.argmax(y[0]), 0
    ),
    "lax.dynamic_update_slice": lambda x, y: lax.dynamic_update_slice(
        x, y[:3], (jnp.argmax(y[0]), 0)
    ),
    "lax.dynamic_update_slice_in_dim": lambda x, y: lax.dynamic_update_slice_in_dim(
        x, y[:3], jnp.argmax(y[0]), 0
    ),
    "lax.expand_dims": lambda x, y: lax.expand_dims(x, (1,)) * y,
    "lax.fft": lambda x, y: lax.fft(lax.complex(x, y), lax.FftType.FFT, (SIZE,)),
    "lax.fori_loop": lambda x, y: lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) * y + i, x),
    "lax.full_like": lambda x, y: lax.full_like(x, y[0, 0]) * x,
    "lax.full": lambda x, y: lax.full((SIZE, SIZE), x[0, 0]) * y,
    "lax.gather": _gathered,
    "lax.imag": lambda x, y: lax.imag(lax.complex(x, y) ** 2),
    "lax.index_in_dim": lambda x, y: lax.index_in_dim(x, 3),
    "lax.index_take": lambda x, y: lax.index_take(x, (INDEX,), (0,)),
    "lax.integer_pow": lambda x, y: [lax.integer_pow(x, n) for n in (-2, -1, 2, 3, 7)],
    "lax.map": lambda x, y: lax.map(lambda rows: jnp.tanh(rows[0]) * rows[1], (x, y)),
    "lax.pad": lambda x, y: lax.pad(x, y[0, 0], [(1, 0, 1), (-1, 2, 0)]),
    "lax.platform_dependent": lambda x, y: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.sin),
    "lax.polygamma": lambda x, y: lax.polygamma(jnp.full_like(x, 1), x),
    "lax.polynomial": lambda x, y: lax.polynomial(x, [1.0, 2.0, 0.5]),
    "lax.ragged_dot": lambda x, y: lax.ragged_dot(x, y.reshape(2, 8, 4), jnp.array([3, 5])),
    "lax.real": lambda x, y: lax.real(lax.complex(x, y) ** 2),
    "lax.reduce": lambda x, y: [
        lax.reduce(x, np.asarray(start, x.dtype), f, (1,))
        for start, f in ((0, lax.add), (-np.inf, lax.max), (np.inf, lax.min), (1, lax.mul))
    ],
    "lax.reduce_max": lambda x, y: lax.reduce_max(x, (1,)),
    "lax.reduce_min": lambda x, y: lax.reduce_min(x, (1,)),
    "lax.reduce_prod": lambda x, y: lax.reduce_prod(x, (1,)),
    "lax.reduce_sum": lambda x, y: lax.reduce_sum(x, (1,)),
    "lax.reduce_precision": lambda x, y: lax.reduce_precision(x, 5, 5),
    "lax.reduce_window": lambda x, y: [
        _windows(f, start, padding)(x, y)
        for start, f in ((0, lax.add), (-np.inf, lax.max), (np.inf, lax.min))
        for padding in ("SAME", "VALID")
    ],
    "lax.reshape": lambda x, y: lax.reshape(x, (4, 16)),
    "lax.rev": lambda x, y: lax.rev(x, (0,)) * y,
    "lax.scan": _scanned,
    "lax.scatter": _scattered(lax.scatter),
    "lax.scatter_add": _scattered(lax.scatter_add),
    "lax.scatter_max": lambda x, y: jnp.asarray(x).at[INDEX].max(y),
    "lax.scatter_min": lambda x, y: jnp.asarray(x).at[INDEX].min(y),
    "lax.scatter_mul": _scattered(lax.scatter_mul),
    "lax.scatter_sub": _scattered(lax.scatter_sub),
    "lax.select": lambda x, y: lax.select(x > y, x, y * y),
    "lax.select_n": lambda x, y: lax.select_n((x > y).astype(jnp.int32) + (x > 1), x, y, x * y),
    "lax.slice": lambda x, y: lax.slice(x, (1, 0), (7, 8), (2, 1)),
    "lax.slice_in_dim": lambda x, y: lax.slice_in_dim(x, 1, 7, 2),
    "lax.split": lambda x, y: lax.split(x, (3, 5)),
    "lax.squeeze": lambda x, y: lax.squeeze(x[None], (0,)) * y,
    "lax.switch": lambda x, y: lax.switch(
        jnp.argmax(y[0]) % 3, [jnp.sin, lambda x: x * y, lambda x: x], x
    ),
    "lax.tile": lambda x, y: lax.tile(x, (2, 1)),
    "lax.top_k": lambda x, y: lax.top_k(x, 3),
    "lax.transpose": lambda x, y: lax.transpose(x, (1, 0)) * y,
    "lax.while_loop": lambda x, y: (
        x
        * lax.while_loop(
            lambda c: c < 5,
            lambda c: c * 2,
            lax.stop_gradient(jnp.nan_to_num(jnp.abs(y[0, 0])) + 1),
        )
    ),
    "nn.dot_product_attention": _attended,
    "nn.one_hot": lambda x, y: jax.nn.one_hot(INDEX, SIZE, dtype=x.dtype) * x,
    "special.bessel_jn": lambda x, y: special.bessel_jn(x[0], v=3),
    "special.betainc": lambda x, y: special.betainc(jnp.full_like(x, 2), jnp.full_like(x, 1.5), x),
    "special.hyp1f1": lambda x, y: special.hyp1f1(1.5, 2.5, x),
    "special.hyp2f1": lambda x, y: special.hyp2f1(1.5, 0.5, 2.5, x),
    "special.multigammaln": lambda x, y: special.multigammaln(x, 2),
    "special.polygamma": lambda x, y: special.polygamma(1, x),
    "linalg.cross": lambda x, y: jnp.linalg.cross(x[:, :3], y[:, :3]),
    "linalg.matrix_power": lambda x, y: [jnp.linalg.matrix_power(x, n) for n in (3, -1)],
    "linalg.outer": lambda x, y: jnp.linalg.outer(x[0], y[0]),
    "linalg.tensorinv": lambda x, y: jnp.linalg.tensorinv(x.reshape(4, 2, 8), 2),
    "linalg.tensorsolve": lambda x, y: jnp.linalg.tensorsolve(x, y[0]),
    "linalg.eigvalsh": lambda x, y: jnp.linalg.eigvalsh(x),
    "linalg.eigh": lambda x, y: jnp.linalg.eigh(x)[0],
    "linalg.svd": lambda x, y: jnp.linalg.svd(x)[1],
}

#: Why what is not in the table is not.
LEFT_OUT = {
    "it returns integers, bools, indices or keys": {
        "jnp": """all allclose any argmax argmin argsort argwhere array_equal array_equiv
            bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or
            bitwise_right_shift bitwise_xor count_nonzero diag_indices diag_indices_from digitize
            equal flatnonzero gcd greater greater_equal indices invert iscomplex isclose isfinite
            isin isinf isnan isneginf isposinf isreal ix_ lcm left_shift less less_equal lexsort
            logical_and logical_not logical_or logical_xor mask_indices nanargmax nanargmin nonzero
            not_equal packbits ravel_multi_index right_shift searchsorted signbit tril_indices
            tril_indices_from triu_indices triu_indices_from unpackbits unravel_index""",
        "lax": """argmax argmin bitwise_and bitwise_not bitwise_or bitwise_xor clz eq ge gt
            is_finite le lt mulhi ne population_count reduce_and reduce_or reduce_xor
            rng_bit_generator shift_left shift_right_arithmetic shift_right_logical""",
        "linalg": "matrix_rank",
    },
    "it reads no array of floats, but shapes, dtypes, files, text": {
        "jnp": """arange array_repr array_str bartlett blackman broadcast_shapes can_cast
            einsum_path empty eye from_dlpack frombuffer fromfile fromiter frompyfunc fromstring
            get_printoptions hamming hanning identity iscomplexobj isdtype isrealobj isscalar
            issubdtype iterable kaiser load ndim ones printoptions promote_types result_type save
            savez set_printoptions shape size tri zeros""",
        "lax": """DotDimensionNumbers after_all axis_index axis_size broadcast_shapes
            broadcasted_iota conv_dimension_numbers conv_general_permutations
            conv_general_shape_tuple conv_shape_tuple conv_transpose_shape_tuple create_token
            dce_sink dtype empty iota padtype_to_pads reduce_window_shape_tuple rng_uniform
            shape_as_value""",
        "nn": "get_scaled_dot_general_config",
        "special": "bernoulli",
        "fft": "fftfreq rfftfreq",
    },
    "only the shape of its operand matters": {"jnp": "empty_like ones_like zeros_like"},
    "its results have shapes that depend on values": {
        "jnp": """intersect1d setdiff1d setxor1d trim_zeros union1d unique unique_all unique_counts
            unique_inverse unique_values""",
    },
    "JAX has no derivative of it": {
        "jnp": "spacing",
        "lax": """igamma_grad_a random_gamma_grad bitcast_convert_type composite scaled_dot
            scatter_apply zeta""",
        "linalg": "eig eigvals",
        "special": "sph_harm_y",
    },
    "it needs a mesh or an axis of one": {
        "lax": """all_gather all_to_all pbroadcast pcast pmax pmean pmin ppermute pshuffle psum
            psum_scatter psum_scatter_start pswapaxes ragged_all_to_all with_sharding_constraint""",
    },
    "no implementation for CPU": {"nn": "scaled_dot_general scaled_matmul"},
    "its derivative needs forms of ragged products that no one calls directly": {
        "lax": "ragged_dot_general"
    },
    "it marks a value for another thread of tracing": {"lax": "stage"},
    "it sends to another device (JAX 0.11)": {"lax": "precv psend"},
}

_DOMAINS = {
    "unit": """jnp.acos jnp.arccos jnp.arcsin jnp.asin jnp.atanh jnp.arctanh lax.acos lax.asin
        lax.atanh lax.erf_inv lax.betainc special.erfinv special.logit special.ndtri special.betainc
        special.hyp2f1 special.spence jnp.tan lax.tan""",
    "positive": """jnp.log jnp.log10 jnp.log1p jnp.log2 jnp.sqrt jnp.reciprocal jnp.divide
        jnp.true_divide jnp.pow jnp.power jnp.float_power jnp.mod jnp.remainder jnp.fmod jnp.divmod
        jnp.floor_divide jnp.geomspace lax.log lax.log1p lax.log2 lax.rsqrt lax.sqrt lax.pow lax.rem
        lax.div lax.reciprocal lax.lgamma lax.digamma lax.igamma lax.igammac lax.integer_pow
        lax.custom_root lax.polygamma nn.log1mexp special.digamma special.entr special.exp1
        special.factorial special.gamma special.gammaln special.gammasgn special.loggamma
        special.beta special.betaln special.boxcox special.boxcox1p special.comb special.expi
        special.gammainc special.gammaincc special.kl_div special.poch special.rel_entr
        special.xlogy special.xlog1py special.polygamma special.expn special.hyp1f1 special.sici
        special.fresnel special.bessel_jn jnp.cbrt lax.cbrt""",
    "beyond": """jnp.acosh jnp.arccosh lax.acosh special.zeta special.multigammaln
        special.erfcinv jnp.roots""",
    "regular": """linalg.cond linalg.det linalg.inv linalg.pinv linalg.qr linalg.slogdet
        linalg.svdvals linalg.svd linalg.solve linalg.lstsq linalg.matrix_power linalg.tensorinv
        linalg.tensorsolve lax.custom_linear_solve linalg.norm linalg.matrix_norm jnp.polydiv""",
    "symmetric": "linalg.cholesky linalg.eigh linalg.eigvalsh",
}

#: Which JAX does not have in bfloat16, by module or name.
_WIDE = """linalg.cholesky linalg.cond linalg.det linalg.eigh linalg.eigvalsh linalg.inv linalg.pinv
    linalg.qr linalg.slogdet linalg.svd linalg.svdvals linalg.solve linalg.lstsq linalg.tensorinv
    linalg.tensorsolve linalg.matrix_power lax.custom_linear_solve lax.complex lax.conj
    lax.fft lax.imag lax.real fft.ihfft fft.rfft fft.rfft2 fft.rfftn jnp.interp jnp.polyfit
    jnp.roots special.ndtr special.ndtri special.spence special.log_ndtr"""


def _listed(table: dict[str, str]) -> list[str]:
    return [f"{module}.{name}" for module, names in table.items() for name in names.split()]


def function_of(name: str) -> Any:
    """What a name stands for; None where this version of JAX has no such function."""
    module, _, last = name.partition(".")
    return getattr(MODULES[module], last, None)


def _first(function, x, y):
    return function(x)


def _list(function, x, y):
    return function([x, y])


def _table() -> dict[str, Entry]:
    calls: dict[str, Callable] = {}
    calls |= {name: functools.partial(_first, function_of(name)) for name in _listed(UNARY)}
    calls |= {name: function_of(name) for name in _listed(BINARY)}
    calls |= {name: functools.partial(_list, function_of(name)) for name in _listed(LISTED)}
    calls |= CALLS
    domains = {name: d for d, names in _DOMAINS.items() for name in names.split()}
    wide = {*_WIDE.split()}
    return {
        name: Entry(name, call, domains.get(name, "all"), name not in wide)
        for name, call in calls.items()
        if function_of(name) is not None  # some versions of JAX lack some
    }


TABLE = _table()


def public(module: str) -> list[str]:
    """The names of what can be called in a module and is no class."""
    found = MODULES[module]
    names = [n for n in dir(found) if not n.startswith("_")]
    things = [(n, getattr(found, n)) for n in names]
    return [f"{module}.{n}" for n, x in things if callable(x) and not inspect.isclass(x)]


def left_out() -> dict[str, str]:
    """What is not in the table, and why."""
    return {name: why for why, names in LEFT_OUT.items() for name in _listed(names)}
