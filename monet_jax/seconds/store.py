"""Measured seconds on disk: one file for a device and the versions that ran on it.

A file that is truncated, foreign or of another format counts as empty; a folder that cannot be
written costs nothing but the measurements, which are made again in the next process.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax

from .._disk import directory, is_enabled, write_whole
from .._version import __version__

log = logging.getLogger("monet_jax")

#: Raised when the meaning of a stored number changes.
FORMAT = 1


class Store:
    """Seconds by keys: read from the disk once, and written when asked.

    Arguments:
        device: what they are measured on, and by which versions, in words.
    """

    def __init__(self, device: str):
        self.device = device
        name = hashlib.sha256(device.encode()).hexdigest()[:32]
        self._path = directory() / "seconds" / f"{name}.json"
        self._known = self._on_disk()
        self._new: dict[str, float] = {}

    def get(self, key: str) -> float | None:
        """What is known under a key."""
        return self._known.get(key)

    def put(self, key: str, seconds: float) -> None:
        """Know something from now on, also in other processes once it is written."""
        self._known[key] = self._new[key] = seconds

    def write(self) -> None:
        """Add what is new to what is on the disk by now."""
        if not self._new or not is_enabled():
            return
        kept = {**self._on_disk(), **self._new}
        text = json.dumps({"format": FORMAT, "device": self.device, "seconds": kept})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, text)
            self._new = {}
        except OSError as error:
            log.info("measured seconds could not be kept in %s (%s)", self._path.parent, error)

    def _on_disk(self) -> dict[str, float]:
        if not is_enabled():
            return {}
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return _checked(data, self.device)


def key_of(text: str) -> str:
    """The key of something that is described by a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def device_in_words(device: Any) -> str:
    """A device, and all that decides how fast the same program runs on it."""
    parts = (
        __version__,
        f"JAX {jax.__version__}, jaxlib {version('jaxlib')}",
        device.device_kind,
        _processor() if device.platform == "cpu" else "",
        f"{len(os.sched_getaffinity(0))} CPUs" if device.platform == "cpu" else "",
        os.environ.get("XLA_FLAGS", ""),
    )
    return "; ".join(filter(None, parts))


def _processor() -> str:
    """The model of the CPU, where the system says it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((x.split(":")[1].strip() for x in file if x.startswith("model name")), "")
    except OSError:
        return ""


def _checked(data: Any, device: str) -> dict[str, float]:
    """The seconds of a file, if it is of this format and device and holds nothing else."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        return {}
    seconds = data.get("seconds")
    if data.get("device") != device or not isinstance(seconds, Mapping):
        return {}
    return {k: float(v) for k, v in seconds.items() if _is_time(v)}


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0
