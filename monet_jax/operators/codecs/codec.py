"""The protocol of codecs, and the rules that every codec keeps.

A codec stores one array in fewer bytes and reads it again. It knows nothing of equations, plans or
barriers, keeps no state, and is pure `jax.numpy`: it works under `jit`, `vmap`, `scan` and
`jax.checkpoint`, for arrays of any rank, odd sizes and no elements at all.

Every codec keeps these rules:

- Rounding is done in float32 arithmetic first, so that the cast itself is exact. XLA may drop a
  pair of casts there and back (`xla_allow_excess_precision`), and a quantizer whose metadata are
  rounded only in memory is biased.
- A lossy code of an array with a NaN or an infinity never decodes to finite values only.
- Codes have the axes of the array, or fewer elements along one of them, where possible: XLA:TPU
  stores arrays in tiles, and copies one that is to be flat in float32, at up to twice its bytes.
"""

import enum
import functools as ft
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from ...ir.program import aval_nbytes

#: The dtypes that lossy codecs take.
FLOATS = ("float32", "bfloat16", "float16")

Code = tuple[jax.Array, ...]


class Kind(enum.Enum):
    """How gradients computed from a stored residual differ from JAX's."""

    BITWISE = "equal bit for bit"
    REORDERED = "equal up to the order of summation, or a stated number of units in the last place"
    UNBIASED = "random, with the exact value as its expectation"
    BIASED = "different, by an error with a stated bound"

    @property
    def is_lossy(self) -> bool:
        """Whether it differs by more than rounding."""
        return self in (Kind.UNBIASED, Kind.BIASED)


class Codec(Protocol):
    """A storage format of arrays.

    Implementations are frozen dataclasses, hashable, whose fields are their options.

    Attributes:
        kind: BITWISE, UNBIASED or BIASED: how the decoded array compares with the encoded one.
        keeps_places: whether each element of the array has an element of the code in the same
            place, rounded without noise: then arrays that are spread over devices are encoded
            where they lie. It is False for codecs without the attribute.
    """

    kind: ClassVar[Kind]

    @property
    def name(self) -> str:
        """The name in plans and reports: "int8", "bf16", "pool2", ..."""
        ...

    def applies(self, aval: Any) -> bool:
        """Whether arrays of this shape and dtype can be encoded. Fewer bytes are not promised."""
        ...

    def encode(self, x: jax.Array, noise: jax.Array | None = None) -> Code:
        """The arrays to save.

        Args:
            x: an array to which the codec applies.
            noise: two words, uint32 of shape [2] (`words_of`, `fold`), where the kind is UNBIASED.
                Equal words give equal codes, also to the members of a `vmap` that does not map
                them; independent codes need words of their own. Other kinds do not read it.
        """
        ...

    def decode(self, code: Code, aval: Any) -> jax.Array:
        """The array again, of the shape and dtype of `aval`."""
        ...

    def mean_square(self, x: jax.Array) -> jax.Array:
        """The expected square of each element's error, float32, of the shape of `x`.

        It is exact for this `x`, up to rounding in float32: the variance if the kind is UNBIASED,
        the square of the error itself if it is BIASED, 0 if it is BITWISE.
        """
        ...


@ft.lru_cache(maxsize=4096)
def _arrays(codec: Codec, shape: tuple[int, ...], dtype: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    words = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return jax.eval_shape(codec.encode, jax.ShapeDtypeStruct(shape, dtype), words)


def arrays(codec: Codec, aval: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The arrays of the code of an array of that shape and dtype."""
    return _arrays(codec, tuple(aval.shape), jnp.dtype(aval.dtype))


def nbytes(codec: Codec, aval: Any) -> int:
    """Bytes of the code of an array of that shape and dtype, as XLA stores it."""
    return sum(map(aval_nbytes, arrays(codec, aval)))


def is_float(aval: Any) -> bool:
    """Whether an array has a dtype that lossy codecs take."""
    return aval.dtype in FLOATS


def square_of_error(codec: Codec, x: jax.Array) -> jax.Array:
    """The `mean_square` of a codec without noise, by encoding and decoding."""
    decoded = codec.decode(codec.encode(x), x)
    return jnp.square(x.astype(jnp.float32) - decoded.astype(jnp.float32))
