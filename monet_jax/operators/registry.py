"""The operators by name, and the operators that a selection means."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..ir.program import Program, Replacement, Rewrite
from ..ir.stage import Differentiation, Replaced, Stage
from . import codecs, indices, masks, matrices, pooling, softmax
from .codecs import Kind
from .compression import local_derivatives, operands
from .context import Context, Operator
from .elementwise import results
from .tiling import attention, chunked_loss

#: All operators, by name.
_REGISTRY: dict[str, Operator] = {}

#: Selections by one word.
SELECTIONS = ("exact", "lossy", "none")

#: The lossy operators that the selection "lossy" adds to the exact ones.
DEFAULT = ("int8", "slope8")


def register(operator: Operator) -> Operator:
    """Make an operator known by its name; later ones take precedence.

    Raises:
        ValueError: an operator has that name already.
    """
    if operator.name in _REGISTRY:
        raise ValueError(f"There is an operator `{operator.name}` already. Choose another name.")
    _REGISTRY[operator.name] = operator
    return operator


def selected(selection: str | Iterable[str]) -> tuple[Operator, ...]:
    """The operators that a selection means.

    Arguments:
        selection: "exact" (all operators that are neither lossy nor used only by name), "none",
            "lossy" (the exact ones, "int8" and "slope8"), or names of operators; where several
            store the same value, a plan prefers the later one.

    Raises:
        ValueError, TypeError: it is no selection.
    """
    if selection == "none":
        return ()
    if selection in ("exact", "lossy"):
        found = tuple(x for x in _REGISTRY.values() if not (x.kind.is_lossy or x.by_name))
        return found if selection == "exact" else (*found, *map(_REGISTRY.__getitem__, DEFAULT))
    if isinstance(selection, str) or not isinstance(selection, Iterable):
        kind = ValueError if isinstance(selection, str) else TypeError
        raise kind(
            f"`operators` must be one of {SELECTIONS} or a list of names; got {selection!r}."
        )
    names = tuple(selection)
    if unknown := [name for name in names if name not in _REGISTRY]:
        raise ValueError(f"There are no operators {unknown}; there are {sorted(_REGISTRY)}.")
    return tuple(_REGISTRY[name] for name in names)


def only_by_name() -> tuple[str, ...]:
    """The operators that are used only where they are selected by their names."""
    return tuple(x.name for x in _REGISTRY.values() if x.by_name)


def rewriter(operators: Sequence[Operator], context: Context) -> Rewrite:
    """The rewriting of some operators: the last one that applies to an equation replaces it."""
    programs = [x.program for x in reversed(operators) if x.program is not None]
    rewrites = [x.rewrite for x in reversed(operators) if x.rewrite is not None]

    def rewritten(eqn: Any) -> Replacement | None:
        return next((found for x in rewrites if (found := x(eqn, context)) is not None), None)

    encoding = [x.codec for x in operators if x.codec is not None]
    if context.is_sharded:
        encoding = [x for x in encoding if getattr(x, "keeps_places", False)]
    changing = tuple(functools.partial(_in, context, x) for x in programs)
    inside = dataclasses.replace(context, in_loop=True)
    bodies = tuple(functools.partial(_in, inside, x) for x in programs)
    stages = tuple(functools.partial(_at, context, x.stage) for x in operators if x.stage)
    barriers = context.backend.fuses_gradients
    return Rewrite(
        rewritten,
        tuple(encoding),
        changing,
        bodies,
        stages,
        separates_convolutions=barriers,
        flattens_kernels=barriers and not context.is_sharded,
        delays_tables=context.backend.makes_zeros_early,
        writes_saved_once=context.backend.writes_for_each_view,
        waits_in_stacks=context.backend.fetches_at_once,
        rounds_slices=context.backend.casts_before_loops,
        tile=context.backend.tile,
    )


def _in(
    context: Context, rewrite: Callable[..., Program], program: Program, derivative: Differentiation
) -> Program:
    """A program as an operator rewrites it in some context."""
    return rewrite(program, derivative, context)


def _at(
    context: Context, rewrite: Callable[..., Replaced], stage: Stage, avals: list[Any]
) -> Replaced:
    """A stage as an operator rewrites it in some context."""
    return rewrite(stage, avals, context)


register(Operator("mask", Kind.BITWISE, masks.rewrite))
register(Operator("pool", Kind.REORDERED, pooling.rewrite))
register(Operator("matrix", Kind.REORDERED, matrices.rewrite))
register(Operator("head", Kind.REORDERED, program=chunked_loss.Head()))
register(Operator("attention", Kind.REORDERED, program=attention.Attention(), by_name=True))
register(Operator("softmax", Kind.REORDERED, stage=softmax.rewrite))
register(Operator("narrow", Kind.BITWISE, program=indices.rewrite))
register(Operator("result", Kind.REORDERED, stage=results.rewrite))
for _codec in (
    codecs.BFloat16(),
    codecs.RandomBFloat16(),
    codecs.Float8(),
    codecs.Groups(8),
    codecs.Groups(4, 128),
    codecs.Groups(2, 64),
    operands.Convolutions(codecs.Pool()),
    operands.Convolutions(codecs.Pool(pooling="soft")),
    operands.Convolutions(codecs.PoolResidual()),
    operands.Convolutions(codecs.Pixel()),
    operands.Products(codecs.Rows()),
    operands.Products(codecs.Blocks()),
    local_derivatives.OfLocalDerivatives(8),
    local_derivatives.OfLocalDerivatives(4),
    local_derivatives.OfLocalDerivatives(2),
):
    register(Operator(_codec.name, _codec.kind, codec=_codec))
