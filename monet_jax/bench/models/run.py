"""Runs a benchmark of models; rows are stored after each program, so none is ever lost."""

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from ... import __version__, zoo
from ..._disk import write_whole
from ...compiler.targets import Target, compiler_version, require_compiler, resolve_target
from ...seconds.clock import Timing, ratio
from .cells import Cell, Program
from .claims import to_json
from .clock import step_timings
from .rows import Results, Row
from .text import one_line

#: The groups of budgets that plans are made for.
BUDGETS = ("minimum", "baselines", "temps", "free")
SCALES = ("full", "bench", "tiny", "frontier")
#: What models may compute in; parameters, statistics of normalizations and losses are float32.
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Request:
    """What to compare.

    Attributes:
      models: of the zoo.
      targets: what to compile for.
      scale: of the models.
      budgets: of `BUDGETS`.
      measure: whether steps are timed, where the target is this device.
      dtype: of `DTYPES`, what the models compute in; None for what people compute in on a target.
    """

    models: tuple[str, ...]
    targets: tuple[Target, ...]
    scale: str
    budgets: frozenset[str]
    measure: bool
    dtype: str | None = None

    def dtype_on(self, target: Target) -> str:
        """What the models compute in on a target.

        XLA:CPU computes bfloat16 in float32, so that its bytes would mislead.
        """
        return self.dtype or ("float32" if target.platform == "cpu" else "bfloat16")


def make_request(
    models: Sequence[str],
    targets: Sequence[str],
    scale: str,
    budgets: str,
    measure: bool,
    dtype: str | None = None,
) -> Request:
    """A checked request.

    Args:
      models: names in the zoo; none means all of them.
      targets: names of targets.
      scale: "full", "bench", "tiny", or "frontier", which some models have.
      budgets: some of `BUDGETS` with commas between them, or "all".
      measure: time the steps, where the target is this device.
      dtype: what the models compute in; None takes bfloat16 on GPUs and TPUs, float32 on the CPU.

    Raises:
      ValueError: a name is unknown.
      TargetUnavailable: the compiler of a target is not installed.
    """
    chosen = frozenset(BUDGETS if budgets == "all" else budgets.split(","))
    _require_known("models", models, zoo.MODELS)
    _require_known("scale", [scale], SCALES)
    _require_known("budgets", sorted(chosen), BUDGETS)
    _require_known("dtype", [dtype] if dtype else [], DTYPES)
    resolved = tuple(resolve_target(name) for name in targets)
    for target in resolved:
        require_compiler(target)
    every = zoo.FRONTIER if scale == "frontier" else zoo.MODELS
    return Request(tuple(models) or every, resolved, scale, chosen, measure, dtype)


def run_bench(request: Request, out: Path | None, console: Console) -> Results:
    """Runs all programs, model by model.

    Args:
      request: what to compare.
      out: where the rows are kept, after every program; None keeps them nowhere.
      console: gets a line for every program.
    """
    context = _context(request)
    rows: list[Row] = []
    for target in request.targets:
        for model in request.models:
            done = tuple(rows)
            for cell in _cell_rows(model, target, request):
                rows[len(done) :] = cell
                console.print(one_line(cell[-1]), markup=False, highlight=False, soft_wrap=True)
                if out is not None:
                    write_whole(out, to_json(Results(tuple(rows), context)))
    return Results(tuple(rows), context)


def _cell_rows(model: str, target: Target, request: Request) -> Iterator[list[Row]]:
    """The rows of a model on a target: one more each time, and at last with measured seconds."""
    made: list[Program] = []
    dtype = request.dtype_on(target)
    try:
        for program in Cell(model, request.scale, target, dtype).programs(request.budgets):
            made.append(program)
            yield [p.row for p in made]
        if request.measure and target.attached:
            yield _timed(made, step_timings(model, request.scale, dtype, made))
    except Exception as error:  # one model that fails must not end the others
        message = f"{type(error).__name__}: {error}"
        row = Row(
            model=model,
            target=target.name,
            dtype=dtype,
            program="all",
            kind="error",
            status="error",
            message=message,
        )
        yield [*(p.row for p in made), row]


def _timed(made: Sequence[Program], timings: dict[Any, Timing]) -> list[Row]:
    """The rows with seconds, and with their paired ratio to those of the plain program."""
    found = []
    for program in made:
        row, timing = program.row, timings.get(program.key)
        if timing is not None:
            pairs = ratio(timing, timings["plain"])
            fields = {"measured_ratio": pairs.median, "measured_low": pairs.low}
            fields |= {"measured_seconds": timing.seconds, "measured_high": pairs.high}
            row = dataclasses.replace(row, **fields)
        found.append(row)
    return found


def _require_known(argument: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {argument} {name!r}: choose of {', '.join(known)}")


def _context(request: Request) -> dict[str, Any]:
    """The versions, machine and command of the rows."""
    return {
        "monet_jax": __version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "python": platform.python_version(),
        "compilers": {target.name: compiler_version(target) for target in request.targets},
        "device": str(jax.devices()[0]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "scale": request.scale,
        "dtypes": {target.name: request.dtype_on(target) for target in request.targets},
    }
