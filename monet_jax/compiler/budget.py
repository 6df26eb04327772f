"""Parses a budget such as "12GiB", 0.5 or "auto" into bytes, and formats bytes."""

import math
import numbers
import re
from collections.abc import Callable
from typing import Any

# "auto" leaves this share of the target's memory free: the allocator's fragments, the next batch,
# and whatever else the process keeps on the device.
AUTO_RESERVE = 0.10

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**n for n, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**n for n, prefix in enumerate("kmgt", start=1)},
}
_PATTERN = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")
_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*%\s*")
_ACCEPTED = (
    'an int of bytes, a string like "12GiB" or "800 MB", a fraction in (0, 1] or "60%", or "auto"'
)


def parse_budget(
    budget: int | float | str,
    *,
    unplanned_bytes: Callable[[], int],
    target_memory: Callable[[], int],
) -> int:
    """The bytes that `budget` stands for.

    Args:
      budget: bytes as an int; a string with a unit (GiB is 1024**3, GB is 1000**3); a float in
        (0, 1], or a string such as "60%", a share of what the program takes without a plan; or
        "auto", the target's memory less `AUTO_RESERVE`.
      unplanned_bytes: called for a share: the bytes of the program as written.
      target_memory: called for "auto": the bytes one process can have on the target.

    Raises:
      TypeError: `budget` is neither a number nor a string.
      ValueError: it is not a positive amount in one of these forms.
    """
    validate_budget(budget)
    budget = as_share(budget)
    if budget == "auto":
        return int(target_memory() * (1 - AUTO_RESERVE))
    if isinstance(budget, str):
        return _parse_amount(budget)
    if isinstance(budget, numbers.Integral):
        return int(budget)
    return int(budget * unplanned_bytes())


def parse_bytes(amount: int | float | str) -> int:
    """The bytes of an amount such as "2GiB" that depends on no program and on no target.

    Raises:
      TypeError, ValueError: it is no amount, or a share or "auto".
    """
    amount = as_share(amount)
    if isinstance(amount, float) or amount == "auto":
        raise ValueError(f"{amount!r} depends on a program or a target")
    return parse_budget(amount, unplanned_bytes=lambda: 0, target_memory=lambda: 0)


def validate_budget(budget: int | float | str) -> None:
    """Checks all of a budget that can be checked before there is a program.

    Raises:
      TypeError, ValueError: as `parse_budget`.
    """
    budget = as_share(budget)
    if isinstance(budget, str):
        if budget != "auto":
            _parse_amount(budget)
    elif isinstance(budget, bool) or not isinstance(budget, numbers.Real):
        # An array, or an optimizer, could fill a screen.
        shown = (
            budget
            if isinstance(budget, bool) or budget is None
            else f"of the type {type(budget).__name__}"
        )
        raise TypeError(f"the budget is {shown}; it must be {_ACCEPTED}")
    elif isinstance(budget, numbers.Integral):
        _require_positive(int(budget), budget)
    else:
        _require_fraction(float(budget))


def as_share(budget: Any) -> Any:
    """A share for a string such as "60%", and everything else as it is."""
    found = _SHARE.fullmatch(budget) if isinstance(budget, str) else None
    return float(found[1]) / 100 if found else budget


def format_bytes(nbytes: int) -> str:
    """Bytes for people: "8.0 GiB", "512.0 MiB", "17 B"."""
    if abs(nbytes) < 1024:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 1023.95 or unit == "TiB":  # 1023.96 would be shown as "1024.0"
            break
    return f"{size:.1f} {unit}"


def _parse_amount(text: str) -> int:
    """The bytes of a string such as "12GiB"."""
    found = _PATTERN.fullmatch(text)
    if not found:
        raise ValueError(f"the budget {text!r} is not an amount of memory; it must be {_ACCEPTED}")
    number, unit = found[1], found[2]
    # The case of a unit does not matter, except where it says bits: "12b", "12Gb".
    bits = unit == "b" or (unit.endswith("b") and unit != unit.lower())
    if bits or unit.lower() not in _UNITS:
        raise ValueError(
            f"the budget {text!r} has the unit {unit!r}; use B, kB, MB, GB, TB (powers of 1000) "
            "or KiB, MiB, GiB, TiB (powers of 1024)"
        )
    nbytes = float(number) * _UNITS[unit.lower()]
    if not math.isfinite(nbytes):
        raise ValueError(f"the budget {text!r} is not finite; it must be {_ACCEPTED}")
    return _require_positive(int(nbytes), text)


def _require_positive(nbytes: int, budget: int | float | str) -> int:
    if nbytes < 1:
        raise ValueError(f"the budget {budget!r} is {nbytes} bytes; it must be at least 1 byte")
    return nbytes


def _require_fraction(share: float) -> None:
    """A float is a share of the program's own bytes, so it lies in (0, 1]."""
    if 0 < share <= 1:
        return
    advice = (
        f"; for that many bytes write int({share!r})" if math.isfinite(share) and share > 1 else ""
    )
    raise ValueError(
        f"the budget {share!r} is a float or a percentage, which means a share in (0, 1] of the "
        f"bytes that the program takes without a plan{advice}"
    )
