"""A timeline as stacked areas: shapes that a page only has to place.

Across, a shape counts op runs; upwards, thousandths of the height of the chart. Several charts
share one `Scale`, so that equal areas mean equal bytes for equally long.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..plans.timeline import KINDS, Band, Timeline

#: The lowest layer: arguments and results of the step.
FIXED = "argument"
#: All kinds of bytes, from the bottom to the top.
LAYERS = (FIXED, *KINDS)
#: Their names in a chart.
TITLES = {
    "argument": "arguments and results",
    "saved": "saved",
    "compressed": "compressed",
    "passing": "forward only",
    "recomputed": "recomputed",
    "gradient": "gradients",
    "workspace": "workspace",
}
#: Their colours on a light and on a dark ground: Okabe and Ito's, which people with any kind of
#: colour blindness can tell apart (a test simulates it).
COLOURS = {
    "argument": ("#c9cfd6", "#4d5763"),
    "saved": ("#0072b2", "#1a7abb"),
    "compressed": ("#009e73", "#009e73"),
    "passing": ("#56b4e9", "#56b4e9"),
    "recomputed": ("#e69f00", "#e69f00"),
    "gradient": ("#cc79a7", "#cc79a7"),
    "workspace": ("#f0e442", "#f0e442"),
}
#: Units of shapes from the bottom of a chart to its top.
HEIGHT = 1000
#: The height of a chart over its highest bytes.
_HEADROOM = 1.10
#: Tick marks of an axis, about.
_TICKS = 6
#: Shares of a chart that a label takes upwards, and each letter of it across.
_LABEL_HEIGHT, _LETTER = 0.075, 0.012
#: Bands less high than this share of the chart have no outline.
_OUTLINED = 0.012
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass(frozen=True)
class Scale:
    """The ends of both axes.

    Attributes:
        runs: op runs across.
        top_bytes: bytes upwards.
    """

    runs: int
    top_bytes: float

    def height(self, nbytes: float) -> float:
        """Bytes as a share of the chart's height."""
        return nbytes / self.top_bytes

    def ticks(self) -> list[tuple[float, str]]:
        """Heights of round numbers of bytes, each with its label."""
        return [(self.height(x), label) for x, label in byte_ticks(0, self.top_bytes)]


@dataclasses.dataclass(frozen=True)
class Layer:
    """The area of one kind of bytes.

    Attributes:
        kind: of `LAYERS`.
        path: its outline, as SVG has it.
        label: where its name fits, as shares of width and height; None where it does not.
    """

    kind: str
    path: str
    label: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Chart:
    """A timeline as shapes.

    Attributes:
        width: its share of the width of the scale.
        layers: the areas, lowest first.
        outlines: of bands that are large enough to be told apart.
        phases: runs at which a phase begins and ends, and which it is.
        peak: its share of width and height, and its bytes.
    """

    width: float
    layers: tuple[Layer, ...]
    outlines: tuple[str, ...]
    phases: tuple[tuple[float, float, str], ...]
    peak: tuple[float, float, int]


