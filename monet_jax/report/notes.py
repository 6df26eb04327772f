"""Remarks on a plan as a whole: what limits it, how its loops run, where seconds come from."""

from ..compiler.budget import format_bytes
from ..plans.record import PlanRecord

#: A plan that uses less of its budget than this has to say what the next faster plan takes.
POOR_USE = 0.75
#: Where the seconds of ops come from, in words.
SOURCES = {"measured": "measured on this device", "roofline": "by a roofline"}


def notes(plan: PlanRecord) -> list[str]:
    """Remarks on a plan as a whole, in sentences."""
    every = _cut_short, _loops, _host, _use_of_budget, _fixed, _sources, _clock
    return [remark for remarks in every for remark in remarks(plan)]


def _cut_short(plan: PlanRecord) -> list[str]:
    if not plan.cut_short:
        return []
    return [f"The search was cut short: {plan.cut_short}. A faster plan may exist."]


def _sources(plan: PlanRecord) -> list[str]:
    """Which shares of the seconds come from where."""
    total = sum(row.seconds for row in plan.sources)
    if not total:
        return []
    rows = sorted(plan.sources, key=lambda row: -row.seconds)
    shares = (f"{row.seconds / total:.0%} {SOURCES.get(row.source, row.source)}" for row in rows)
    return [f"Seconds: {', '.join(shares)}."]


def _clock(plan: PlanRecord) -> list[str]:
    """What the clock said of the programs that were run."""
    timed = [row for row in plan.compiled if row.step_seconds is not None]
    if not timed:
        return []
    fastest = min(timed, key=lambda row: row.step_seconds or 0.0)
    plain = plan.compiled[0].step_seconds
    beside = "which does not fit" if plain is None else f"which takes {_milliseconds(plain)}"
    return [
        f"Chosen by the clock on this device, of {len(timed)} programs that keep the budget: "
        f"{_milliseconds(fastest.step_seconds or 0.0)} a step; the function as it is, {beside}."
    ]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def _loops(plan: PlanRecord) -> list[str]:
    """How loops run, where they run as nested scans."""
    if plan.chunks is None:
        return []
    lengths = " and ".join(map(str, sorted({n for n in plan.chunks if n})))
    if not lengths:
        return ["Loops inside others save only their carries, and run each iteration once more."]
    return [
        f"Loops run in chunks of {lengths} iterations and save only their carries between them."
    ]


def _host(plan: PlanRecord) -> list[str]:
    """What waits in the host's memory, and how much of the copies is not hidden."""
    decisions = plan.decisions
    if decisions is None or not decisions.host_bytes:
        return []
    waiting = decisions.waiting_seconds
    share = plan.overhead_of(plan.base_seconds + waiting)
    return [
        f"{format_bytes(decisions.host_bytes)} wait in the host's memory; the device waits "
        f"{1e3 * waiting:.2f} ms for the copies ({share:.2%} of the step), the rest is hidden."
    ]


def _fixed(plan: PlanRecord) -> list[str]:
    """What the arguments and results are made of, which no plan changes."""
    if not plan.fixed or plan.fixed_bytes is None:
        return []
    parts = ", ".join(f"{format_bytes(row.nbytes)} {row.what}" for row in plan.fixed)
    return [f"No plan changes {format_bytes(plan.fixed_bytes)}: {parts}."]


def _use_of_budget(plan: PlanRecord) -> list[str]:
    """Why much of the budget is unused, where it is."""
    if plan.decisions is None or plan.compiled_bytes is None or used_share(plan) >= POOR_USE:
        return []
    if plan.next_faster is None:
        return [f"It uses {used_share(plan):.1%} of the budget; no faster plan was compiled."]
    seconds, nbytes = plan.next_faster
    return [
        f"It uses {used_share(plan):.1%} of the budget: the next faster plan "
        f"(overhead {plan.overhead_of(seconds):.2%}) takes {format_bytes(nbytes)} as compiled, "
        "too much."
    ]


def used_share(plan: PlanRecord) -> float:
    """The share of its budget that a plan takes as compiled, 0 where that is unknown."""
    return ((plan.compiled_bytes or 0) + plan.reserved_bytes) / plan.budget_bytes
