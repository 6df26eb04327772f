"""Lets Python look for garbage less often while a call traces and plans.

Traces are millions of small objects that stay. At Python's default thresholds the collector looks
through all of them again and again: a tenth of the time to plan a vision transformer for a CPU.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

#: As `gc.set_threshold` takes them.
THRESHOLDS = (20_000, 10, 10)

_lock = threading.Lock()
_calls = 0
_before = gc.get_threshold()


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Collect garbage at these thresholds, or at the user's where these are rarer.

    Calls in several threads share them; after the last one they are as they were.
    """
    global _calls, _before
    with _lock:
        if _calls == 0:
            _before = gc.get_threshold()
            is_on = _before[0] > 0  # 0 turns the collector off
            gc.set_threshold(*(map(max, _before, THRESHOLDS) if is_on else _before))
        _calls += 1
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if _calls == 0:
                gc.set_threshold(*_before)
