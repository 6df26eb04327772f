"""Graphs that the planner tests share: tiny named ones, and a generator of random ones."""

import dataclasses

import numpy as np

from planners import Graph, Op, Stage, Value


class Builder:
    """Builds a graph by names."""

    def __init__(self):
        self.values: list[Value] = []
        self._index: dict[str, int] = {}

    def op(self, name: str, reads: str, writes: str, seconds: float = 1.0, **more) -> Op:
        """An op; `writes` is "x:4 y:8!" for savable x of 4 bytes, y of 8 that is not savable."""
        outputs = []
        for word in writes.split():
            value, _, size = word.partition(":")
            savable = not size.endswith("!")
            self._index[value] = len(self.values)
            outputs.append(len(self.values))
            self.values.append(Value(value, int(size.rstrip("!")), savable))
        inputs = tuple(self._index[value] for value in reads.split())
        return Op(name, inputs, tuple(outputs), seconds, **more)

    def graph(self, *stages: Stage) -> Graph:
        return Graph(tuple(self.values), stages)


def blocks(count: int, *, seed: int = 0, kinds: int = 2, n_forward: int = 15) -> Graph:
    """Residual blocks in a chain, of alternating kinds that repeat, with a stem and a head."""
    rng = np.random.default_rng(seed)
    kind_costs = [
        (rng.integers(1, 9, n_forward) * 2**20, rng.random(n_forward) + 0.1, rng.integers(0, 3, n_forward))
        for _ in range(kinds)
    ]
    make = Builder()
    forward: list[list[Op]] = []
    x = "x0"
    forward.append([make.op("stem", "", f"{x}:{4 * 2**20}")])
    for b in range(count):
        sizes, seconds, hops = kind_costs[b % kinds]
        ops, names = [], [x]
        for k in range(n_forward):
            read = {names[-1], names[max(0, len(names) - 2 - int(hops[k]))]}
            if k == n_forward - 1:
                read = {names[-1], x}
            size = 4 * 2**20 if k == n_forward - 1 else int(sizes[k])
            name = f"b{b}_{k}"
            ops.append(make.op(f"op{k}", " ".join(sorted(read)), f"{name}:{size}", seconds[k], flops=int(1e6 * seconds[k])))
            names.append(name)
        x = names[-1]
        forward.append(ops)
    forward.append([make.op("head", x, "loss:4")])
    backward: list[list[Op]] = [[] for _ in forward]
    gradient = {}
    for s in range(len(forward) - 1, -1, -1):
        for op in reversed(forward[s]):
            out = make.values[op.outputs[0]].name
            ins = [make.values[i].name for i in op.inputs]
            for u in ins:
                reads = [*dict.fromkeys(ins), *([gradient[out]] if out in gradient else [])]
                if u in gradient:
                    reads.append(gradient[u])
                new = f"d{u}_{s}_{out}"
                backward[s].append(make.op(f"d{op.name}", " ".join(reads), f"{new}:{make.values[make._index[u]].nbytes}!", op.seconds))
                gradient[u] = new
    stages = [Stage(f"stage{s}", tuple(f), tuple(b)) for s, (f, b) in enumerate(zip(forward, backward))]
    return make.graph(*stages)


def random_graph(seed: int, *, n_stages: int | None = None, n_forward: int = 3) -> Graph:
    """A small graph with skips across stages, ops that must run once, workspaces and pairs."""
    rng = np.random.default_rng(seed)
    make, known, forward = Builder(), [], []
    for s in range(n_stages or int(rng.integers(2, 5))):
        ops = []
        for o in range(int(rng.integers(1, n_forward + 1))):
            outs = [f"v{s}_{o}_{k}" for k in range(1 + (rng.random() < 0.2))]
            reads = _some(rng, known[-2:], 0.8) | _some(rng, known[:-2], 0.25)
            ops.append(_random_op(rng, make, f"f{s}_{o}", reads, outs, ""))
            known += outs
        forward.append(ops)
    backward: list[list[Op]] = [[] for _ in forward]
    gradients: list[str] = []
    for s in range(len(forward) - 1, -1, -1):
        before = {make.values[i].name for ops in forward[:s] for op in ops for i in op.outputs}
        own = {make.values[i].name for op in forward[s] for i in op.outputs}
        for o in range(int(rng.integers(1, 4))):
            reads = _some(rng, own, 0.5) | _some(rng, before, 0.2)
            reads |= set(gradients[-1:]) | _some(rng, gradients, 0.2)
            out = [f"d{s}_{o}"]
            backward[s].append(_random_op(rng, make, f"b{s}_{o}", reads, out, "!"))
            gradients += out
    pairs = zip(forward, backward, strict=True)
    stages = [Stage(f"stage{s}", tuple(f), tuple(b)) for s, (f, b) in enumerate(pairs)]
    return make.graph(*stages)


def _some(rng: np.random.Generator, names, share: float) -> set[str]:
    return {name for name in sorted(names) if rng.random() < share}


def _random_op(rng, make: Builder, name: str, reads: set[str], outs: list[str], mark: str) -> Op:
    writes = " ".join(
        f"{out}:{rng.integers(1, 20)}{mark or '!' * bool(rng.random() < 0.1)}" for out in outs
    )
    return make.op(
        name,
        " ".join(sorted(reads)),
        writes,
        float(rng.integers(0, 8)),
        flops=int(rng.integers(0, 5)),
        workspace_bytes=int(rng.integers(0, 10)) * bool(rng.random() < 0.3),
        recomputable=bool(rng.random() < 0.85),
    )
