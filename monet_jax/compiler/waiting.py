"""What is done while a compiler works: planning ahead, on another core.

A compiler works for seconds in another process, or in a thread that does not hold Python's lock.
What is known to be needed next can be found out meanwhile.
"""

import collections
import contextlib
import contextvars
import itertools as it
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

#: None where nothing is to be done.
_STEPS = contextvars.ContextVar[Iterator[None] | None]("steps", default=None)


@contextlib.contextmanager
def meanwhile(steps: Iterable[None]) -> Iterator[None]:
    """Take steps while programs are compiled in this context, as many as there is time for.

    Inside another such context, its steps come after these.

    Arguments:
        steps: each takes about a second, and waits for no compiler.
    """
    token = _STEPS.set(it.chain(steps, _STEPS.get() or ()))
    try:
        yield
    finally:
        _STEPS.reset(token)


def made_ahead[Item](items: Iterator[Item]) -> tuple[Iterator[Item], Iterator[None]]:
    """The items, and the steps that make the next ones before they are asked for."""
    made = collections.deque[Item]()

    def steps() -> Iterator[None]:
        for item in items:
            made.append(item)
            yield

    def each() -> Iterator[Item]:
        while made or next(ahead, "no more") is None:
            yield made.popleft()

    ahead = steps()
    return each(), ahead


def waited_for[**P, Result](work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """What some work returns or raises; it has a thread of its own where there are steps to take.

    A step that has begun is finished first. What a step raises is raised at once, and the work is
    left to itself.
    """
    steps = _STEPS.get()
    if steps is None:
        return work(*args, **kwargs)
    # The interpreter waits for this thread before it ends: no compiler is cut off.
    future = ThreadPoolExecutor(1).submit(work, *args, **kwargs)
    for _ in steps:
        if future.done():
            break
    return future.result()
