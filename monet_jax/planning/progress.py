"""Says what a long call does: a live line on a terminal, a text line in a notebook, or log records.

A call of under two seconds says nothing. Calls inside another one use its line.
"""

import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from ..tracing.garbage import rarely_collected

log = logging.getLogger("monet_jax")

#: Set to "0", this environment variable turns progress off.
SWITCH = "MONET_JAX_PROGRESS"
#: Seconds before the first sign of life.
FIRST_SECONDS = 2.0
#: Seconds between two signs. Nobody should wait for three without one, and a compiler that traces
#: or lowers a large program may keep Python to itself for over one.
EVERY_SECONDS = 1.0

#: Shows a text, in the place of the one before.
Show = Callable[[str], None]


class _Line:
    """What a call does, shown by a thread of its own every few seconds until it is closed."""

    def __init__(self, show: Show):
        self._show, self._text = show, "tracing"
        self._started, self._is_closed = time.perf_counter(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """What the call does from here on."""
        self._text = text

    def close(self) -> None:
        """Show nothing more."""
        self._is_closed.set()
        self._thread.join()

    def _repeat(self) -> None:
        pause = FIRST_SECONDS
        while not self._is_closed.wait(pause):
            seconds = time.perf_counter() - self._started
            self._show(f"monet_jax: {self._text} ({seconds:.0f} s)")
            pause = EVERY_SECONDS


_current: contextvars.ContextVar[_Line | None] = contextvars.ContextVar("line", default=None)


def say(text: str) -> None:
    """Say in the line of the call that is shown, if any, what it does from here on."""
    line = _current.get()
    if line is not None:
        line.say(text)


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    """A function that says what the call does from here on; the line is removed at its end.

    Calls that say what they do take long, so meanwhile garbage is collected less often.
    """
    if _current.get() is not None or os.environ.get(SWITCH) == "0":
        with rarely_collected():
            yield say
        return
    with rarely_collected(), _output() as show:
        line = _Line(show)
        token = _current.set(line)
        try:
            yield say
        finally:
            _current.reset(token)
            line.close()


@contextlib.contextmanager
def _output() -> Iterator[Show]:
    """Where this process shows what it does: standard error, a notebook's cell or the logger."""
    console = Console(stderr=True)
    if console.is_jupyter:
        with _cell() as show:
            yield show
    elif console.is_terminal:
        with _terminal(console) as show:
            yield show
    else:
        yield log.info


@contextlib.contextmanager
def _terminal(console: Console) -> Iterator[Show]:
    status = console.status("")

    def show(text: str) -> None:
        status.update(text.replace("[", r"\["))
        status.start()

    try:
        yield show
    finally:
        status.stop()


@contextlib.contextmanager
def _cell() -> Iterator[Show]:
    from IPython.display import display

    handles = []

    def show(text: str) -> None:
        shown = {"text/plain": text}
        if handles:
            handles[0].update(shown, raw=True)
        else:
            handles.append(display(shown, raw=True, display_id=True))

    try:
        yield show
    finally:
        if handles:
            handles[0].update({"text/plain": ""}, raw=True)
