"""How does a test run code in fresh Python processes?"""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def start(code: str, *argv: object, options=(), **environment: str) -> subprocess.Popen:
    """A new process; it finds this checkout and the tests' own modules."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *options, "-c", code, *map(str, argv)],
        env=os.environ | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(*processes: subprocess.Popen) -> list[str]:
    """What processes print, once all of them have ended well."""
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
    return [out.strip() for out, _ in outputs]


def run_python(code: str, *options: str, **environment: str) -> str:
    """What a new process prints."""
    (out,) = finished(start(code, options=options, **environment))
    return out


def free_port() -> int:
    """A port of this machine that nothing listens to."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
