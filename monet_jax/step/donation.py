"""Which arguments of a step its results can take the place of, and which donations come to nothing.

A result lies in the memory of a donated argument of its shape and type. So arguments and results
are paired by these, as JAX pairs them when it lowers a step. JAX leaves what remains to XLA, which
puts a result in the memory of a donated argument with as many elements and bytes.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import jax

from ..compiler.budget import format_bytes

#: Arguments below this share of all arguments' bytes are not named for a donation they could have.
LARGE = 0.01


@dataclasses.dataclass(frozen=True)
class DonationRow:
    """An argument's leaf whose donation comes to nothing, or that could be donated and is not.

    Attributes:
        path: where the leaf stands in the arguments, as `args[0]['w']`.
        shape, dtype: of the leaf.
        nbytes: its size.
        is_donated: whether it is donated, without a result that takes its place.
        why: what is in the way, or what is gained, in words.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    is_donated: bool
    why: str

    def __str__(self) -> str:
        array = f"`{self.path}` {self.dtype}{list(self.shape)} ({format_bytes(self.nbytes)})"
        return f"{array} is {'' if self.is_donated else 'not '}donated: {self.why}"


@dataclasses.dataclass(frozen=True)
class DonationReport:
    """What becomes of the donated arguments of a step.

    Attributes:
        rows: donations that come to nothing, and those that are missing, largest first.
        donated_bytes: of the arguments that are donated.
        aliased_bytes: of those in whose memory a result lies.
        result_bytes: bytes of each result that lies in no argument's memory.
    """

    rows: tuple[DonationRow, ...]
    donated_bytes: int
    aliased_bytes: int
    result_bytes: tuple[int, ...]

    @property
    def wasted(self) -> tuple[DonationRow, ...]:
        """Arguments that are donated for nothing."""
        return tuple(row for row in self.rows if row.is_donated)

    @property
    def missing(self) -> tuple[DonationRow, ...]:
        """Arguments that could be donated and are not."""
        return tuple(row for row in self.rows if not row.is_donated)

    def __str__(self) -> str:
        used = f"{format_bytes(self.aliased_bytes)} of {format_bytes(self.donated_bytes)}"
        return "\n".join([f"Results lie in {used} that are donated.", *map(str, self.rows)])


def donation_report(
    fun: Callable[..., Any], *args: Any, kwargs: Mapping[str, Any] | None = None
) -> DonationReport:
    """Which donations of a jitted step come to nothing, and which are missing.

    Nothing is compiled or run.

    Arguments:
        fun: the step, as `jax.jit` or `monet_jax.jit` made it.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s.
        kwargs: its keyword arguments.

    Raises:
        TypeError: `fun` is not jitted, so that it donates nothing.
    """
    if not hasattr(fun, "trace"):
        raise TypeError(
            f"A donation report is about a jitted function; got {fun!r}. Put `jax.jit` or "
            "`monet_jax.jit` with its `donate_argnums` around it."
        )
    # Planning changes neither arguments nor results.
    trace = getattr(fun, "trace_as_it_is", fun.trace)
    return donations_of(trace(*args, **(kwargs or {})))


def donations_of(traced: jax.stages.Traced) -> DonationReport:
    """The report of a traced step."""
    free = collections.Counter(map(_kind, jax.tree.leaves(traced.out_info)))
    leaves, _ = jax.tree.flatten_with_path(traced.args_info)
    rows = [_Leaf(jax.tree_util.keystr(path), info) for path, info in leaves]
    donated = [leaf for leaf in rows if leaf.info.donated]
    aliased = [leaf for leaf in donated if _take(free, _kind(leaf.info))]
    others = [leaf for leaf in donated if leaf not in aliased]
    aliased += [leaf for leaf in others if _take(free, _like(free, leaf))]
    wasted = [leaf for leaf in donated if leaf not in aliased]
    results = sorted(kind[0] for kind in free.elements())
    least = LARGE * sum(leaf.nbytes for leaf in rows)
    others = [leaf for leaf in rows if not leaf.info.donated and leaf.nbytes >= least]
    missing = [leaf for leaf in others if leaf.nbytes and _take(free, _kind(leaf.info))]
    shapes = {kind[1] for kind in map(_kind, jax.tree.leaves(traced.out_info))}
    found = [leaf.row(_why_wasted(leaf, shapes)) for leaf in wasted]
    found += [leaf.row("a result of its shape and type could lie in it") for leaf in missing]
    return DonationReport(
        tuple(sorted(found, key=lambda row: -row.nbytes)),
        sum(leaf.nbytes for leaf in donated),
        sum(leaf.nbytes for leaf in aliased),
        tuple(results),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Leaf:
    """A leaf of the arguments."""

    path: str
    info: Any

    @property
    def nbytes(self) -> int:
        """Its size."""
        return _kind(self.info)[0]

    def row(self, why: str) -> DonationRow:
        """The leaf in a report."""
        shape, dtype = tuple(self.info.shape), str(self.info.dtype)
        path = self.path.removeprefix("[0]")
        name = f"args{path}" if self.path.startswith("[0]") else self.path
        return DonationRow(name, shape, dtype, self.nbytes, self.info.donated, why)


def _kind(info: Any) -> tuple[int, tuple[int, ...], Hashable]:
    """Bytes, shape and type of an array: what must agree."""
    return math.prod(info.shape) * info.dtype.itemsize, tuple(info.shape), str(info.dtype)


def _like(free: collections.Counter, leaf: _Leaf) -> Hashable:
    """The kind of a result that is left and has as many elements and bytes as a leaf."""
    nbytes, shape, _ = _kind(leaf.info)
    left = (kind for kind, count in free.items() if count > 0)
    same = (x for x in left if x[0] == nbytes and math.prod(x[1]) == math.prod(shape))
    return next(same, None)


def _take(free: collections.Counter, kind: Hashable) -> bool:
    """Whether a result of a kind is left; then it is taken."""
    if free[kind] <= 0:
        return False
    free[kind] -= 1
    return True


def _why_wasted(leaf: _Leaf, shapes: Collection[tuple[int, ...]]) -> str:
    """Why no result lies in a donated leaf."""
    if math.prod(leaf.info.shape) not in map(math.prod, shapes):
        return "no result has its shape"
    return "each result of its shape has another type, or lies in another argument already"
