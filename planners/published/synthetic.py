"""Training steps of any size: a transformer of equal blocks, and a graph without repetition.

For measuring planners. Forward ops come from a description of the network; the backward is derived
from it (`recorder`), each op with the reads that its real derivative has: a product's reads its
other operand, an exponential's its own result, a sum's nothing. Ops are not fused, so a layer has a
hundred, and costs are a roofline's.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..graph import Graph
from .recorder import PartialDerivative, Recorder

_VOCABULARY = 32_768
# Of the irregular graph: shares of the kinds of ops, and of the binary ones that skip stages.
_KINDS = (0.3, 0.25, 0.1, 0.05, 0.2, 0.1)
_SKIPS = 0.15


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
    recorder, sizes = Recorder(), _Sizes(batch, tokens, width, heads)
    recorder.stage("embedding")
    table = 4 * _VOCABULARY * width
    x = recorder.op("embedding", [], sizes.hidden, PartialDerivative(None), parameter_bytes=table)
    for _ in range(blocks):
        recorder.stage("block")
        for _ in range(layers):
            x = _perceptron(recorder, sizes, _attention(recorder, sizes, x))
    recorder.stage("head")
    _head(recorder, sizes, x)
    return recorder.graph()


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
        """Bytes of a number for each head and pair of tokens."""
        return 2 * self.batch * self.heads * self.tokens**2

    @property
    def pair_flops(self) -> int:
        """Operations of a product that writes or reads `scores`."""
        return 2 * self.batch * self.tokens**2 * self.width

    def linear(self, recorder: Recorder, name: str, x: int, wide: tuple[int, int] = (1, 1)) -> int:
        """A linear layer; `wide` are the widths it reads and writes, over `width`."""
        flops = 2 * self.batch * self.tokens * self.width**2 * wide[0] * wide[1]
        parameters = 4 * self.width**2 * wide[0] * wide[1]
        return recorder.linear(name, x, self.hidden * wide[1], flops, parameters)

    def bias(self, recorder: Recorder, name: str, x: int) -> int:
        """The sum of an activation and a vector of parameters."""
        return recorder.bias(
            f"{name} bias", x, 2 * recorder.values[x].nbytes // (self.batch * self.tokens)
        )

    def normed(self, recorder: Recorder, x: int) -> int:
        """Layer normalization, op by op."""
        mean = recorder.map("mean", x, self.row)
        same = (PartialDerivative(x, is_same=True), PartialDerivative(mean))
        centred = recorder.op("centre", [x, mean], self.hidden, *same)
        square = recorder.map("square", centred, self.hidden, "in")
        deviation = recorder.map(
            "rsqrt", recorder.map("variance", square, self.row), self.row, "out"
        )
        unit = recorder.product("normalize", centred, deviation, self.hidden)
        terms = (PartialDerivative(unit), PartialDerivative(None, (unit,)))
        scaled = recorder.op("scale", [unit], self.hidden, *terms, parameter_bytes=4 * self.width)
        return recorder.bias("shift", scaled, 4 * self.width)


def _attention(recorder: Recorder, sizes: _Sizes, x: int) -> int:
    normed = sizes.normed(recorder, x)
    q, k, v = (
        recorder.map("heads", sizes.linear(recorder, name, normed), sizes.hidden) for name in "qkv"
    )
    scores = recorder.product("scores", q, k, sizes.scores, sizes.pair_flops)
    masked = recorder.map("mask", scores, sizes.scores)
    shares = recorder.dropout("drop", recorder.map("softmax", masked, sizes.scores, "out"))
    context = recorder.product("context", shares, v, sizes.hidden, sizes.pair_flops)
    out = sizes.linear(recorder, "project", context)
    return recorder.add("residual", x, sizes.bias(recorder, "project", out))


def _perceptron(recorder: Recorder, sizes: _Sizes, x: int) -> int:
    up = sizes.linear(recorder, "up", sizes.normed(recorder, x), (1, 4))
    up = sizes.bias(recorder, "up", up)
    wide = 4 * sizes.hidden
    gate = recorder.map("tanh", recorder.map("cubic", up, wide, "in"), wide, "out")
    active = recorder.product("gelu", up, gate, wide)
    down = sizes.linear(recorder, "down", active, (4, 1))
    out = recorder.dropout("drop", sizes.bias(recorder, "down", down))
    return recorder.add("residual", x, out)


def _head(recorder: Recorder, sizes: _Sizes, x: int) -> None:
    normed = sizes.normed(recorder, x)
    flops = 2 * sizes.batch * sizes.tokens * sizes.width * _VOCABULARY
    nbytes = 2 * sizes.batch * sizes.tokens * _VOCABULARY
    logits = recorder.linear("logits", normed, nbytes, flops, 4 * _VOCABULARY * sizes.width)
    recorder.map("loss", recorder.map("log-softmax", logits, nbytes, "out"), 4)


def irregular(n_ops: int, *, seed: int = 0) -> Graph:
    """A step of a network with skip connections in which nothing repeats.

    Sizes vary by two orders of magnitude. Each op reads what was written just before it; some also
    read a value of an earlier stage, near or far. No stage has a key.

    Arguments:
        n_ops: about so many, in stages of about 20 to 60.
        seed: of the draws.
    """
    rng, recorder = np.random.default_rng(seed), Recorder()
    recorder.stage()
    known, ends, count = [recorder.op("start", [], _nbytes(rng))], [], 1
    while count < n_ops:
        for _ in range(int(rng.integers(7, 20))):
            known.append(_random_op(rng, recorder, known, ends))
        count = recorder.n_ops
        if count < n_ops:
            ends += known[-3:]
            known = known[-1:]
            recorder.stage()
    recorder.map("loss", known[-1], 4)
    return recorder.graph()


def _random_op(
    rng: np.random.Generator, recorder: Recorder, near: Sequence[int], far: list[int]
) -> int:
    """One more op, which reads `near[-1]` and for some also another of `near` or of `far`."""
    x, nbytes = near[-1], _nbytes(rng)
    kind = rng.choice(["map", "linear", "bias", "dropout", "add", "product"], p=_KINDS)
    other = near[int(rng.integers(max(len(near) - 6, 0), len(near)))]
    if far and rng.random() < _SKIPS:
        other = far[-1 - min(int(rng.geometric(0.03)), len(far) - 1)]
    if kind == "map":
        return recorder.map("map", x, nbytes, str(rng.choice(["", "in", "out"])))
    if kind == "linear":
        flops = int(nbytes * 2 ** rng.uniform(6, 12))
        return recorder.linear("linear", x, nbytes, flops, _nbytes(rng))
    if kind == "bias":
        return recorder.bias("bias", x, int(rng.integers(1 << 10, 1 << 14)))
    if kind == "dropout":
        return recorder.dropout("drop", x)
    if kind == "add":
        return recorder.op(
            "add", [x, other], nbytes, PartialDerivative(x), PartialDerivative(other)
        )
    return recorder.product("product", x, other, nbytes, int(nbytes * 2 ** rng.uniform(0, 10)))


def _nbytes(rng: np.random.Generator) -> int:
    return int(2 ** rng.uniform(18, 25))
