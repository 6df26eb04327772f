"""The compiler options under which a program's bytes are read.

Some of them save time and change no bytes. But a compiler may fail under them where it does not
when left alone: without autotuning, XLA:GPU wants one configuration of a kernel to compile by
itself. So what fails is compiled once more without them before the error is believed, and if that
succeeds, so is every later program of the function.
"""

import functools
import re
import textwrap
from collections.abc import Callable
from typing import Any

from .targets import Target

# Code generation comes after the assignment of memory and costs most of the time; the bytes are the
# same without its optimizations (a test compares them).
_QUICK_CODE = {"xla_backend_optimization_level": 0}
# Without the card nothing is timed: its kernels keep their first configuration, which autotuning
# takes half of the time to choose as well. The bytes are the same (a test compares them).
_NO_AUTOTUNING = {"xla_gpu_autotune_level": 0}
# On the card, the clock decides by product whether it is by cuBLAS, which wants a workspace and its
# operands in memory, or by a kernel of XLA's. All by cuBLAS take the most bytes: from 0.2 % less to
# 4 % more than what an H100 chose; all by XLA's kernels up to 11 % less (docs/how/targets.md).
_MOST_BYTES = {"xla_gpu_enable_triton_gemm": False}
# XLA:GPU's estimates of the seconds of instructions, of Hopper and later: for an older card, the
# compilation fails. They change no bytes (a test compares them).
_ESTIMATES = {"xla_gpu_collect_cost_model_stats": True}
# XLA's own rematerialization, off. The TPU compiler ignores the list of disabled passes, but never
# finds a program too large when its limit is a million times the memory.
_REMAT_OFF = {
    "cpu": {"xla_disable_hlo_passes": "rematerialization"},
    "cuda": {"xla_disable_hlo_passes": "rematerialization"},
    "tpu": {"xla_jf_rematerialization_percent_shared_memory_limit": 100_000_000},
}
_TOO_LARGE = re.compile("out of memory|exceeds available HBM", re.IGNORECASE)


class Options:
    """The options for programs of one function on one target.

    Attributes:
        failure: what the compiler said of the program that it compiles by its defaults only; None
            as long as there was none.
    """

    def __init__(self, target: Target):
        self._target = target
        self.failure: str | None = None

    def figures(
        self, compiled: Callable[[dict[str, Any]], dict[str, Any]], *, xla_remat: bool
    ) -> dict[str, Any]:
        """What `compiled` returns for options; again without those that save time if it fails.

        Arguments:
            compiled: the compiler's figures of a program.
            xla_remat: leave XLA's own rematerialization on.
        """
        always, quick = self._always(xla_remat), self._saving_time
        try:
            return compiled({**quick, **always})
        except RuntimeError as error:
            # The second is a statement about the program; what is too large stays so.
            if not quick or isinstance(error, NotImplementedError) or _TOO_LARGE.search(str(error)):
                raise
            failure = str(error)
        figures = compiled(always)
        self.failure = failure
        return figures

    @property
    def of_next(self) -> dict[str, Any]:
        """Those of the next program at first, XLA's own rematerialization off."""
        return {**self._saving_time, **self._always(xla_remat=False)}

    def __str__(self) -> str:
        """The conditions of a figure, in words."""
        where = "on the device" if self._target.attached else "ahead of time, nothing autotuned"
        if not _is_autotuned(self._target):
            where += ", products by cuBLAS"
        if self.failure is None:
            return where
        left_out = " and ".join(f"{k}={v}" for k, v in _saving_time(self._target).items())
        said = textwrap.shorten(self.failure, 240, placeholder="...")
        return f"{where}, XLA's default options, since a program failed under {left_out}: {said}"

    def _always(self, xla_remat: bool) -> dict[str, Any]:
        """The options that decide about bytes."""
        remat = {} if xla_remat else _REMAT_OFF[self._target.platform]
        return remat if _is_autotuned(self._target) else {**remat, **_MOST_BYTES}

    @property
    def _saving_time(self) -> dict[str, Any]:
        return {} if self.failure is not None else _saving_time(self._target)


def _saving_time(target: Target) -> dict[str, Any]:
    """The options that save time, and change no bytes."""
    if target.platform == "tpu":
        return {}
    quick = _QUICK_CODE if _is_autotuned(target) else {**_QUICK_CODE, **_NO_AUTOTUNING}
    return {**quick, **_ESTIMATES} if estimates_seconds(target) else quick


def _is_autotuned(target: Target) -> bool:
    """Whether the compiler chooses all that it would choose on the device."""
    return target.platform != "cuda" or target.attached


def estimates_seconds(target: Target) -> bool:
    """Whether the compiler of a target, ahead of time, estimates the seconds of instructions."""
    found = re.search(r"cuda_compute_capability \{ major: (\d+)", target.gpu_config or "")
    return not target.attached and found is not None and int(found[1]) >= 9


@functools.cache
def options_of(target: Target, fingerprint: str) -> Options:
    """The options for programs of a function, the same ones as long as this process lives."""
    del fingerprint  # by which the cache finds them
    return Options(target)