def byte_ticks(low: float, high: float) -> list[tuple[int, str]]:
    """Round numbers of bytes from `low` to `high`, each with its label; steps are powers of two."""
    step = 2 ** math.ceil(math.log2(max(1.0, (high - low) / _TICKS)))
    unit = min(int(math.log2(max(1.0, high)) // 10), len(_UNITS) - 1)
    sizes = range(math.ceil(low / step) * step, int(high) + 1, step)
    return [(x, f"{x / 1024**unit:g} {_UNITS[unit]}" if x else "0") for x in sizes]


def scale_of(timelines: Sequence[Timeline], fixed_bytes: int, lines: Sequence[int]) -> Scale:
    """A scale for some timelines, and for lines at some bytes."""
    peaks = [int(t.live_bytes.max()) + fixed_bytes for t in timelines]
    return Scale(max(t.runs for t in timelines), _HEADROOM * max(*peaks, *lines, 1))


def chart_of(timeline: Timeline, fixed_bytes: int, scale: Scale) -> Chart:
    """The shapes of a timeline on top of `fixed_bytes`."""
    count = len(timeline.samples)
    edges = np.linspace(0, timeline.runs, count + 1)
    bottom, layers = np.zeros(count, np.int64), []
    for kind in LAYERS:
        nbytes = np.full(count, fixed_bytes) if kind == FIXED else timeline.bytes_of(kind)
        if nbytes.any():
            path = outline(edges, bottom, bottom + nbytes, scale)
            label = _label_place(kind, edges, bottom, bottom + nbytes, scale)
            layers.append(Layer(kind, path, label))
        bottom = bottom + nbytes
    m = int(bottom.argmax())
    middle = (edges[m] + edges[m + 1]) / 2 / scale.runs
    peak = (middle, scale.height(bottom[m]), int(bottom[m]))
    outlines = tuple(_outlines(timeline, fixed_bytes, edges, scale))
    return Chart(
        timeline.runs / scale.runs, tuple(layers), outlines, tuple(_phases(timeline, edges)), peak
    )


def outline(edges: np.ndarray, low: np.ndarray, high: np.ndarray, scale: Scale) -> str:
    """The SVG path round the area between two heights.

    Arguments:
        edges: where steps begin and end, in runs: shape [steps + 1].
        low, high: bytes, shape [steps].
        scale: of the chart.
    """
    there, back = _steps(edges, high, scale), _steps(edges, low, scale)[::-1]
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in (*there, *back)) + "Z"


def _steps(edges: np.ndarray, nbytes: np.ndarray, scale: Scale) -> list[tuple[float, float]]:
    """The corners of a line of steps, from left to right."""
    heights = np.round(HEIGHT * (1 - nbytes / scale.top_bytes), 1)
    starts = [0, *(np.flatnonzero(np.diff(heights)) + 1).tolist()]
    stops = [*starts[1:], len(heights)]
    corners = []
    for start, stop in zip(starts, stops, strict=True):
        corners += [(edges[start], heights[start]), (edges[stop], heights[start])]
    return [(round(float(x), 2), float(y)) for x, y in corners]


def stacked(timeline: Timeline, fixed_bytes: int) -> Iterator[tuple[Band, np.ndarray]]:
    """Each band, with the bytes under it at each of its samples.

    In the area of a kind, bands lie in order of their start; bytes without a band are above them.
    """
    bottom, lowest = np.full(len(timeline.samples), fixed_bytes), {}
    for kind in KINDS:
        lowest[kind] = bottom.copy()
        bottom = bottom + timeline.bytes_of(kind)
    for band in timeline.bands:
        part = slice(band.start, band.stop + 1)
        yield band, lowest[band.kind][part].copy()
        lowest[band.kind][part] += band.nbytes


def _outlines(
    timeline: Timeline, fixed_bytes: int, edges: np.ndarray, scale: Scale
) -> Iterator[str]:
    for band, low in stacked(timeline, fixed_bytes):
        if scale.height(band.nbytes) >= _OUTLINED:
            part = edges[band.start : band.stop + 2]
            yield outline(part, low, low + band.nbytes, scale)


def _phases(timeline: Timeline, edges: np.ndarray) -> Iterator[tuple[float, float, str]]:
    start = 0
    phases = [sample.phase for sample in timeline.samples]
    for m in range(1, len(phases) + 1):
        if m == len(phases) or phases[m] != phases[start]:
            yield round(float(edges[start]), 2), round(float(edges[m]), 2), phases[start]
            start = m


def _label_place(
    kind: str, edges: np.ndarray, low: np.ndarray, high: np.ndarray, scale: Scale
) -> tuple[float, float] | None:
    """The middle of the highest place where the name of a kind fits between two heights.

    Of places that are about as high the one nearest to the middle of the chart.
    """
    wide = _LETTER * len(TITLES[kind]) * scale.runs
    places = []
    for start in range(len(low)):
        stop = int(np.searchsorted(edges, edges[start] + wide))
        if stop > len(low):
            break
        lower, upper = low[start:stop].max(), high[start:stop].min()
        middle = (edges[start] + wide / 2) / scale.runs
        places.append((scale.height(upper - lower), middle, scale.height((lower + upper) / 2)))
    most = max((height for height, *_ in places), default=0.0)
    if most < _LABEL_HEIGHT:
        return None
    high_enough = (place for place in places if place[0] >= 0.95 * most)
    _, across, up = min(high_enough, key=lambda place: abs(place[1] - 0.5))
    return float(across), float(up)
