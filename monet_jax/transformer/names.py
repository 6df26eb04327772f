"""Names values so that the derivatives of the equations that write them read the named ones.

The derivative of `y = tanh(x)` is written with `y`. A `checkpoint_name` after the equation names a
copy of `y`, which the derivative does not read: a policy that saves the name would keep the copy
and still recompute `tanh(x)`, and all that `x` needs. So where a derivative reads a result of its
own equation (tanh, exp, reduce_max, softmax, ...), the named result passes a function whose rule is
JAX's own, equation by equation, but for the result: that is read from the named one.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from ..ir import compat
from ..ir.barriers import operands_with_barrier, written_once
from ..ir.places import filled, float_places
from ..ir.program import Equation, Program, Rewrite, flatten, run, unchanged, values_of
from ..operators import AS_PLANNED, Encoding, Undecoded, is_hook, run_hook


def run_named(
    equations: Iterable[Equation],
    env: dict[int, Any],
    names: Mapping[int, str],
    active: frozenset[int] | set[int],
    encoding: Encoding = AS_PLANNED,
    rewrite: Rewrite = unchanged,
    once: Set[int] = frozenset(),
) -> None:
    """Run equations in order, reading and writing `env`, and name some of the results.

    Arguments:
        equations: in execution order.
        env: value number -> array; the results are added to it.
        names: value number -> the name to give it with `checkpoint_name`.
        active: values that will be differentiated.
        encoding: how lossy codecs encode and decode.
        rewrite: how the gradients of convolutions leave.
        once: values that their readers read behind a barrier.
    """
    for equation in equations:
        _run_one(equation, env, names, active, encoding, rewrite)
        env.update({i: written_once(env[i]) for i in equation.outputs if i in once and i in env})


def _run_one(
    equation: Equation,
    env: dict[int, Any],
    names: Mapping[int, str],
    active: frozenset[int] | set[int],
    encoding: Encoding,
    rewrite: Rewrite,
) -> None:
    """Run one equation as `run_named` does."""
    if is_hook(equation):
        run_hook(equation, env, names, active, encoding)
        return
    if any(isinstance(env[i], Undecoded) for i in equation.reads):
        _run_directly(equation, env, names)
        return
    if active.intersection(equation.outputs) and not names.keys().isdisjoint(equation.outputs):
        inputs = values_of(env, equation.inputs)
        if _derivative_reads_results(equation, inputs, active):
            run([equation], env, names)
            results = values_of(env, equation.outputs)
            linked = _differentiated_by(equation)(*compat.unused(inputs), *results)
            env.update(zip(equation.outputs, linked, strict=True))
            return
    if rewrite.separates_convolutions and _is_convolution_of(active, equation):
        image, kernel = equation.inputs
        operands = operands_with_barrier(env[image], env[kernel], rewrite.flattens_kernels)
        local = dict(zip(equation.inputs, operands, strict=True))
        run([equation], local, names)
        env.update({i: local[i] for i in equation.outputs})
        return
    run([equation], env, names)


def _run_directly(equation: Equation, env: dict[int, Any], names: Mapping[int, str]) -> None:
    """Run an equation whose derivative reads a compressed residual without decoding it."""
    inputs = values_of(env, equation.inputs)
    direct = next(x.direct for x in inputs if isinstance(x, Undecoded))
    with compat.placed_at(equation.eqn, compat.current_name_stack() + equation.name_stack):
        result = direct.run(*inputs)
    (i,) = equation.outputs
    env[i] = checkpoint_name(result, names[i]) if i in names else result


def _is_convolution_of(active: frozenset[int] | set[int], equation: Equation) -> bool:
    """Whether it is a convolution of two values that are both differentiated."""
    reads = set(equation.reads)
    is_convolution = equation.primitive == "conv_general_dilated"
    return is_convolution and len(reads) == 2 and reads <= active


def _bound(equation: Equation, inputs: Iterable[Any]) -> list[Any]:
    stack = compat.current_name_stack() + equation.name_stack
    return compat.bind(equation.eqn, list(inputs), stack)


def _derivative_reads_results(
    equation: Equation, inputs: list[Any], active: frozenset[int] | set[int]
) -> bool:
    # Literals have no tangents, and not every rule of JAX's takes one there (`clamp`). Nor has what
    # a function closes over that has a rule of its own: JAX refuses to differentiate by it.
    operands = equation.inputs
    live = [
        n for n in float_places(inputs) if isinstance(operands[n], int) and operands[n] in active
    ]
    pushed = _pushed(equation, inputs, live)
    written = {i for i in pushed.outputs[: len(equation.outputs)] if isinstance(i, int)}
    return any(written.intersection(e.reads) for e in pushed.equations)


def _pushed(equation: Equation, primals: list[Any], live: list[int]) -> Program:
    """`(*primals, *tangents) -> (*results, *float tangents)`, with tangents of the live inputs."""

    def push(primals, tangents):
        def function(*chosen):
            return _bound(equation, filled(primals, live, chosen))

        results, out = jax.jvp(function, [primals[n] for n in live], tangents)
        return results, [t for t in out if t.dtype != jax.dtypes.float0]

    return flatten(jax.make_jaxpr(push)(primals, [primals[n] for n in live]))


def _differentiated_by(equation: Equation) -> Any:
    """`(*inputs, *results) -> results`, with the equation's derivative, which reads the results."""
    count = len(equation.inputs)

    @jax.custom_jvp
    def function(*operands):
        return list(operands[count:])

    def rule(primals, tangents):
        inputs, results = list(primals[:count]), list(primals[count:])
        live = [n for n, t in enumerate(tangents[:count]) if not isinstance(t, SymbolicZero)]
        pushed = _pushed(equation, inputs, live)
        env = dict(zip(pushed.inputs, [*inputs, *(tangents[n] for n in live)], strict=True))
        env |= pushed.constants
        written, out = pushed.outputs[: len(results)], pushed.outputs[len(results) :]
        env |= {i: x for i, x in zip(written, results, strict=True) if isinstance(i, int)}
        run(_needed(pushed.equations, out, env), env, {})
        floats = iter(values_of(env, out))
        return results, [
            next(floats) if compat.is_float(jax.typeof(x)) else np.zeros(x.shape, jax.dtypes.float0)
            for x in results
        ]

    function.defjvp(rule, symbolic_zeros=True)
    return function


def _needed(
    equations: Sequence[Equation], outputs: Iterable[Any], known: Mapping[int, Any]
) -> list[Equation]:
    """The equations that outputs need beside what is known; one with effects has had them."""
    needed = {i for i in outputs if isinstance(i, int)} - known.keys()
    kept = []
    for equation in reversed(equations):
        if needed.intersection(equation.outputs):
            needed.update(set(equation.reads) - known.keys())
            kept.append(equation)
    return kept[::-1]
