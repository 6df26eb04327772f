"""Graphs that the planner tests share: tiny named ones, long ones, and random small ones."""

import dataclasses
import itertools as it
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from planners import Choice, Graph, Implementation, Op, Region, Stage, Value


class Builder:
    """Builds a graph by names."""

    def __init__(self):
        self.values: list[Value] = []
        self._index: dict[str, int] = {}

    def op(self, name: str, reads: str, writes: str, seconds: float = 1.0, **more) -> Op:
        """An op; `writes` is "x:4 y:8!" for savable x of 4 bytes and y of 8, not savable."""
        first = len(self.values)
        for word in writes.split():
            value, size = word.split(":")
            self._index[value] = len(self.values)
            self.values.append(Value(value, int(size.rstrip("!")), not size.endswith("!")))
        inputs = tuple(self._index[value] for value in reads.split())
        return Op(name, inputs, tuple(range(first, len(self.values))), seconds, **more)

    def graph(
        self,
        forward: Sequence[Iterable[Op]],
        backward: Sequence[Iterable[Op]],
        alone_bytes: Sequence[int] | None = None,
        result_bytes: Sequence[tuple[int, ...]] | None = None,
    ) -> Graph:
        """The graph of stages with these ops."""
        alone_bytes = alone_bytes or [0] * len(forward)
        result_bytes = result_bytes or [()] * len(forward)
        rows = zip(forward, backward, alone_bytes, result_bytes, strict=True)
        stages = (
            Stage(f"s{s}", tuple(f), tuple(b), alone_bytes=alone, result_bytes=results)
            for s, (f, b, alone, results) in enumerate(rows)
        )
        return Graph(tuple(self.values), tuple(stages))

    def nbytes(self, name: str) -> int:
        return self.values[self._index[name]].nbytes


def chain(**more) -> Graph:
    """Two stages of two ops each; `more` goes to `f2`, the first op of the second stage."""
    make = Builder()
    forward = [
        [make.op("f0", "", "a:4"), make.op("f1", "a", "b:3", 2.0, flops=10)],
        [make.op("f2", "b", "c:5", 3.0, flops=20, **more), make.op("f3", "c", "l:1", 4.0)],
    ]
    late = [make.op("b3", "c l", "dc:5!"), make.op("b2", "dc b", "db:3!")]
    early = [make.op("b1", "db a", "da:4!"), make.op("b0", "da", "dx:2!")]
    return make.graph(forward, [early, late])


def pair() -> Graph:
    """One stage whose first op writes two values, of which the backward reads both."""
    make = Builder()
    forward = [make.op("f0", "", "a:2 b:7"), make.op("f1", "a", "c:1")]
    return make.graph([forward], [[make.op("b1", "b c", "d:1!"), make.op("b0", "a d", "e:1!")]])


def skip() -> Graph:
    """Four stages; the last two read, forward and backward, what the first one writes."""
    make = Builder()
    forward = [
        [make.op("f0", "", "x:8"), make.op("f1", "x", "h:6")],
        [make.op("f2", "h", "u:9"), make.op("f3", "u", "v:2")],
        [make.op("f4", "v x", "w:9"), make.op("f5", "w", "y:2")],
        [make.op("f6", "y x", "z:9"), make.op("f7", "z", "l:1")],
    ]
    backward = [
        [make.op("b7", "z l", "dz:9!"), make.op("b6", "dz y x", "dy:2!")],
        [make.op("b5", "w dy", "dw:9!"), make.op("b4", "dw v x", "dv:2!")],
        [make.op("b3", "u dv", "du:9!"), make.op("b2", "du h", "dh:6!")],
        [make.op("b1", "dh x", "dx:8!")],
    ]
    return make.graph(forward, backward[::-1])


