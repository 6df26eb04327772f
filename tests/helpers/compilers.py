"""Compilers that a test may need, as parameters that are skipped where one is not installed."""

import dataclasses

import pytest

from monet_jax.compiler.targets import TARGETS, TargetUnavailable, require_compiler

#: The same compiler as this process's, but asked in a child: what the two say must be equal.
CPU_CHILD = dataclasses.replace(TARGETS["cpu"], attached=False)


def is_installed(name):
    try:
        require_compiler(TARGETS[name])
    except TargetUnavailable:
        return False
    return True


def foreign_target(name, slow=False):
    mark = pytest.mark.gpu if name.startswith("gpu") else pytest.mark.tpu
    missing = pytest.mark.skipif(not is_installed(name), reason=f"no compiler for {name}")
    return pytest.param(name, marks=[mark, missing, *[pytest.mark.slow] * slow])


def compiler_targets():
    """The compilers that plans are held to, as parameters of a test."""
    for name in ("cpu", "gpu:h100"):
        marks = [] if name == "cpu" else [pytest.mark.gpu, pytest.mark.slow]
        try:
            require_compiler(TARGETS[name])
        except TargetUnavailable:
            marks.append(pytest.mark.skip(reason=f"no compiler for {name}"))
        yield pytest.param(name, marks=marks)
