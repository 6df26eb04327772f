"""Live bytes over a step, sampled, for reports and stored plans.

A step may have many thousand op runs. A timeline has some hundred samples: one for every so many
runs, the run with the most live bytes, so that no peak is lost. Each large value has a `Band`; the
others are summed by kind. The live bytes of a sample are its bands and its rest.

| index | means |
|---|---|
| `m` | a sample of the timeline |
| `k` | a run of the plan's schedule |
"""

import bisect
import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import planners
from planners.graph import Graph
from planners.plan import Region
from planners.runs import Run

#: Kinds of live bytes, from the bottom of a chart to its top.
KINDS = ("saved", "compressed", "passing", "recomputed", "gradient", "workspace")
#: "again": a forward op is recomputed.
PHASES = ("forward", "again", "backward")
#: Samples of a timeline, at most.
MAX_SAMPLES = 600
#: Values below this share of the peak have no band.
SMALL = 0.001
#: Bands of a timeline, at most.
BANDS = 1500


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sampled run of an op.

    Attributes:
        run: its position among all runs.
        phase: of `PHASES`.
        stage: the op's stage.
        op: the op's primitive.
    """

    run: int
    phase: str
    stage: int
    op: str


@dataclasses.dataclass(frozen=True)
class Band:
    """The bytes of one value, or of a workspace, over some samples.

    Attributes:
        kind: of `KINDS`.
        name: of the value; "" where it is none.
        stage, op: the stage and the primitive that write it.
        source: `file:line` of the user's code, where the plan has no row for the value; else "".
        start, stop: samples, both included.
        nbytes: its bytes.
    """

    kind: str
    name: str
    stage: int
    op: str
    source: str
    start: int
    stop: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Live bytes over a step, by the model, without its arguments and results.

    Attributes:
        runs: how many op runs the step has.
        samples: some of them, in order.
        bands: large values, in order of `start`.
        rest: kinds, each with the bytes of all other values at each sample.
    """

    runs: int
    samples: tuple[Sample, ...]
    bands: tuple[Band, ...]
    rest: tuple[tuple[str, tuple[int, ...]], ...]

    def bytes_of(self, kind: str) -> np.ndarray:
        """Bytes of one kind at each sample: int64, shape [samples]."""
        change = np.zeros(len(self.samples) + 1, np.int64)
        for band in self.bands:
            if band.kind == kind:
                change[band.start] += band.nbytes
                change[band.stop + 1] -= band.nbytes
        return np.cumsum(change)[:-1] + np.array(dict(self.rest).get(kind, 0), np.int64)

    @property
    def live_bytes(self) -> np.ndarray:
        """Live bytes at each sample: int64, shape [samples]."""
        return np.sum([self.bytes_of(kind) for kind in KINDS], axis=0)

    @property
    def peak(self) -> int:
        """The first sample with the most live bytes."""
        return int(self.live_bytes.argmax())

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`; rows are lists. `timeline_from_json` is the inverse."""
        return {
            "runs": self.runs,
            "samples": [list(vars(m).values()) for m in self.samples],
            "bands": [list(vars(b).values()) for b in self.bands],
            "rest": {kind: list(nbytes) for kind, nbytes in self.rest},
        }


def timeline_from_json(data: Any) -> Timeline:
    """The timeline that `Timeline.to_json` wrote.

    Raises:
        ValueError: a field is missing, unknown or of the wrong type, or does not fit the others.
    """
    fields = {"runs", "samples", "bands", "rest"}
    if not isinstance(data, Mapping) or set(data) != fields:
        raise ValueError(f"a Timeline has the fields {sorted(fields)}")
    samples = tuple(_row(Sample, row) for row in data["samples"])
    bands = tuple(_row(Band, row) for row in data["bands"])
    if not isinstance(data["rest"], Mapping):
        raise ValueError("`rest` of a Timeline must be an object")
    rest = tuple((kind, tuple(nbytes)) for kind, nbytes in data["rest"].items())
    made = Timeline(data["runs"], samples, bands, rest)
    _check(made)
    return made


def _row[Row](cls: type[Row], row: Any) -> Row:
    kinds = [field.type for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
    if not isinstance(row, list) or [type(x) for x in row] != kinds:
        raise ValueError(f"a {cls.__name__} is a list of {kinds}; got {row!r}")
    return cls(*row)


def _check(made: Timeline) -> None:
    """Check a timeline that was read from a file."""
    end = len(made.samples)
    rest_fits = all(
        len(x) == end and all(type(n) is int and n >= 0 for n in x) for _, x in made.rest
    )
    if not (type(made.runs) is int and 0 < end <= made.runs and rest_fits):
        raise ValueError("a Timeline has one number for each kind and sample, and a sample or more")
    if not {kind for kind, _ in made.rest} | {band.kind for band in made.bands} <= set(KINDS):
        raise ValueError(f"the kinds of a Timeline are {', '.join(KINDS)}")
    if not {sample.phase for sample in made.samples} <= set(PHASES):
        raise ValueError(f"the phases of a Timeline are {', '.join(PHASES)}")
    if not all(0 <= b.start <= b.stop < end and b.nbytes > 0 for b in made.bands):
        raise ValueError(f"a band of a Timeline lies in its {end} samples and has bytes")


def timeline_of(
    graph: Graph, source_of: Callable[[str], str], regions: Sequence[Region]
) -> Timeline | None:
    """The timeline of a plan's regions, which `planners.replay` accepts; None of an empty step.

    Arguments:
        graph: the planning graph.
        source_of: name of a value that no table names -> `file:line`, "" where that is not known.
        regions: of the plan.
    """
    replay = planners.replay(graph, regions)
    if not replay.schedule:
        return None
    occupants = planners.occupants(graph, regions)
    chosen, least = _samples(replay.live_bytes), _least(occupants, replay.peak_bytes)
    bands, rest = [], collections.defaultdict(lambda: np.zeros(len(chosen) + 1, np.int64))
    for x in occupants:
        start = bisect.bisect_left(chosen, x.start)
        stop = bisect.bisect_right(chosen, x.stop) - 1
        if start > stop:  # between two samples
            continue
        if x.nbytes >= least:
            name = "" if x.value is None else graph.values[x.value].name
            source = source_of(name)
            bands.append(Band(x.kind, name, x.stage, x.op, source, start, stop, x.nbytes))
        else:
            rest[x.kind][start] += x.nbytes
            rest[x.kind][stop + 1] -= x.nbytes
    return Timeline(
        len(replay.schedule),
        tuple(_sample(graph, k, replay.schedule[k]) for k in chosen),
        tuple(bands),
        tuple((kind, tuple(np.cumsum(x)[:-1].tolist())) for kind, x in sorted(rest.items())),
    )


def _least(occupants: Sequence[planners.Occupant], peak_bytes: int) -> float:
    """The least bytes of a value with a band."""
    sizes = sorted((x.nbytes for x in occupants), reverse=True)
    return max(SMALL * peak_bytes, *(size + 1 for size in sizes[BANDS : BANDS + 1]), 1)


def _samples(live_bytes: Sequence[int]) -> list[int]:
    """One of every so many runs: the run with the most live bytes."""
    live = np.array(live_bytes)
    parts = np.array_split(np.arange(len(live)), min(MAX_SAMPLES, len(live)))
    return [int(part[live[part].argmax()]) for part in parts]


def _sample(graph: Graph, k: int, run: Run) -> Sample:
    again = run.phase == "forward" and run.depth > 0
    return Sample(k, "again" if again else run.phase, run.stage, run.of(graph).name)
