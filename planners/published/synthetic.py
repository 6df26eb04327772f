"""Training steps of any size: a transformer of equal blocks, and a graph without repetition.

For measuring planners. Forward ops come from a description of the network; the backward is derived
from it by reverse accumulation, each op with the reads that its real derivative has: a product's
reads its other operand, an exponential's its own result, a sum's nothing. Ops are not fused, so a
layer has a hundred, and costs are a roofline's.

| index | means |
|---|---|
| `i` | a value of the graph |
| `s` | a stage |
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..graph import Graph, Op, Stage, Value

# An accelerator that sustains so much: bytes a second, and operations a second.
_BANDWIDTH, _COMPUTE = 2e12, 2e14
_VOCABULARY = 32_768
# Of the irregular graph: shares of the kinds of ops, and of the binary ones that skip stages.
_KINDS = (0.3, 0.25, 0.1, 0.05, 0.2, 0.1)
_SKIPS = 0.15


@dataclasses.dataclass(frozen=True, slots=True)
class _Term:
    """The derivative of a forward op by one thing that it reads.

    Attributes:
        of: the value whose gradient it adds to; None where that is a parameter's, a result.
        reads: forward values that it needs, beside the gradient of the op's output.
        flops: as of an op.
        is_same: whether the gradient is that of the output, so that no op runs.
    """

    of: int | None
    reads: tuple[int, ...] = ()
    flops: int = 0
    is_same: bool = False


class _Tape:
    """Forward ops as they are written down, and the backward that follows from them."""

    def __init__(self):
        self.values: list[Value] = []
        self.keys: list[str | None] = []
        self._forward: list[list[Op]] = []
        self._terms: list[list[tuple[int, tuple[_Term, ...]]]] = []
        self._results: list[list[int]] = []
        self._read: set[int | None] = set()
        self.n_ops = 0  # of the step so far, backward included

    def stage(self, key: str | None = None) -> None:
        """What follows belongs to a new stage."""
        self.keys.append(key)
        self._forward.append([])
        self._terms.append([])
        self._results.append([])

    def op(
        self,
        name: str,
        reads: Sequence[int],
        nbytes: int,
        *terms: _Term,
        flops: int = 0,
        parameter_bytes: int = 0,
    ) -> int:
        """Writes down a forward op; returns the value that it writes."""
        out = self._value(name, nbytes, savable=True)
        self._forward[-1].append(self._op(name, reads, (out,), flops, parameter_bytes))
        self._terms[-1].append((out, terms))
        self.n_ops += 1
        for x in terms:
            self.n_ops += (not x.is_same) + (x.of in self._read)
            self._read |= {x.of} - {None}
        if parameter_bytes:
            self._results[-1].append(parameter_bytes)
        return out

    def map(self, name: str, x: int, nbytes: int, reads: str = "") -> int:
        """An elementwise function, a reduction or a copy; its derivative reads "in" or "out"."""
        out = len(self.values)
        return self.op(name, [x], nbytes, _Term(x, {"": (), "in": (x,), "out": (out,)}[reads]))

    def add(self, name: str, a: int, b: int) -> int:
        """The sum of two values."""
        same = (_Term(a, is_same=True), _Term(b, is_same=True))
        return self.op(name, [a, b], self.values[a].nbytes, *same)

    def product(self, name: str, a: int, b: int, nbytes: int, flops: int = 0) -> int:
        """A product, elementwise or of matrices: the derivative by one reads the other."""
        terms = (_Term(a, (b,), flops), _Term(b, (a,), flops))
        return self.op(name, [a, b], nbytes, *terms, flops=flops)

    def linear(self, name: str, x: int, nbytes: int, flops: int, parameter_bytes: int) -> int:
        """A product with a matrix of parameters."""
        terms = (_Term(x, (), flops), _Term(None, (x,), flops))
        return self.op(name, [x], nbytes, *terms, flops=flops, parameter_bytes=parameter_bytes)

    def bias(self, name: str, x: int, parameter_bytes: int) -> int:
        """A sum with parameters."""
        terms = (_Term(x, is_same=True), _Term(None))
        nbytes = self.values[x].nbytes
        return self.op(name, [x], nbytes, *terms, parameter_bytes=parameter_bytes)

    def dropout(self, name: str, x: int) -> int:
        """A product with random bits, a byte each, that may be drawn again."""
        nbytes = self.values[x].nbytes
        mask = self.op(f"{name} mask", [], nbytes // 2, flops=20 * nbytes)
        return self.op(name, [x, mask], nbytes, _Term(x, (mask,)))

    def graph(self) -> Graph:
        """The step."""
        gradients: dict[int, int] = {}
        stages = reversed(range(len(self._forward)))
        backward = [self._backward(s, gradients) for s in stages][::-1]
        rows = zip(self._forward, backward, self.keys, self._results, strict=True)
        return Graph(
            tuple(self.values),
            tuple(
                Stage(f"stage {s}", tuple(f), tuple(b), key, result_bytes=tuple(results))
                for s, (f, b, key, results) in enumerate(rows)
            ),
        )

    def _backward(self, s: int, gradients: dict[int, int]) -> list[Op]:
        """The backward of a stage; `gradients` are the values known so far, and is added to."""
        ops: list[Op] = []

        def write(like: int, reads: Sequence[int], flops: int = 0) -> int:
            out = self._value("d", self.values[like].nbytes, savable=False)
            ops.append(self._op("d", reads, (out,), flops, 0))
            return out

        for out, terms in reversed(self._terms[s]):
            if not terms:
                continue
            if out not in gradients:  # nothing reads it: the loss
                gradients[out] = write(out, ())
            for x in terms:
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


def transformer(
    blocks: int,
    *,
    layers: int = 5,
    batch: int = 8,
    tokens: int = 512,
    width: int = 1024,
    heads: int = 16,
) -> Graph:
    """A step of a transformer of equal blocks with dropout, in bfloat16.

    Arguments:
        blocks: a stage each, all with the same `Stage.key`; an embedding and a head come on top.
        layers: of attention and perceptron in each block, a hundred ops each.
        batch, tokens, width, heads: sizes of the arrays.
    """
    tape, sizes = _Tape(), _Sizes(batch, tokens, width, heads)
    tape.stage("embedding")
    table = 4 * _VOCABULARY * width
    x = tape.op("embedding", [], sizes.hidden, _Term(None), parameter_bytes=table)
    for _ in range(blocks):
        tape.stage("block")
        for _ in range(layers):
            x = _perceptron(tape, sizes, _attention(tape, sizes, x))
    tape.stage("head")
    _head(tape, sizes, x)
    return tape.graph()


@dataclasses.dataclass(frozen=True, slots=True)
class _Sizes:
    batch: int
    tokens: int
    width: int
    heads: int

    @property
    def row(self) -> int:
        """Bytes of one number a token."""
        return 4 * self.batch * self.tokens

    @property
    def hidden(self) -> int:
        """Bytes of one activation."""
        return 2 * self.batch * self.tokens * self.width

    @property
    def scores(self) -> int:
        """Bytes of what attention holds for each pair of tokens."""
        return 2 * self.batch * self.heads * self.tokens**2

    @property
    def pair_flops(self) -> int:
        """Operations of a product that writes or reads `scores`."""
        return 2 * self.batch * self.tokens**2 * self.width

    def linear(self, tape: _Tape, name: str, x: int, wide: tuple[int, int] = (1, 1)) -> int:
        """A linear layer; `wide` are the widths it reads and writes, over `width`."""
        flops = 2 * self.batch * self.tokens * self.width**2 * wide[0] * wide[1]
        parameters = 4 * self.width**2 * wide[0] * wide[1]
        return tape.linear(name, x, self.hidden * wide[1], flops, parameters)

    def bias(self, tape: _Tape, name: str, x: int) -> int:
        """The sum of an activation and a vector of parameters."""
        return tape.bias(f"{name} bias", x, 2 * tape.values[x].nbytes // (self.batch * self.tokens))

    def normed(self, tape: _Tape, x: int) -> int:
        """Layer normalization, op by op."""
        mean = tape.map("mean", x, self.row)
        same = (_Term(x, is_same=True), _Term(mean))
        centred = tape.op("centre", [x, mean], self.hidden, *same)
        square = tape.map("square", centred, self.hidden, "in")
        deviation = tape.map("rsqrt", tape.map("variance", square, self.row), self.row, "out")
        unit = tape.product("normalize", centred, deviation, self.hidden)
        terms = (_Term(unit), _Term(None, (unit,)))
        scaled = tape.op("scale", [unit], self.hidden, *terms, parameter_bytes=4 * self.width)
        return tape.bias("shift", scaled, 4 * self.width)


def _attention(tape: _Tape, sizes: _Sizes, x: int) -> int:
    normed = sizes.normed(tape, x)
    q, k, v = (tape.map("heads", sizes.linear(tape, name, normed), sizes.hidden) for name in "qkv")
    scores = tape.product("scores", q, k, sizes.scores, sizes.pair_flops)
    masked = tape.map("mask", scores, sizes.scores)
    shares = tape.dropout("drop", tape.map("softmax", masked, sizes.scores, "out"))
    context = tape.product("context", shares, v, sizes.hidden, sizes.pair_flops)
    out = sizes.linear(tape, "project", context)
    return tape.add("residual", x, sizes.bias(tape, "project", out))


def _perceptron(tape: _Tape, sizes: _Sizes, x: int) -> int:
    up = sizes.linear(tape, "up", sizes.normed(tape, x), (1, 4))
    up = sizes.bias(tape, "up", up)
    wide = 4 * sizes.hidden
    gate = tape.map("tanh", tape.map("cubic", up, wide, "in"), wide, "out")
    active = tape.product("gelu", up, gate, wide)
    down = sizes.linear(tape, "down", active, (4, 1))
    out = tape.dropout("drop", sizes.bias(tape, "down", down))
    return tape.add("residual", x, out)


def _head(tape: _Tape, sizes: _Sizes, x: int) -> None:
    normed = sizes.normed(tape, x)
    flops = 2 * sizes.batch * sizes.tokens * sizes.width * _VOCABULARY
    nbytes = 2 * sizes.batch * sizes.tokens * _VOCABULARY
    logits = tape.linear("logits", normed, nbytes, flops, 4 * _VOCABULARY * sizes.width)
    tape.map("loss", tape.map("log-softmax", logits, nbytes, "out"), 4)


def irregular(n_ops: int, *, seed: int = 0) -> Graph:
    """A step of a network with skip connections in which nothing repeats.

    Sizes vary by two orders of magnitude. Each op reads what was written just before it; some also
    read a value of an earlier stage, near or far. No stage has a key.

    Arguments:
        n_ops: about so many, in stages of about 20 to 60.
        seed: of the draws.
    """
    rng, tape = np.random.default_rng(seed), _Tape()
    tape.stage()
    known, ends, count = [tape.op("start", [], _nbytes(rng))], [], 1
    while count < n_ops:
        for _ in range(int(rng.integers(7, 20))):
            known.append(_random_op(rng, tape, known, ends))
        count = tape.n_ops
        if count < n_ops:
            ends += known[-3:]
            known = known[-1:]
            tape.stage()
    tape.map("loss", known[-1], 4)
    return tape.graph()


def _random_op(rng: np.random.Generator, tape: _Tape, near: Sequence[int], far: list[int]) -> int:
    """One more op, which reads `near[-1]` and for some also another of `near` or of `far`."""
    x, nbytes = near[-1], _nbytes(rng)
    kind = rng.choice(["map", "linear", "bias", "dropout", "add", "product"], p=_KINDS)
    other = near[int(rng.integers(max(len(near) - 6, 0), len(near)))]
    if far and rng.random() < _SKIPS:
        other = far[-1 - min(int(rng.geometric(0.03)), len(far) - 1)]
    if kind == "map":
        return tape.map("map", x, nbytes, str(rng.choice(["", "in", "out"])))
    if kind == "linear":
        flops = int(nbytes * 2 ** rng.uniform(6, 12))
        return tape.linear("linear", x, nbytes, flops, _nbytes(rng))
    if kind == "bias":
        return tape.bias("bias", x, int(rng.integers(1 << 10, 1 << 14)))
    if kind == "dropout":
        return tape.dropout("drop", x)
    if kind == "add":
        return tape.op("add", [x, other], nbytes, _Term(x), _Term(other))
    return tape.product("product", x, other, nbytes, int(nbytes * 2 ** rng.uniform(0, 10)))


def _nbytes(rng: np.random.Generator) -> int:
    return int(2 ** rng.uniform(18, 25))
