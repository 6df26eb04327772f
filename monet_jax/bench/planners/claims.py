"""The claims that the rows of a benchmark of planners must bear out.

Only clean published results count: where a publication contradicts itself, its row is shown in the
tables and left out here. A clean cell without an answer contradicts a claim as a bad answer does.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from ..claims import Claim
from .rows import FORMAT, Results, Row

#: The planner that claims are about where they name no other.
OURS = "gap"
#: Answers may come so many seconds after their time limit.
GRACE_SECONDS = 1.0
#: Largest median gap.
MEDIAN_GAP = 0.02
#: Published figures are rounded, at about the seventh digit.
ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Goal:
    """A goal for the instances of one publication.

    Attributes:
      number: of the goal.
      name: of the publication.
      covers: whether a row is of it.
      planner: whose answers count.
      share: of clean cells in which ours is at most the published objective; or
      exceptions: how many cells may be worse.
      worst: largest ratio of objectives.
      seconds: most that a cell may take.
      median_seconds: most that the median cell may take; or None.
      counts_more: whether its memory may count more than replay does, so that a plan that replay
        finds within the budget refutes a cell that was published as infeasible.
    """

    number: int
    name: str
    covers: Callable[[Row], bool]
    worst: float
    seconds: float
    planner: str = OURS
    share: float = 1.0
    exceptions: int = 0
    median_seconds: float | None = None
    counts_more: bool = False


#: The graph of Moccasin that goals are about.
_LAYERED = "moccasin_random_layered_n1000_"

GOALS = (
    Goal(
        2,
        "Checkmate",
        lambda row: row.instance.endswith("_checkmate_normal"),
        exceptions=1,
        worst=1.01,
        seconds=60.0,
        median_seconds=10.0,
    ),
    Goal(
        3,
        "MONeT",
        lambda row: "_inplace_" in row.instance,
        share=0.9,
        worst=1.005,
        seconds=120.0,
        counts_more=True,
    ),
    Goal(
        4,
        "Moccasin, in the given order",
        lambda row: row.instance.startswith(_LAYERED) and row.baseline == "moccasin",
        planner="sequence",
        worst=1.0,
        seconds=60.0,
    ),
    Goal(
        4,
        "FastSA, with reordering",
        lambda row: row.instance.startswith(_LAYERED) and row.baseline == "fastsa",
        planner="sequence_reordered",
        worst=1.0,
        seconds=60.0,
    ),
)


def check_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    """Every claim, checked against the rows."""
    published = [r for r in rows if r.purpose == "published"]
    clean = [r for r in published if r.planner == OURS and not r.doubts]
    return (
        _claim("no answer failed or was refused", rows, lambda r: r.status not in _FAILED, "rows"),
        *(
            claim
            for goal in GOALS
            for claim in _goal_claims(
                goal, [r for r in published if r.planner == goal.planner and goal.covers(r)]
            )
        ),
        _root_bounds(clean),
        _median_gap(clean),
        _monotone([r for r in rows if r.purpose == "sweep" and r.planner == OURS]),
        *_limits([r for r in rows if r.purpose == "limits"]),
    )


def to_json(results: Results) -> str:
    """The results as JSON text, with the verdict on each claim."""
    return results.to_json(check_claims(results.rows), FORMAT)


_FAILED = ("refused", "error")


def _claim(
    title: str, rows: Sequence[Row], holds: Callable[[Row], bool], what: str = "clean cells"
) -> Claim:
    """A claim that every row must bear out."""
    against = tuple(r.name for r in rows if not holds(r))
    if not rows:
        return Claim(title, "", None)
    return Claim(title, f"{len(rows) - len(against)} of {len(rows)} {what}", not against, against)


def _goal_claims(goal: Goal, published: Sequence[Row]) -> list[Claim]:
    rows = [r for r in published if not r.doubts]
    solved = [r for r in rows if r.published == "solved"]
    infeasible = [r for r in rows if r.published == "infeasible"]
    found = [
        _objectives(goal, solved, len(published) - len(rows)),
        _seconds(goal, rows),
        _infeasible(goal, infeasible),
    ]
    if goal.median_seconds is not None:
        found.insert(2, _median_seconds(goal, rows))
    return found


def _infeasible(goal: Goal, rows: Sequence[Row]) -> Claim:
    title = f"{goal.number}. {goal.name}: published infeasible cells are recognised"
    refuted = [r for r in rows if goal.counts_more and r.status == "ok"]
    found = _claim(
        title + (", or refuted" if goal.counts_more else ""),
        rows,
        lambda r: r.status == "infeasible" or r in refuted,
    )
    if not refuted:
        return found
    figure = f"{found.figure}, {len(refuted)} of them refuted by plans that replay accepts"
    return dataclasses.replace(found, figure=figure)


def _objectives(goal: Goal, rows: Sequence[Row], left_out: int) -> Claim:
    title = (
        f"{goal.number}. {goal.name}: at most the published objective, in "
        + (f"all clean cells but {goal.exceptions}" if goal.exceptions else f"{goal.share:.0%}")
        + (f", never more than {goal.worst - 1:.1%} above" if goal.worst > 1 else "")
    )
    if not rows:
        return Claim(title, "", None)
    ratios = {r: math.inf if r.ratio is None else r.ratio for r in rows}
    worse = [r for r in rows if ratios[r] > 1 + ROUNDING]
    worst = max(ratios.values())
    allowed = max(goal.exceptions, math.floor((1 - goal.share) * len(rows) + ROUNDING))
    unanswered = sum(math.isinf(ratio) for ratio in ratios.values())
    figure = f"{len(rows) - len(worse)} of {len(rows)} clean cells, "
    figure += f"{unanswered} without an answer" if unanswered else f"worst ratio {worst:.4f}"
    figure += f"; {left_out} not clean, left out" if left_out else ""
    holds = len(worse) <= allowed and worst <= goal.worst + ROUNDING
    ratio = {r: "no answer" if r.ratio is None else f"{r.ratio:.4f}" for r in worse}
    return Claim(title, figure, holds, tuple(f"{r.name} ({ratio[r]})" for r in worse))


def _seconds(goal: Goal, rows: Sequence[Row]) -> Claim:
    title = f"{goal.number}. {goal.name}: at most {goal.seconds:g} s a cell"
    if not rows:
        return Claim(title, "", None)
    slow = [r for r in rows if _clock(r) > goal.seconds]
    against = tuple(f"{r.name} ({_clock(r):.1f} s)" for r in slow)
    return Claim(title, f"largest {max(map(_clock, rows)):.1f} s", not slow, against)


def _median_seconds(goal: Goal, rows: Sequence[Row]) -> Claim:
    title = f"{goal.number}. {goal.name}: {goal.median_seconds:g} s in the median"
    if not rows or goal.median_seconds is None:
        return Claim(title, "", None)
    median = statistics.median(map(_clock, rows))
    return Claim(title, f"{median:.1f} s of {len(rows)} cells", median <= goal.median_seconds)


def _clock(row: Row) -> float:
    return math.inf if row.planning_seconds is None else row.planning_seconds


def _root_bounds(rows: Sequence[Row]) -> Claim:
    """Of cells that can be planned at all: elsewhere there is nothing to bound.

    Where a plan of ours, which replay has accepted, takes less than what the publication has proven
    of all plans, its instance has other plans there than here: bounds say nothing to each other.
    """
    rooted = [r for r in rows if r.published_root is not None and r.published == "solved"]
    others = {r.instance for r in rooted if _refutes(r)}
    found = _claim(
        "5. bounds are at least the published root relaxation, of the same space",
        [r for r in rooted if r.instance not in others],
        lambda r: r.bound is not None and r.bound >= (1 - ROUNDING) * (r.published_root or 0.0),
    )
    if not others:
        return found
    figure = f"{found.figure}; of another space by a plan of ours: {', '.join(sorted(others))}"
    return dataclasses.replace(found, figure=figure)


def _refutes(row: Row) -> bool:
    """Whether a plan takes less than the publication's bound on all plans."""
    if row.objective is None or row.published_bound is None:
        return False
    return row.objective < (1 - ROUNDING) * row.published_bound


