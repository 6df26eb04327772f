"""Which source prices the ops of a target: the order in which they are asked."""

import functools
import warnings
from collections.abc import Sequence

from ..compiler.estimates import Estimate
from ..compiler.options import estimates_seconds
from ..compiler.targets import Target, compiler_version
from ..ir import compat
from .attained import modelled, roofline_of
from .compiled import ByCompiler
from .prices import Prices


def prices_of(target: Target, estimates: Sequence[Estimate] | None) -> Prices:
    """What ops take on a target.

    Arguments:
        target: the target.
        estimates: the compiler's, of the unplanned program; None where it has not been compiled.
    """
    if estimates:
        return ByCompiler(estimates, roofline_of(target))
    if estimates is not None and estimates_seconds(target):
        _warn_of_format(compiler_version(target))
    return modelled(target)


@functools.cache
def _warn_of_format(version: str) -> None:
    """Warn, once for a version of a compiler, that its text cannot be read."""
    warnings.warn(
        f"The compiled text of {version} carries no estimate of seconds that monet_jax can read; "
        "a roofline is used. Bytes are not affected. JAX 0.12.0 is known to write estimates.",
        skip_file_prefixes=compat.INTERNAL,
    )
