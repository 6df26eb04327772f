"""Broadcasts the plan of process 0 to all processes of a job.

Every process must run the same program, and a solver that its clock stops need not find the same
plan twice. The plan travels as JSON text, and each process checks its hash.
"""

import concurrent.futures
import hashlib
from collections.abc import Callable

import jax
import numpy as np

from .cache import Stored
from .record import PlanRecord, record_from_json

#: Processes exchange arrays of one size, so the text is preceded by its length.
_HEADER = 8 + 32
#: The first character of a message: a plan, or an error of process 0.
_MADE, _FATAL, _FAILED = "P", "V", "R"


class FirstProcessFailed(ValueError):
    """Process 0 could not plan, for a reason that its own error names."""

    __module__ = "monet_jax"


def from_first_process(
    make: Callable[[], PlanRecord], fatal: tuple[type[BaseException], ...] = ()
) -> PlanRecord:
    """The plan of process 0; see `made_by_first_process`."""
    return made_by_first_process(make, record_from_json, fatal)


def made_by_first_process[Made: Stored](
    make: Callable[[], Made],
    from_json: Callable[[str], Made],
    fatal: tuple[type[BaseException], ...] = (),
) -> Made:
    """What process 0 makes, in all processes.

    Arguments:
        make: makes it, in process 0.
        from_json: reads it, in the others.
        fatal: errors of `make` that are about the user's arguments.

    Raises:
        FirstProcessFailed: process 0 raised one of the `fatal` errors.
        RuntimeError: it raised another, or its plan arrived damaged.
    """
    if jax.process_count() == 1:
        return make()
    if jax.process_index() != 0:
        return from_json(_receive())
    try:
        made = make()
    except BaseException as error:
        _send((_FATAL if isinstance(error, fatal) else _FAILED) + str(error))
        raise
    _send(_MADE + made.to_json())
    return made


def _send(message: str) -> None:
    text = message.encode()
    header = len(text).to_bytes(8, "big") + hashlib.sha256(text).digest()
    _broadcast(np.frombuffer(header, np.uint8))
    _broadcast(np.frombuffer(text, np.uint8))


def _receive() -> str:
    header = _broadcast(np.zeros(_HEADER, np.uint8)).tobytes()
    text = _broadcast(np.zeros(int.from_bytes(header[:8], "big"), np.uint8)).tobytes()
    if hashlib.sha256(text).digest() != header[8:]:
        raise RuntimeError(
            "The plan of process 0 arrived damaged. Check the network and try again."
        )
    kind, content = text.decode()[0], text.decode()[1:]
    if kind == _MADE:
        return content
    failure = FirstProcessFailed if kind == _FATAL else RuntimeError
    raise failure(f"Process 0 could not make a plan: {content}")


def _broadcast(data: np.ndarray) -> np.ndarray:
    from jax.experimental import multihost_utils  # starts a backend; only jobs that need it pay

    # A function is being traced, and there no mesh may be set; but traces are a thread's own.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sent = pool.submit(multihost_utils.broadcast_one_to_all, data).result()
    return np.asarray(sent, np.uint8)
