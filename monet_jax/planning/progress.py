"""Shows the progress of a long operation on a terminal, and nowhere else."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows the current operation, in one line of the terminal's error stream.

    The line is removed at the end. Where the stream is no terminal, nothing is written.
    """
    console = Console(stderr=True)
    if not console.is_terminal or console.is_jupyter:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(text.replace("[", r"\["))
