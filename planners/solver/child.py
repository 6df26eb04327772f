"""The process in which HiGHS runs; it is ended when it does not stop in time.

HiGHS does not look at its time limit everywhere: it takes minutes to presolve large programs, and
1.16 goes on forever with some small ones. A process can be ended, a thread cannot. It starts with
the first request, and is kept until this one ends.
"""

import atexit
import contextlib
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

from ..errors import SolverStopped
from . import worker
from .worker import Answer, Request

#: What a process says: an answer, and whether it is the last one; None once it has ended.
_Message = tuple[Answer, bool] | None
#: As much of what it wrote beside its answers is repeated.
_LAST_BYTES = 500


def ask(request: Request, seconds: float) -> Answer | None:
    """The last that HiGHS says of a program within so many seconds, which may be nothing.

    Raises:
        SolverStopped: its process ended by itself, or did not start.
    """
    return _child().ask(request, seconds)


class _Process:
    """A running worker."""

    def __init__(self) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        # -P: this package's folder, where the file lies, must not shadow other packages.
        command = [sys.executable, "-P", worker.__file__]
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._stderr)
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        # By a thread, since a pipe cannot be read for so many seconds on every system.
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._popen.poll() is None

    def ask(self, request: Request, seconds: float) -> tuple[Answer | None, bool]:
        """The last that it says within so many seconds, and whether it will say more.

        Raises:
            EOFError, OSError: it has ended.
        """
        until, answer, is_last = time.monotonic() + seconds, None, False
        assert self._popen.stdin is not None
        pickle.dump(request, self._popen.stdin)
        self._popen.stdin.flush()
        while not is_last:
            try:
                message = self._messages.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                break
            if message is None:
                raise EOFError
            answer, is_last = message
        return answer, not is_last

    def end(self) -> str:
        """Ends it, and says how it ended and what it wrote last."""
        self._popen.kill()
        status = self._popen.wait()
        self._listener.join()
        for stream in (self._popen.stdin, self._popen.stdout):
            with contextlib.suppress(OSError):  # what was not read yet
                stream.close()  # type: ignore[union-attr]
        with self._stderr as stderr:
            stderr.seek(max(stderr.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
            return f"status {status}; its last words: {stderr.read()!r}"

    def _listen(self) -> None:
        stdout: Any = self._popen.stdout
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):  # ended, or cut off
            while True:
                self._messages.put(pickle.load(stdout))
        self._messages.put(None)


class _Child:
    """The process, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, request: Request, seconds: float) -> Answer | None:
        """As the function."""
        with self._lock:
            try:
                answer, goes_on = self._running().ask(request, seconds)
            except (EOFError, OSError) as error:
                raise SolverStopped(
                    f"HiGHS failed: its process ended with {self.end() or error}. It may be short "
                    "of memory: use a planner for large graphs."
                ) from error
            except BaseException:  # an interrupt: the next answer would be to this request
                self.end()
                raise
            if goes_on:
                self.end()
            return answer

    def end(self) -> str:
        """Ends the process, if there is one, and says how it ended."""
        process, self._process = self._process, None
        return process.end() if process else ""

    def _running(self) -> _Process:
        if self._process is not None and not self._process.is_running:
            self.end()  # while there was no request
        if self._process is None:
            self._process = _Process()
        return self._process


# By process: a fork must not write into its parent's pipes.
_children: dict[int, _Child] = {}


def _child() -> _Child:
    return _children.setdefault(os.getpid(), _Child())


@atexit.register
def _end() -> None:
    if os.getpid() in _children:
        _child().end()
