"""The claims that the rows of a benchmark of models must bear out."""

import collections
import statistics
from collections.abc import Iterable, Sequence

from ..claims import Claim
from .cells import FREE
from .rows import FORMAT, Results, Row

#: Ours may exceed a baseline's FLOPs or seconds by this fraction.
TOLERANCE = 0.01
#: Least share of a budget that the median plan with overhead uses.
USED_AT_LEAST = 0.90
#: Below this share, the next faster plan must be known to break the budget.
POOR_USE = 0.75
#: Largest median error of predicted temporaries; a TPU's where not named.
PREDICTION_ERROR = {"cpu": 0.05, "gpu": 0.05, "tpu": 0.10}
#: Share of FLOPs that the compiler must have estimated where its seconds are compared.
JUDGED_SHARE = 0.80
#: Largest share of plain's temporaries at plain's FLOPs, where one is promised.
FREE_SHARES = {
    ("gpt2", "gpu:h100", "float32"): 2 / 3,
    ("resnet50", "gpu:h100", "float32"): 0.85,
}


def check_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    """Every claim, checked against the rows."""
    return (
        _all_measured(rows),
        _budgets_kept(rows),
        _minimum_is_minimum(rows),
        _smallest_beats_baselines(rows),
        *_beats_baselines(rows, "flops", "FLOPs"),
        *_beats_baselines(rows, "seconds", "roofline seconds"),
        *_free_memory(rows),
        _budget_used(rows),
        _poor_use_explained(rows),
        *_predictions(rows),
        *_beats_xla(rows),
    )


def to_json(results: Results) -> str:
    """The results as JSON text, with the verdict on each claim."""
    return results.to_json(check_claims(results.rows), FORMAT)


def _claim(title: str, checked: int, against: Iterable[Row], what: str = "cells") -> Claim:
    """A claim that every checked cell must bear out."""
    names = tuple(f"{r.cell_name} {r.program}" for r in against)
    figure = f"{checked - len(names)} of {checked} {what}"
    return Claim(title, figure, None if not checked else not names, names)


def _all_measured(rows: Sequence[Row]) -> Claim:
    return _claim("no program failed", len(rows), [r for r in rows if r.status == "error"])


def _budgets_kept(rows: Sequence[Row]) -> Claim:
    planned = _planned(rows)
    over = [r for r in planned if r.total_bytes > r.budget_bytes]
    return _claim("2. budgets are kept as compiled", len(planned), over)


def _minimum_is_minimum(rows: Sequence[Row]) -> Claim:
    """Of every infeasible budget, the minimum that it names works and 97 % of it does not."""
    checks = [r for r in rows if r.program.startswith(("ours @ minimum", "ours @ 97%"))]
    wrong = [r for r in checks if (r.status == "ok") != (r.budget == "minimum")]
    return _claim("2. minimum budgets work, 97 % of them do not", len(checks), wrong, "budgets")


def _smallest_beats_baselines(rows: Sequence[Row]) -> Claim:
    checked, against = 0, []
    for cell in _cells(rows).values():
        ours = [r for r in cell if r.kind == "ours" and r.status == "ok"]
        kinds = "plain", "baseline", "xla"
        baselines = [r for r in cell if r.kind in kinds and r.status == "ok"]
        if not ours or not baselines:
            continue
        checked += 1
        best = min(baselines, key=lambda r: r.total_bytes)
        if min(r.total_bytes for r in ours) > best.total_bytes:
            against.append(best)
    return _claim("3. the smallest plan takes at most the best baseline's bytes", checked, against)


def _beats_baselines(rows: Sequence[Row], unit: str, name: str) -> tuple[Claim, Claim]:
    """At the bytes of each baseline: at most its FLOPs or seconds, and often less."""
    pairs = _pairs(rows)
    more = [
        ours
        for ours, baseline, _ in pairs
        if ours.status != "ok" or getattr(ours, unit) > (1 + TOLERANCE) * getattr(baseline, unit)
    ]
    recomputing = [
        (ours, baseline)
        for ours, baseline, plain in pairs
        if getattr(baseline, unit) > getattr(plain, unit) * (1 + 1e-6)
    ]
    lower = sum(
        ours.status == "ok" and getattr(ours, unit) < getattr(baseline, unit)
        for ours, baseline in recomputing
    )
    return (
        _claim(f"3. at a baseline's bytes, at most its {name} (1 %)", len(pairs), more),
        Claim(
            f"3. ... and less in half the cells that recompute ({name})",
            f"{lower} of {len(recomputing)} cells",
            2 * lower >= len(recomputing) if recomputing else None,
        ),
    )


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row, Row]]:
    """Ours at a baseline's bytes, that baseline, and plain."""
    found = []
    for cell in _cells(rows).values():
        by_name: dict[str | None, Row] = {r.program: r for r in cell}
        ours = [r for r in cell if r.budget == "baseline"]
        found += [(r, by_name[r.baseline], by_name["plain"]) for r in ours]
    return found


