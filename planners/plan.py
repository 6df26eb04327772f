"""Plans: regions of stages, and the values that each region saves."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """Consecutive stages that are run, and where needed run again, as one.

    Attributes:
        first, last: the stages it covers, both included.
        saved: names of the values of its own stages that its forward keeps for its backward.
            Everything else that its backward reads is recomputed from these and from the
            region's inputs. Empty where `alone`.
        alone: no recomputation: every value that the backward reads is kept.
        inner: regions that cover the same stages and apply while this one is run again in its
            backward; then `saved` is what survives from the first forward. Empty for a leaf,
            whose stages are recomputed together.
        offloaded: names of the values that wait for its backward in the host's memory: values of
            its own stages, which it does not save besides, and inputs of it that no other region
            reads. Only of a region that is no `inner` one, and neither alone nor nested.
        ahead: how many regions before its own backward these are fetched, 0 or 1: the backward of
            the region behind it hides the copies, and they take its memory meanwhile.
    """

    first: int
    last: int
    saved: tuple[str, ...] = ()
    alone: bool = False
    inner: tuple["Region", ...] = ()
    offloaded: tuple[str, ...] = ()
    ahead: int = 0

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the values that need not be recomputed: the saved and the offloaded ones."""
        return self.saved + self.offloaded

    def walk(self) -> Iterator["Region"]:
        """This region and every region inside it, outermost first."""
        yield self
        for region in self.inner:
            yield from region.walk()


class Certified:
    """A result that takes `seconds`, with a proof that none takes less than `bound_seconds`."""

    __slots__ = ()
    seconds: float
    bound_seconds: float

    @property
    def gap(self) -> float:
        """`(seconds - bound_seconds) / seconds`: 0 where it is proven the best."""
        return (self.seconds - self.bound_seconds) / self.seconds if self.seconds else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Plan(Certified):
    """A decision for every value of a graph, with its certificate.

    Attributes:
        regions: cover the stages in order, without gaps or overlap.
        peak_bytes: most bytes of values live at once, by replay.
        seconds: run time of the step, recomputation and saving included, by replay.
        flops: floating-point operations of the step, by replay.
        bound_seconds: no plan of the planner's space within the budget takes less.
        planner: who made it.
        host_bytes: of the host's memory.
        waiting_seconds: of `seconds`, those in which the device waits for copies to the host or
            back.
    """

    regions: tuple[Region, ...]
    peak_bytes: int
    seconds: float
    flops: int
    bound_seconds: float
    planner: str
    host_bytes: int = 0
    waiting_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`; `plan_from_json` is the inverse."""
        return dataclasses.asdict(self)


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The plan that `Plan.to_json` wrote.

    Raises:
        ValueError: a field is missing, unknown, or of the wrong type.
    """
    fields = _checked(data, Plan)
    regions = tuple(_region_from_json(region) for region in fields.pop("regions"))
    return Plan(regions=regions, **fields)


def _region_from_json(data: Mapping[str, Any]) -> Region:
    fields = _checked(data, Region)
    inner = tuple(_region_from_json(region) for region in fields.pop("inner"))
    saved = tuple(fields.pop("saved"))
    offloaded = tuple(fields.pop("offloaded"))
    if not all(isinstance(name, str) for name in saved + offloaded):
        raise ValueError(
            f"`saved` and `offloaded` of a region must hold names; got {saved!r} and {offloaded!r}."
        )
    return Region(saved=saved, inner=inner, offloaded=offloaded, **fields)


_TYPES = {
    Plan: {
        "regions": list | tuple,
        "peak_bytes": int,
        "seconds": float | int,
        "flops": int,
        "bound_seconds": float | int,
        "planner": str,
        "host_bytes": int,
        "waiting_seconds": float | int,
    },
    Region: {
        "first": int,
        "last": int,
        "saved": list | tuple,
        "alone": bool,
        "inner": list | tuple,
        "offloaded": list | tuple,
        "ahead": int,
    },
}


def _checked(data: Any, cls: type) -> dict[str, Any]:
    expected = _TYPES[cls]
    if not isinstance(data, Mapping) or set(data) != set(expected):
        got = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise ValueError(f"A stored {cls.__name__} has the fields {sorted(expected)}; got {got}.")
    for name, kind in expected.items():
        if not isinstance(data[name], kind):
            raise ValueError(f"`{name}` of a stored {cls.__name__} is {data[name]!r}: wrong type.")
    return dict(data)
