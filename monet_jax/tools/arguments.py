"""Positional and keyword arguments from the result of a user's function."""

from typing import Any


def arguments_of(made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from what a user's function returned.

    Raises:
        TypeError: it returned something else.
    """
    if not isinstance(made, tuple):
        raise TypeError(
            "a function that makes arguments must return a tuple of them, or (args, kwargs); it "
            f"returned {type(made).__name__}"
        )
    if len(made) == 2 and isinstance(made[0], tuple) and _is_keywords(made[1]):
        return made
    return made, {}


def _is_keywords(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)
