"""Hashes of a program and of its cut into stages, and the difference of two programs in words."""

import hashlib
from collections.abc import Sequence
from typing import Any

from . import compat
from .program import Program
from .stage import Differentiation, Stage


def program_hash(program: Program, derivative: Differentiation) -> str:
    """A hash of what is planned: primitives, dataflow, shapes, dtypes and numbers.

    The bodies of loops, branches and calls count, and so do the integers among the parameters of
    equations, as the trips of a loop are; their names do not, since JAX changes them. So it holds
    across JAX versions that trace the function to the same equations.
    """
    digest = hashlib.sha256()
    for i in (*program.inputs, *program.constants):
        digest.update(f"{i}:{program.avals[i].str_short()}:{i in derivative.inputs};".encode())
    for e in program.equations:
        operands = [i if isinstance(i, int) else i.aval.str_short() for i in e.inputs]
        results = [(i, program.avals[i].str_short()) for i in e.outputs]
        bodies = [_describe_body(body) for body in compat.subjaxprs(e.eqn)]
        integers = compat.integers_of(e.eqn)
        digest.update(f"{e.primitive}{operands}{results}{bodies}{integers};".encode())
    digest.update(repr([i if isinstance(i, int) else "" for i in program.outputs]).encode())
    digest.update(repr(derivative.outputs).encode())
    if program.rewrite.codecs:
        digest.update(repr(program.rewrite.codecs).encode())
    if derivative.forward_mode or program.inlines_checkpoints:
        digest.update(f"{derivative.forward_mode}{program.inlines_checkpoints}".encode())
    return digest.hexdigest()


def cut_hash(stages: Sequence[Stage], structure: object) -> str:
    """A hash of how a program is cut: of what each stage runs, reads, writes and differentiates.

    Arguments:
        stages: all stages, also of the iterations of loops and of branches.
        structure: which of them are loops and branches; its `repr` counts.
    """
    digest = hashlib.sha256(repr(structure).encode())
    for stage in stages:
        ends = stage.inputs, stage.outputs
        differentiated = stage.differentiated_inputs, stage.differentiated_outputs
        digest.update(f"{ends}{differentiated}{stage.repeats}{stage.hoisted}".encode())
        for e in stage.equations:
            digest.update(f"{e.primitive}{e.reads}{e.outputs};".encode())
    return digest.hexdigest()


def joined_hashes(program: str, cut: str) -> str:
    """The fingerprint of a staged program: the hash of the program, and the hash of its cut."""
    return f"{program}/{cut}"


def has_program_hash(fingerprint: str, program: str) -> bool:
    """Whether the first half of a fingerprint is the hash of a program."""
    return fingerprint.partition("/")[0] == program


def is_same_program(a: str, b: str) -> bool:
    """Whether two fingerprints are of one program, however it is cut."""
    return has_program_hash(a, b.partition("/")[0])


def _describe_body(jaxpr: Any) -> str:
    """The equations of an inner jaxpr as text: primitives, dataflow, shapes and dtypes."""
    constvars, _, invars = compat.jaxpr_inputs(jaxpr)
    numbers: dict[Any, int] = {}

    def text(atom: Any) -> str:
        is_literal = isinstance(atom, compat.Literal)
        number = "" if is_literal else numbers.setdefault(atom, len(numbers))
        return f"{number}:{atom.aval.str_short()}"

    parts = [f"{[text(var) for var in (*constvars, *invars)]}"]
    for eqn in jaxpr.jaxpr.eqns:
        operands, results = [text(a) for a in eqn.invars], [text(a) for a in eqn.outvars]
        bodies = [_describe_body(body) for body in compat.subjaxprs(eqn)]
        integers = compat.integers_of(eqn)
        parts.append(f"{eqn.primitive.name}{operands}{results}{bodies}{integers}")
    parts.append(f"{[text(a) for a in jaxpr.jaxpr.outvars]}")
    return ";".join(parts)


#: What is said of a program without its equations: its inputs as text, and how many they are.
Summary = tuple[tuple[str, ...], int]


def summary(program: Program) -> Summary:
    """The inputs of a program as text, and the number of its equations."""
    return describe_inputs(program), len(program.equations)


def difference(now: Summary, then: Summary, whose: str = "the plan's") -> str:
    """What sets a program apart from one that was planned, in words."""
    inputs, planned = now[0], then[0]
    if len(inputs) != len(planned):
        return f"it takes {len(inputs)} arrays, {whose} took {len(planned)}"
    if inputs != planned:
        pairs = [(a, b) for a, b in zip(inputs, planned, strict=True) if a != b]
        return f"it takes `{pairs[0][0]}` where {whose} took `{pairs[0][1]}`"
    if now[1] != then[1]:
        return f"it has {now[1]} equations, {whose} had {then[1]}"
    return (
        "its equations differ in primitive, shape or order, or its gradient is taken with respect "
        "to other arguments (`argnums`)"
    )


def describe_inputs(program: Program) -> tuple[str, ...]:
    """The inputs of a program as short text: `float32[8,128]`."""
    return tuple(program.avals[i].str_short() for i in program.inputs)