def _median_gap(rows: Sequence[Row]) -> Claim:
    title = f"5. the median gap is at most {MEDIAN_GAP:.0%}"
    solved = [r for r in rows if r.published == "solved"]
    if not solved:
        return Claim(title, "", None)
    gaps = [math.inf if r.gap is None else r.gap for r in solved]
    unanswered = sum(map(math.isinf, gaps))
    median = statistics.median_high(gaps)  # of an even number, the worse of the two
    figure = "none" if math.isinf(median) else f"{median:.2%}"
    figure += f" of {len(gaps)} clean cells, "
    figure += f"{unanswered} without an answer" if unanswered else f"largest {max(gaps):.2%}"
    return Claim(title, figure, median <= MEDIAN_GAP)


def _monotone(rows: Sequence[Row]) -> Claim:
    """From one budget of a sweep to the next; a budget without an answer counts as infinite."""
    sweeps: dict[str, list[Row]] = collections.defaultdict(list)
    for row in rows:
        sweeps[row.instance].append(row)
    pairs, against = 0, []
    for sweep in sweeps.values():
        best = math.inf
        for row in sorted(sweep, key=lambda r: r.budget_bytes or 0):
            objective = math.inf if row.objective is None else row.objective
            pairs += 1
            if objective > (1 + ROUNDING) * best:
                against.append(f"{row.name} ({objective / best:.4f} of a smaller budget's)")
            best = min(best, objective)
    title = "7. seconds never rise with the budget"
    figure = f"{pairs - len(against)} of {pairs} budgets of {len(sweeps)} instances"
    return Claim(title, figure, not against, tuple(against)) if pairs else Claim(title, "", None)


def _limits(rows: Iterable[Row]) -> list[Claim]:
    rows = list(rows)
    limits = ", ".join(f"{limit:g}" for limit in sorted({r.time_limit or 0.0 for r in rows}))
    under = f"under time limits of {limits} s" if rows else "under time limits"
    late = [r for r in rows if _clock(r) > (r.time_limit or 0.0) + GRACE_SECONDS]
    title = f"8. answers come within the limit and {GRACE_SECONDS:g} s"
    excess = max((_clock(r) - (r.time_limit or 0.0) for r in rows), default=0.0)
    against = tuple(f"{r.name} ({_clock(r):.1f} s)" for r in late)
    figure = f"{len(rows) - len(late)} of {len(rows)} answers, largest excess {excess:.1f} s"
    return [
        _claim(
            f"8. replay accepts every plan {under}",
            [r for r in rows if r.status == "ok" or r.status in _FAILED],
            lambda r: r.status not in _FAILED,
            "plans",
        ),
        Claim(title, figure, not late, against) if rows else Claim(title, "", None),
    ]