def blocks(count: int, *, kinds: int = 2, n_forward: int = 15, seed: int = 0) -> Graph:
    """Residual blocks in a chain, of alternating kinds that repeat, with a stem and a head."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, (kinds, n_forward)) << 20
    seconds = rng.random((kinds, n_forward)) + 0.1
    hops = rng.integers(2, 5, (kinds, n_forward))
    sizes[:, -1] = 4 << 20
    make = Builder()
    forward = [[make.op("stem", "", f"x:{4 << 20}")]]
    names = ["x"]
    for b in range(count):
        start, ops = names[-1], []
        local = [start]
        for k, (size, cost, hop) in enumerate(
            zip(sizes[b % kinds], seconds[b % kinds], hops[b % kinds], strict=True)
        ):
            other = start if k == n_forward - 1 else local[max(0, len(local) - hop)]
            reads = " ".join(sorted({local[-1], other}))
            ops.append(make.op(f"op{k}", reads, f"v{b}_{k}:{size}", cost, flops=int(1e6 * cost)))
            local.append(f"v{b}_{k}")
        names.append(local[-1])
        forward.append(ops)
    forward.append([make.op("head", names[-1], "loss:4")])
    return make.graph(forward, _backward(make, forward))


def _backward(make: Builder, forward: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """For each input of each op one backward op, which reads all inputs and accumulates."""
    found: list[list[Op]] = [[] for _ in forward]
    gradient: dict[str, str] = {}
    for s in range(len(forward) - 1, -1, -1):
        for op in reversed(forward[s]):
            inputs = [make.values[i].name for i in op.inputs]
            out = make.values[op.outputs[0]].name
            for name in inputs:
                known = [gradient[x] for x in (out, name) if x in gradient]
                write = f"d_{name}_{out}:{make.nbytes(name)}!"
                found[s].append(make.op("b" + op.name, " ".join(inputs + known), write, op.seconds))
                gradient[name] = f"d_{name}_{out}"
    return found


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
        before = [make.values[i].name for ops in forward[:s] for op in ops for i in op.outputs]
        own = [make.values[i].name for op in forward[s] for i in op.outputs]
        for o in range(int(rng.integers(1, 4))):
            reads = _some(rng, own, 0.5) | _some(rng, before, 0.2)
            reads |= set(gradients[-1:]) | _some(rng, gradients, 0.2)
            backward[s].append(_random_op(rng, make, f"b{s}_{o}", reads, [f"d{s}_{o}"], "!"))
            gradients.append(f"d{s}_{o}")
    alone_bytes = rng.integers(0, 10, len(forward)) * (rng.random(len(forward)) < 0.5)
    result_bytes = [tuple(rng.integers(1, 20, rng.integers(0, 3)).tolist()) for _ in forward]
    graph = make.graph(forward, backward, alone_bytes.tolist(), result_bytes)
    return dataclasses.replace(graph, recomputes_late=bool(rng.random() < 0.5))


def random_choice(seed: int) -> Graph:
    """A small random graph in which some stages are the branches of a choice."""
    rng = np.random.default_rng(seed)
    graph = random_graph(seed, n_stages=int(rng.integers(3, 6)), n_forward=2)
    ends = sorted(rng.choice(len(graph.stages) + 1, 3, replace=False).tolist())
    return dataclasses.replace(graph, choices=(Choice(tuple(ends[:2]), ends[2]),))


def _some(rng: np.random.Generator, names: Iterable[str], share: float) -> set[str]:
    return {name for name in sorted(names) if rng.random() < share}


def _random_op(
    rng: np.random.Generator, make: Builder, name: str, reads: set[str], outs: list[str], mark: str
) -> Op:
    writes = [f"{x}:{rng.integers(1, 20)}{mark or '!' * (rng.random() < 0.1)}" for x in outs]
    return make.op(
        name,
        " ".join(sorted(reads)),
        " ".join(writes),
        float(rng.integers(0, 8)),
        flops=int(rng.integers(0, 5)),
        workspace_bytes=int(rng.integers(0, 10)) * int(rng.random() < 0.3),
        recomputable=bool(rng.random() < 0.85),
    )


def with_saving(graph: Graph, seed: int, most: float = 1.5) -> Graph:
    """The graph in which saving some values takes time, `most` seconds at most."""
    seconds = most * np.random.default_rng(seed).integers(0, 4, len(graph.values)) / 3
    values = (
        dataclasses.replace(value, saving_seconds=float(x))
        for value, x in zip(graph.values, seconds, strict=True)
    )
    stages = (dataclasses.replace(x, alone_seconds=x.alone_bytes / 8) for x in graph.stages)
    return dataclasses.replace(graph, values=tuple(values), stages=tuple(stages))


def tilings(regions: Iterable[Region], n_stages: int) -> Iterator[tuple[Region, ...]]:
    """Every way to cover the stages with some of the regions."""
    by_first: dict[int, list[Region]] = {}
    for region in regions:
        by_first.setdefault(region.first, []).append(region)

    def rest(s: int) -> Iterator[tuple[Region, ...]]:
        if s == n_stages:
            yield ()
        for region in by_first.get(s, ()):
            yield from ((region, *more) for more in rest(region.last + 1))

    return rest(0)


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every subset, smallest first."""
    return it.chain.from_iterable(it.combinations(names, k) for k in range(len(names) + 1))


def without_extras(graph: Graph) -> Graph:
    """The graph without the bytes that belong to a whole stage and are no value's."""
    stages = (dataclasses.replace(stage, alone_bytes=0, result_bytes=()) for stage in graph.stages)
    return dataclasses.replace(graph, stages=tuple(stages))


