"""Runs code in fresh Python processes."""

import contextlib
import os
import socket
import subprocess
import sys

from paths import HELPERS, ROOT


def start(code: str, *argv: object, options=(), **environment: str) -> subprocess.Popen:
    """A new process; it finds this checkout and the modules that tests share."""
    path = os.pathsep.join([str(ROOT), str(HELPERS), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *options, "-c", code, *map(str, argv)],
        env=os.environ | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(*processes: subprocess.Popen, timeout: int = 120) -> list[str]:
    """What processes print, once all of them have ended well within so many seconds each."""
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
    return [out.strip() for out, _ in outputs]


def run_python(code: str, *options: str, **environment: str) -> str:
    """What a new process prints."""
    (out,) = finished(start(code, options=options, **environment), timeout=300)
    return out


def run_on_cpus(devices: int, code: str) -> str:
    """What a new process prints that sees so many CPUs; warnings are errors in it."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return run_python(code, "-W", "error", XLA_FLAGS=flags, JAX_PLATFORMS="cpu")


def in_a_job(code: str, processes: int) -> str:
    """The code of a process in a job of several; it is given a port and its `rank`."""
    return f"""
import sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank = int(sys.argv[2])
jax.distributed.initialize(
    f"localhost:{{sys.argv[1]}}", num_processes={processes}, process_id=rank
)
{code}"""


def free_port() -> int:
    """A port of this machine that nothing listens to."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
