"""Parameters of tests of which some run always, and the others with `-m slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], *quick: str) -> list[Any]:
    """All cases as parameters, of which only those named run without `-m slow`.

    A tuple is a case of several arguments, whose names are joined by dashes; each of them may be a
    parameter with an ID. What has none is named by its `__name__` or `name`, or as it is printed.

    Raises:
        ValueError: a name is that of no case.
    """
    params = [_param(case) for case in cases]
    unknown = {*quick} - {_name(param) for param in params}
    if unknown:
        raise ValueError(f"no cases of these names: {sorted(unknown)}")
    return [
        param
        if _name(param) in quick
        else pytest.param(*param.values, id=param.id, marks=[*param.marks, pytest.mark.slow])
        for param in params
    ]


def _param(case: Any) -> Any:
    """A case as a parameter of pytest; one of several parameters has all they have."""
    if hasattr(case, "marks"):
        return case
    if not isinstance(case, tuple):
        return pytest.param(case)
    parts = [part if hasattr(part, "marks") else pytest.param(part) for part in case]
    values = [value for part in parts for value in part.values]
    name = "-".join(map(_name, parts)) if any(part.id for part in parts) else None
    return pytest.param(*values, id=name, marks=[mark for part in parts for mark in part.marks])


def _name(param: Any) -> str:
    """What a case is called."""
    values = (getattr(x, "__name__", getattr(x, "name", x)) for x in param.values)
    return param.id or "-".join(map(str, values))