def lossy(
    most_error: float, *, stages: int = 3, values: int = 1, more_seconds: float = 0.0
) -> Graph:
    """Stages, each with values that take long to recompute and two codes of each.

    They take 4 seconds, and `more_seconds` more in each stage. The larger code, of two arrays, has
    an error of 1, the smaller one of 3.
    """
    make = Builder()
    forward, backward = [], []
    for s in range(stages):
        ops, last = [], f"y{s - 1}" if s else ""
        for k in range(values):
            x, n = f"x{s}{k}", f"{s}{k}"
            ops += [
                make.op(f"f{n}", last, f"{x}:8", 4.0 + more_seconds * s),
                make.op(f"fine{n}", x, f"c{n}:3 m{n}:1", 0.25, optional=True, error=1.0),
                make.op(f"rough{n}", x, f"d{n}:2", 0.25, optional=True, error=3.0),
            ]
            last = x
        forward.append([*ops, make.op(f"g{s}", last, f"y{s}:3", 1.0)])
    for s in reversed(range(stages)):
        ops, after = [], f"dy{s + 1}" if s < stages - 1 else ""
        for k in reversed(range(values)):
            after_this = f"dx{s}{k}" if k else f"dy{s}"
            op = make.op(f"b{s}{k}", f"x{s}{k} {after}", f"{after_this}:3!", 1.0)
            written, *codes = forward[s][3 * k : 3 * k + 3]
            rest = {*op.inputs}.difference(written.outputs)
            implementations = [
                Implementation(tuple(sorted(rest.union(code.outputs))), 1.0) for code in codes
            ]
            ops.append(dataclasses.replace(op, alternatives=tuple(implementations)))
            after = after_this
        backward.insert(0, ops)
    return dataclasses.replace(make.graph(forward, backward), most_error=most_error)


def with_codes(graph: Graph, seed: int) -> Graph:
    """The graph with codes that backward ops may read instead of what the forward writes.

    Some are values of the forward as they are, some are written by optional ops; they stand for one
    or for two of the values that an op reads, and an op may read two of them.
    """
    rng = np.random.default_rng(seed)
    values = list(graph.values)

    def coded(stage: Stage) -> Stage:
        own = [i for op in stage.forward for i in op.outputs]
        forward, backward = list(stage.forward), []
        for op in stage.backward:
            replacements = []
            read = [i for i in op.inputs if i in graph.forward_writer]
            for _ in range(rng.integers(0, 3) if read and own else 0):
                replaced = set(rng.permutation(read)[: rng.integers(1, 3)].tolist())
                code = int(rng.choice(own))
                if code in op.inputs or rng.random() < 0.7:
                    code = len(values)
                    values.append(Value(f"code{code}", int(rng.integers(1, 4)), True))
                    source = int(rng.choice(own))
                    place = next(n for n, x in enumerate(forward) if source in x.outputs)
                    new = Op(f"encode{code}", (source,), (code,), 0.25, optional=True)
                    forward.insert(place + 1, new)
                replacements.append((replaced, code))
            implementations = []
            for some in it.product((False, True), repeat=len(replacements)):
                chosen = list(it.compress(replacements, some))
                inputs = {*op.inputs}.difference(*(replaced for replaced, _ in chosen))
                inputs |= {code for _, code in chosen}
                seconds = op.seconds + 0.125 * len(chosen)
                implementations += [
                    Implementation(tuple(sorted(inputs)), seconds, op.flops, op.workspace_bytes)
                ]
            implementations = implementations[1:]
            backward.append(dataclasses.replace(op, alternatives=tuple(implementations)))
        return dataclasses.replace(stage, forward=tuple(forward), backward=tuple(backward))

    stages = tuple(map(coded, graph.stages))
    return dataclasses.replace(graph, values=tuple(values), stages=stages)


def with_alternatives(graph: Graph, seed: int) -> Graph:
    """The graph with further ways to run some ops, and with masks that a backward op may read."""
    rng = np.random.default_rng(seed)
    values = list(graph.values)
    last = {i: op for stage in graph.stages for op in stage.forward for i in op.inputs}
    instead: dict[int, int] = {}  # forward value -> the mask that may be read in its place

    def forward(op: Op) -> Iterator[Op]:
        written = sum(values[i].nbytes for i in op.outputs)
        implementations = []
        if rng.random() < 0.5:  # a faster algorithm that needs room
            more = op.workspace_bytes + int(rng.integers(1, 6))
            implementations.append(Implementation(op.inputs, op.seconds / 2, workspace_bytes=more))
        for i in op.inputs:
            if last[i] is op and rng.random() < 0.7:
                overwritten_bytes = min(values[i].nbytes, written)
                implementations.append(
                    Implementation(op.inputs, op.seconds, 0, -overwritten_bytes, overwrites=(i,))
                )
                break
        if rng.random() < 0.3:
            implementations.append(Implementation(op.inputs, op.seconds * 0.75, only_again=True))
        yield dataclasses.replace(op, alternatives=tuple(implementations))
        for i in op.outputs:
            if rng.random() < 0.5:
                instead[i] = len(values)
                values.append(Value(f"mask{i}", 1, True))
                yield Op(f"pack{i}", (i,), (instead[i],), 0.25, optional=True)

    def backward(op: Op) -> Op:
        read = [i for i in op.inputs if i in instead]
        if not read or rng.random() < 0.3:
            return op
        inputs = tuple(instead.get(i, i) if i == read[0] else i for i in op.inputs)
        other = Implementation(inputs, op.seconds + 0.25, workspace_bytes=op.workspace_bytes + 1)
        return dataclasses.replace(op, alternatives=(other,))

    done = [tuple(new for op in stage.forward for new in forward(op)) for stage in graph.stages]
    stages = (
        dataclasses.replace(stage, forward=ops, backward=tuple(map(backward, stage.backward)))
        for stage, ops in zip(graph.stages, done, strict=True)
    )
    return Graph(tuple(values), tuple(stages))
