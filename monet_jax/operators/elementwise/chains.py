"""Elementwise chains: values of a stage that follow from one other value, element by element.

A *chain* is an elementwise function of one value: a GELU, a softplus, with the scalings and sums on
the way. It consists of *links*, each of which ends in a value that alone determines the next.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...ir import compat
from ...ir.program import Equation, positions_of, run
from ...ir.stage import Stage
from ..codecs import FLOATS
from ..hooks import is_hook
from .pointwise import is_elementwise, is_uniform

#: Links of a chain, at most: each prefix of a chain is tested.
_LONGEST = 16


@dataclasses.dataclass(frozen=True, eq=False)
class ElementwiseChain:
    """An elementwise function of one value; to be called with an array.

    Attributes:
        equations: in order. Every other value that they read is one number, known while tracing.
        source: the operand.
        result: the value that is computed.
    """

    equations: tuple[Equation, ...]
    source: int
    result: int

    def __call__(self, x: jax.Array) -> jax.Array:
        """The result."""
        env: dict[int, Any] = {self.source: x}
        for e in self.equations:
            if is_hook(e):
                env[e.outputs[0]] = env[e.reads[0]]
            else:
                run([e], env, {})
        return env[self.result]

    def local_derivative(self, x: jax.Array) -> jax.Array:
        """The local derivative, element by element."""
        return jax.jvp(self, (x,), (jnp.ones_like(x),))[1]


@dataclasses.dataclass(frozen=True)
class Link:
    """How a value follows, element by element, from the nearest value that alone determines it.

    Attributes:
        equations: all equations between the two values, by their positions in the stage.
        source: the determining value.
    """

    equations: Mapping[int, Equation]
    source: int


class ChainFinder:
    """Finds how the values of a stage follow from others, element by element.

    Arguments:
        stage: its equations.
        may_end: whether a chain may begin or end with a value.
        avals: of all values.
    """

    def __init__(self, stage: Stage, may_end: Callable[[int], bool], avals: Sequence[Any]):
        self.stage, self.may_end, self.avals = stage, may_end, avals
        self.writer = {i: e for e in stage.equations for i in e.outputs}
        self.position = positions_of(stage.equations)
        self.readers: dict[int, list[int]] = {}
        for n, e in enumerate(stage.equations):
            for i in e.reads:
                self.readers.setdefault(i, []).append(n)
        self.uniform: set[int] = set()
        for e in stage.equations:
            if is_uniform(e, self.uniform):
                self.uniform.update(e.outputs)

    def is_uniform(self, equation: Equation) -> bool:
        """Whether the results of an equation are one number each."""
        return self.uniform.issuperset(equation.outputs)

    def chain(self, result: int, links: Sequence[Link]) -> ElementwiseChain:
        """The chain of consecutive links, with the equations of the numbers that it reads."""
        equations = {n: e for link in links for n, e in link.equations.items()}
        pending = [i for e in equations.values() for i in e.reads]
        while pending:
            i = pending.pop()
            if i in self.uniform and self.position[i] not in equations:
                equations[self.position[i]] = self.writer[i]
                pending += self.writer[i].reads
        ordered = tuple(equations[n] for n in sorted(equations))
        return ElementwiseChain(ordered, links[-1].source, result)

    def before(self, value: int) -> list[Link]:
        """The links before a value, back to a value that is read elsewhere too."""
        links: list[Link] = []
        while len(links) < _LONGEST:
            link = self._link(value)
            if link is None or not self.is_end(link.source):
                break
            links.append(link)
            value = link.source
            if self._is_read_outside(value, link):
                break
        return links

    def is_end(self, value: int) -> bool:
        """Whether a chain may begin or end with a value."""
        return self.may_end(value) and self.avals[value].dtype in FLOATS

    def _link(self, value: int) -> Link | None:
        """The link that ends in a value; None without one, or where others read a value inside."""
        shape, found, pending = self.avals[value].shape, dict[int, Equation](), {value}
        while not found or len(pending) > 1 or not all(map(self._is_float, pending)):
            last = max(pending, key=lambda i: self.position.get(i, -1))
            equation = self.writer.get(last)
            if equation is None or not is_elementwise(equation, self.uniform, shape):
                return None
            found[self.position[last]] = equation
            pending.remove(last)
            pending.update(i for i in _operands(equation) if i not in self.uniform)
        if not pending:
            return None
        link = Link(found, pending.pop())
        between = {e.outputs[0] for e in found.values()} - {value}
        return None if any(self._is_read_outside(i, link) for i in between) else link

    def _is_float(self, value: int) -> bool:
        return compat.is_float(self.avals[value])

    def _is_read_outside(self, value: int, link: Link) -> bool:
        readers = self.readers.get(value, [])
        return value in self.stage.outputs or any(n not in link.equations for n in readers)


def _operands(equation: Equation) -> tuple[int, ...]:
    """The operands that a result depends on: of a residual hook, the residual."""
    return equation.reads[:1] if is_hook(equation) else equation.reads