def _free_memory(rows: Sequence[Row]) -> list[Claim]:
    claims = []
    for name, cell in _cells(rows).items():
        plain = next((r for r in cell if r.kind == "plain"), None)
        free = [r for r in _planned(cell) if r.flops_ratio <= FREE]
        if plain is None or not free:
            continue
        share = min(r.temp_bytes for r in free) / plain.temp_bytes
        limit = FREE_SHARES.get(name)
        title = f"4. temporaries at plain's FLOPs: {' '.join(name)}"
        title += f", at most {limit:.0%}" if limit else ""
        claims.append(Claim(title, f"{share:.1%}", None if limit is None else share <= limit))
    return claims


def _budget_used(rows: Sequence[Row]) -> Claim:
    used = [r.used for r in _with_overhead(rows)]
    title = f"5. the median plan with overhead uses {USED_AT_LEAST:.0%} of its budget"
    if not used:
        return Claim(title, "no such plan", None)
    median = statistics.median(used)
    return Claim(title, f"{median:.1%} of {len(used)} plans", median >= USED_AT_LEAST)


def _poor_use_explained(rows: Sequence[Row]) -> Claim:
    poor = [r for r in _with_overhead(rows) if r.used < POOR_USE]
    against = [r for r in poor if not r.next_faster_bytes or r.next_faster_bytes <= r.budget_bytes]
    title = f"5. below {POOR_USE:.0%}, the next faster plan breaks the budget"
    return _claim(title, len(poor), against, "plans")


def _predictions(rows: Sequence[Row]) -> list[Claim]:
    errors = collections.defaultdict(list)
    for row in rows:
        if row.prediction_error is not None:
            errors[row.target, row.dtype].append(row.prediction_error)
    claims = []
    for (target, dtype), found in errors.items():
        limit, median = PREDICTION_ERROR[target.split(":")[0]], statistics.median(found)
        title = f"6. median error of predicted temporaries: {target} {dtype}, at most {limit:.0%}"
        figure = f"{median:.1%} of {len(found)} plans, largest {max(found):.1%}"
        claims.append(Claim(title, figure, median <= limit))
    return claims


def _beats_xla(rows: Sequence[Row]) -> list[Claim]:
    """At the caps that XLA's own rematerialization keeps: they are kept, in no more seconds."""
    pairs = [
        (ours, xla)
        for cell in _cells(rows).values()
        for xla in cell
        for ours in cell
        if xla.kind == "xla" and ours.kind == "ours" and ours.budget_bytes == xla.budget_bytes
    ]
    if not pairs:
        return []
    kept = [(ours, xla) for ours, xla in pairs if xla.is_kept]
    judged = [(ours, xla) for ours, xla in kept if _is_judged(ours) and _is_judged(xla)]
    slower = [
        ours
        for ours, xla in judged
        if ours.estimated_seconds > (1 + TOLERANCE) * xla.estimated_seconds
    ]
    broken = [ours for ours, _ in kept if not ours.is_kept]
    seconds = "7. ... in at most its estimated seconds (1 %), where most FLOPs are estimated"
    return [
        Claim("7. caps that XLA's rematerialization keeps", f"{len(kept)} of {len(pairs)}", None),
        _claim("7. plans keep the caps that XLA's rematerialization keeps", len(kept), broken),
        _claim(seconds, len(judged), slower),
    ]


def _is_judged(row: Row) -> bool:
    """Whether the compiler estimated the seconds of enough of a program to compare it."""
    return (row.estimated_share or 0) >= JUDGED_SHARE


def _cells(rows: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    found: dict[tuple[str, str, str], list[Row]] = collections.defaultdict(list)
    for row in rows:
        found[row.cell].append(row)
    return found


def _planned(rows: Iterable[Row]) -> list[Row]:
    return [r for r in rows if r.kind == "ours" and r.status == "ok"]


def _with_overhead(rows: Iterable[Row]) -> list[Row]:
    """Plans that pay for memory, at budgets that were not chosen to fit them."""
    return [r for r in _planned(rows) if r.budget in ("baseline", "temps") and r.overhead > 0]
