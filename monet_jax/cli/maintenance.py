"""The commands about what is there: `env` for reports of faults, `cache` and `show` of plans."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

import monet_jax

from .errors import exit_codes
from .words import AsJson, check_writable

#: What planning depends on, and what users bring.
PACKAGES = (
    "monet-jax jax jaxlib jax-cuda13-plugin libtpu numpy scipy cvxpy highspy flax optax equinox"
).split()
#: Environment variables that change programs, compilers or plans, by how they begin.
_FLAGS = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "CUDA_VISIBLE", "MONET_JAX_")


def env(as_json: AsJson = False) -> None:
    """Print versions, devices, targets, cache and flags: for a report of a fault."""
    with exit_codes():
        found = dict(_facts())
        if as_json:
            print(json.dumps(found, indent=1))
            return
        for name, value in found.items():
            print(f"{name:<11}{value if isinstance(value, str) else _lines(value)}")


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all stored plans.")] = False,
) -> None:
    """Say where plans are stored, how many and how large; or remove them."""
    with exit_codes():
        from ..plans import cache as plans  # the package imports JAX

        files = plans.stored()
        print(f"{_described(files)} in {plans.folder()}")
        if clear:
            for file in files:
                file.unlink(missing_ok=True)
            print("removed")


def show(
    stored: Annotated[Path, typer.Argument(metavar="PLAN", help="A stored plan.")],
    policies: Annotated[
        bool, typer.Option("--policies", help="As policies of jax.checkpoint, to paste.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report here, as a page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the report of a stored plan, or what it saves as `jax.checkpoint` policies."""
    with exit_codes():
        check_writable(html)
        found = monet_jax.load_plan(stored)
        if html is not None:
            found.to_html(html)
        if policies:
            print(found.policies())
        else:
            print(found.to_json() if as_json else found)


def _facts() -> Iterator[tuple[str, str | list[str]]]:
    import jax

    from ..compiler.targets import TARGETS, TargetUnavailable, require_compiler
    from ..plans import cache as plans

    yield "versions", [f"{name} {x}" for name in PACKAGES if (x := _version(name))]
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    yield "devices", [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
    available = []
    for name, target in TARGETS.items():
        try:
            require_compiler(target)
        except TargetUnavailable:
            continue
        available.append(name)
    yield "targets", [" ".join(available)]
    state = "" if plans.is_enabled() else ", turned off"
    yield "cache", f"{plans.folder()}: {_described(plans.stored())}{state}"
    flags = sorted(name for name in os.environ if name.startswith(_FLAGS))
    yield "flags", [f"{name}={os.environ[name]}" for name in flags] or ["none"]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _described(files: Sequence[Path]) -> str:
    count, nbytes = len(files), sum(file.stat().st_size for file in files)
    return f"{count:,} plan{'' if count == 1 else 's'}, {nbytes / 2**20:.1f} MiB"


def _lines(values: list[str]) -> str:
    return f"\n{'':<11}".join(values)
