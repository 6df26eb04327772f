"""Whether a planned function is called inside another one.

Then it runs as it is: the outer plan decides for all that it covers, and its budget counts.
"""

import contextlib

import jax

# A context of JAX, not a variable: what was traced inside must not come out of a cache of `jit`
# outside, nor the other way round.
_is_inside = jax.make_user_context(False)


def is_inside() -> bool:
    """Whether a planned function is being traced or run around the caller."""
    return _is_inside.value


def inside() -> contextlib.AbstractContextManager[None]:
    """What is called under it is part of a planned function."""
    return _is_inside(True)
