"""Emits lookups in tables so that a table's gradient takes no memory before it begins.

The derivative of a lookup adds to zeros as large as the table. All lookups in tables of one shape
share these zeros, which XLA:GPU may make when the program starts and keep for the last of them: 36
of 231 MiB of temporaries of a Transformer whose source, target and output share an embedding.
"""

import collections
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from ..ir import compat
from ..ir.program import Equation, Program


def with_lookups(
    equations: Sequence[Equation],
    program: Program,
    active: Collection[int],
    shared: Collection[int],
) -> list[Equation]:
    """The equations, lookups by a primitive whose derivative makes the zeros late.

    A table that something else reads, too, stays with `gather`: there XLA adds to the other
    gradient and needs no zeros.

    Arguments:
        equations: of a stage.
        program: that they are of.
        active: values that will be differentiated.
        shared: values that other stages read.
    """
    readers = collections.Counter(i for equation in equations for i in equation.reads)

    def is_lookup(equation: Equation) -> bool:
        if equation.primitive != "gather" or equation.inputs[0] not in active:
            return False
        table, (result,) = equation.inputs[0], equation.outputs
        is_alone = readers[table] == 1 and table not in shared
        is_larger = program.nbytes(table) > program.nbytes(result)
        return is_alone and is_larger and not _is_placed(program.avals[table])

    return [_as_lookup(e) if is_lookup(e) else e for e in equations]


def _as_lookup(equation: Equation) -> Equation:
    return dataclasses.replace(equation, eqn=equation.eqn.replace(primitive=compat.lookup_p))


def _is_placed(aval: Any) -> bool:
    """Whether explicit or manual axes say where an array is: then so must the zeros."""
    return compat.explicit_sharding(aval) is not None or bool(compat.varying_axes(aval))
