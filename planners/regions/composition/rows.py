"""The rows of a composition about bytes that wait from stage to stage, and about iterations.

The indices and the variables are in `variables`.
"""

from ...graph import Choice
from ..iterations import neighbours
from .variables import Terms, Variables, add


def earlier(variables: Variables) -> list[Terms]:
    """`earlier[t] == earlier[t-1] + what candidates that end at t-1 retain`, as `... == 0`."""
    n = variables.count
    rows: list[Terms] = [{n: 1.0}]
    before = {first: choice for choice in variables.choices for first in choice.firsts[1:]}
    behind = {choice.stop: choice for choice in variables.choices}
    for t in range(1, variables.last + 1):
        if t in before:
            row = {n + before[t].first: -1.0}
        elif t in behind:
            row = {n + behind[t].first: -1.0, variables.waits[behind[t]]: -1.0}
        else:
            row = {n + t - 1: -1.0} | _left_at(variables, t - 1, -1.0)
        rows.append({n + t: 1.0} | row)
    return rows


def _left_at(variables: Variables, t: int, sign: float) -> Terms:
    """Bytes that candidates which end at stage `t` leave behind."""
    ending = [c for c in variables.covering[t] if variables.candidates[c].region.last == t]
    return {c: sign * variables.own_bytes[c] / variables.scale for c in ending}


def waiting(variables: Variables) -> list[Terms]:
    """`waits[choice] - what a branch of it leaves behind`, as `... >= 0`."""
    return [
        _left_by_branch(variables, choice, first, stop)
        for choice in variables.choices
        for first, stop in choice.branches
    ]


def _left_by_branch(variables: Variables, choice: Choice, first: int, stop: int) -> Terms:
    n = variables.count
    row = {variables.waits[choice]: 1.0, n + choice.first: 1.0}
    add(row, {n + stop - 1: 1.0} | _left_at(variables, stop - 1, 1.0), -1.0)
    for i, home in variables.homes.items():
        if home == (first, stop) and i in variables.shared:
            share = variables.bytes_of([i]) / variables.scale
            add(row, variables.kept_at(i, stop), -share)
    return row


def uniform(variables: Variables) -> list[Terms]:
    """`choose[c] - choices of the same in the iterations next to it`, as `... <= 0`."""
    number = {x.region: c for c, x in enumerate(variables.candidates)}
    rows = []
    for c, x in enumerate(variables.candidates):
        if others := neighbours(variables.graph, x.region):
            rows.append({c: 1.0} | {number[y]: -1.0 for y in others if y in number})
    return rows
