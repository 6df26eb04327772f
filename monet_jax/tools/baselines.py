"""Baselines: `jax.checkpoint` placed by hand, and the costs of any program of a step."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from ..analyzer.step_costs import StepCosts, step_costs
from ..compiler.backend import backend_of
from ..compiler.compile import CompiledBytes, compile_bytes
from ..compiler.targets import Target
from ..ir import compat
from ..ir.gradient import FlatFunction
from ..ir.program import Equation, run, values_of
from ..planning.step import step_to_compile
from ..seconds.attained import modelled
from ..tracing.signature import is_traced
from ..tracing.traced import Traced

#: What each baseline policy may save.
POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a program.

    Attributes:
        bytes: as compiled.
        work: FLOPs and roofline seconds.
    """

    bytes: CompiledBytes
    work: StepCosts


def round_the_loss(fun: Callable[..., Any], policy: str) -> Callable[..., Any]:
    """`fun` in one `jax.checkpoint`, under a policy of `POLICIES`; other leaves stay static."""

    @functools.wraps(fun)
    def rematerialized(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [n for n, leaf in enumerate(leaves) if is_traced(leaf)]

        def on_arrays(arrays: Sequence[Any]) -> Any:
            filled = dict(enumerate(leaves)) | dict(zip(places, arrays, strict=True))
            args, kwargs = jax.tree.unflatten(tree, filled.values())
            return fun(*args, **kwargs)

        return jax.checkpoint(on_arrays, policy=POLICIES[policy])([leaves[n] for n in places])

    return rematerialized


def work_of_step(traced: Traced, function: FlatFunction, target: Target) -> StepCosts:
    """FLOPs and roofline seconds of the value and gradient, by one counter for all programs."""
    step = step_to_compile(traced, function)
    return step_costs(*step, modelled(target), backend_of(target.name))


def costs_of(traced: Traced, target: Target, function: FlatFunction | None = None) -> Costs:
    """The costs of a traced function as it stands, or run by another function."""
    function = function or traced.flat
    figures = compile_bytes(*step_to_compile(traced, function), target=target)
    return Costs(figures, work_of_step(traced, function, target))


def under_policy(traced: Traced, policy: Any) -> FlatFunction:
    """A function under `jax.checkpoint` with a policy, around the body of each of its scans.

    Where it has none, around all of it, which often saves no memory.
    """
    program = traced.program
    if not any(map(_is_scan, program.equations)):
        return _whole(traced, policy)

    def function(inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        given = (*program.inputs, *program.constants)
        env = dict(zip(given, (*inputs, *constants), strict=True))
        for equation in program.equations:
            if _is_scan(equation):
                results = _scanned(equation.eqn, values_of(env, equation.inputs), policy)
                env.update(zip(equation.outputs, results, strict=True))
            else:
                run([equation], env, {})
        return values_of(env, program.outputs)

    return function


def place_of(traced: Traced) -> str:
    """Where the policy is put, in words."""
    scans = sum(map(_is_scan, traced.program.equations))
    return "around the body of each scan" if scans else "around the whole function"


def _whole(traced: Traced, policy: Any) -> FlatFunction:
    def function(inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        return jax.checkpoint(traced.flat, policy=policy)(list(inputs), list(constants))

    return function


def _is_scan(equation: Equation) -> bool:
    return equation.primitive == "scan"


def _scanned(eqn: Any, operands: Sequence[Any], policy: Any) -> list[Any]:
    """The results of a scan whose body is under `jax.checkpoint`."""
    consts, carried, _ = compat.scan_counts(eqn)
    body = compat.as_function(eqn.params["jaxpr"])

    def step(carry: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*operands[:consts], *carry, *slices)
        return results[:carried], results[carried:]

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    carry, stacked = list(operands[consts : consts + carried]), list(operands[consts + carried :])
    step = jax.checkpoint(step, policy=policy, prevent_cse=False)
    carry, results = lax.scan(step, carry, stacked, **options)
    return [*carry, *results]
