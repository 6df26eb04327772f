"""Reverse accumulation: the backward ops that follow from forward ops as they are written down.

| index | means |
|---|---|
| `i` | a value of the graph |
| `s` | a stage |
"""

import dataclasses
from collections.abc import Sequence

from ..graph import Graph, Op, Stage, Value

# An accelerator that sustains so much: bytes a second, and operations a second.
_BANDWIDTH, _COMPUTE = 2e12, 2e14


@dataclasses.dataclass(frozen=True, slots=True)
class PartialDerivative:
    """The derivative of a forward op by one thing that it reads.

    Attributes:
        of: the value whose gradient it adds to; None for a parameter, whose gradient is a result.
        reads: forward values that it needs, beside the gradient of the op's output.
        flops: as of an op.
        is_same: whether it equals the output's gradient, so that no op runs.
    """

    of: int | None
    reads: tuple[int, ...] = ()
    flops: int = 0
    is_same: bool = False


class Recorder:
    """Forward ops as they are written down, and the backward that follows from them."""

    def __init__(self):
        self.values: list[Value] = []
        self.keys: list[str | None] = []
        self._forward: list[list[Op]] = []
        self._derivatives: list[list[tuple[int, tuple[PartialDerivative, ...]]]] = []
        self._results: list[list[int]] = []
        self._read: set[int | None] = set()
        self.n_ops = 0  # of the step so far, backward included

    def stage(self, key: str | None = None) -> None:
        """What follows belongs to a new stage."""
        self.keys.append(key)
        self._forward.append([])
        self._derivatives.append([])
        self._results.append([])

    def op(
        self,
        name: str,
        reads: Sequence[int],
        nbytes: int,
        *derivatives: PartialDerivative,
        flops: int = 0,
        parameter_bytes: int = 0,
    ) -> int:
        """Writes down a forward op; returns the value that it writes."""
        out = self._value(name, nbytes, savable=True)
        self._forward[-1].append(self._op(name, reads, (out,), flops, parameter_bytes))
        self._derivatives[-1].append((out, derivatives))
        self.n_ops += 1
        for x in derivatives:
            self.n_ops += (not x.is_same) + (x.of in self._read)
            self._read |= {x.of} - {None}
        if parameter_bytes:
            self._results[-1].append(parameter_bytes)
        return out

    def map(self, name: str, x: int, nbytes: int, reads: str = "") -> int:
        """An elementwise function, a reduction or a copy; its derivative reads "in" or "out"."""
        out = len(self.values)
        return self.op(
            name, [x], nbytes, PartialDerivative(x, {"": (), "in": (x,), "out": (out,)}[reads])
        )

    def add(self, name: str, a: int, b: int) -> int:
        """The sum of two values."""
        same = (PartialDerivative(a, is_same=True), PartialDerivative(b, is_same=True))
        return self.op(name, [a, b], self.values[a].nbytes, *same)

    def product(self, name: str, a: int, b: int, nbytes: int, flops: int = 0) -> int:
        """A product, elementwise or of matrices: the derivative by one reads the other."""
        derivatives = (PartialDerivative(a, (b,), flops), PartialDerivative(b, (a,), flops))
        return self.op(name, [a, b], nbytes, *derivatives, flops=flops)

    def linear(self, name: str, x: int, nbytes: int, flops: int, parameter_bytes: int) -> int:
        """A product with a matrix of parameters."""
        derivatives = (PartialDerivative(x, (), flops), PartialDerivative(None, (x,), flops))
        return self.op(
            name, [x], nbytes, *derivatives, flops=flops, parameter_bytes=parameter_bytes
        )

    def bias(self, name: str, x: int, parameter_bytes: int) -> int:
        """A sum with parameters."""
        derivatives = (PartialDerivative(x, is_same=True), PartialDerivative(None))
        nbytes = self.values[x].nbytes
        return self.op(name, [x], nbytes, *derivatives, parameter_bytes=parameter_bytes)

    def dropout(self, name: str, x: int) -> int:
        """A product with random bits, a byte each, that may be drawn again."""
        nbytes = self.values[x].nbytes
        mask = self.op(f"{name} mask", [], nbytes // 2, flops=20 * nbytes)
        return self.op(name, [x, mask], nbytes, PartialDerivative(x, (mask,)))

    def graph(self) -> Graph:
        """The step."""
        gradients: dict[int, int] = {}
        stages = reversed(range(len(self._forward)))
        backward = [self._backward(s, gradients) for s in stages][::-1]
        parts = zip(self._forward, backward, self.keys, self._results, strict=True)
        return Graph(
            tuple(self.values),
            tuple(
                Stage(f"stage {s}", tuple(f), tuple(b), key, result_bytes=tuple(results))
                for s, (f, b, key, results) in enumerate(parts)
            ),
        )

    def _backward(self, s: int, gradients: dict[int, int]) -> list[Op]:
        """The backward of a stage; `gradients` are the values known so far, and is added to."""
        ops: list[Op] = []

        def write(like: int, reads: Sequence[int], flops: int = 0) -> int:
            out = self._value("d", self.values[like].nbytes, savable=False)
            ops.append(self._op("d", reads, (out,), flops, 0))
            return out

        for out, derivatives in reversed(self._derivatives[s]):
            if not derivatives:
                continue
            if out not in gradients:  # nothing reads it: the loss
                gradients[out] = write(out, ())
            for x in derivatives:
                reads = (gradients[out], *x.reads)
                if x.of is None:
                    ops.append(self._op("d parameters", reads, (), x.flops, 0))
                    continue
                new = gradients[out] if x.is_same else write(x.of, reads, x.flops)
                if x.of in gradients:
                    new = write(x.of, (gradients[x.of], new))
                gradients[x.of] = new
        return ops

    def _value(self, name: str, nbytes: int, *, savable: bool) -> int:
        self.values.append(Value(f"{name}.{len(self.values)}", nbytes, savable))
        return len(self.values) - 1

    def _op(
        self, name: str, reads: Sequence[int], writes: tuple[int, ...], flops: int, more: int
    ) -> Op:
        """An op that moves its values and `more` bytes once."""
        inputs = tuple(dict.fromkeys(reads))
        nbytes = sum(self.values[i].nbytes for i in (*inputs, *writes)) + more
        return Op(name, inputs, writes, max(nbytes / _BANDWIDTH, flops / _COMPUTE), flops)
