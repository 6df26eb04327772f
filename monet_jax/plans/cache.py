"""Plans on disk: JSON files that are checked when read and written whole.

Plans are found by a hash of all they depend on. A file that is damaged or foreign counts as absent;
a directory that cannot be written costs one warning. Nothing in a file is ever executed.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import jax

from .._disk import DIRECTORY as DIRECTORY
from .._disk import DISABLE as DISABLE
from .._disk import directory, write_whole
from .._disk import is_enabled as is_enabled
from .._version import __version__
from ..compiler.targets import Target, compiler_version
from ..ir import compat
from .record import FORMAT, PlanRecord, record_from_json


class Stored(Protocol):
    """What can be kept: it can be written as JSON."""

    def to_json(self) -> str:
        """It as JSON text."""
        ...


def key_of(target: Target, parts: Iterable[object]) -> str:
    """The name under which a plan is kept: a hash of all that it depends on.

    Arguments:
        target: what it is for: its compiler, and the versions and flags of this process, count.
        parts: what else counts.
    """
    versions = __version__, FORMAT, jax.__version__, compiler_version(target)
    environment = *versions, os.environ.get("XLA_FLAGS", ""), target.name
    return hashlib.sha256(repr((environment, *parts)).encode()).hexdigest()


def read(key: str) -> PlanRecord | None:
    """The plan kept under `key`; None where there is none that can be trusted."""
    return read_as(record_from_json, key)


def read_as[Kept: Stored](from_json: Callable[[str], Kept], key: str) -> Kept | None:
    """What is kept under `key`; None where there is nothing that can be trusted.

    Arguments:
        from_json: raises a ValueError of what it cannot read.
        key: by `key_of`.
    """
    try:
        return from_json(_path(key).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write(key: str, plan: Stored) -> None:
    """Keep a plan under `key`; warns where that is not possible."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, plan.to_json())
    except OSError as error:
        warnings.warn(
            f"The plan could not be kept in `{path.parent}` ({error}); it will be made again in "
            f"the next process. Set {DIRECTORY} to a writable directory, or {DISABLE}=1.",
            skip_file_prefixes=compat.INTERNAL,
        )


def folder() -> Path:
    """Where plans are kept; it need not exist."""
    return directory() / "plans"


def stored() -> list[Path]:
    """The files of all plans that are kept."""
    return sorted(folder().glob("*.json"))


def _path(key: str) -> Path:
    return folder() / f"{key}.json"
