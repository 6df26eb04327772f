"""Are plans better than those of another version of this library?

    git clone . /tmp/other && git -C /tmp/other checkout 9b9dc49
    python docs/measurements/against.py /tmp/other cpu mlp gpt2     # adds to against-cpu.json

Both versions plan for the same budgets, shares of the plain program's temporaries, and today's
prices are put on both programs. `worse` is how much longer the step of today's plan takes, in
percent of the plain step. A version that counts compilations as these are run, once a program, says
how many it took.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import jax
import typer
from keeping import keep, kept_rows

from monet_jax import zoo
from monet_jax.analyzer.step_costs import step_costs
from monet_jax.compiler.backend import backend_of
from monet_jax.compiler.targets import resolve_target
from monet_jax.seconds.attained import modelled

HERE = Path(__file__).parent
SHARES = "0.8,0.6,0.45,0.35"
OURS = "monet_jax", "planners"


@contextlib.contextmanager
def version(path: Path) -> Iterator[Any]:
    """The `monet_jax` of a tree, which is imported in place of today's, here and in children."""

    def own() -> dict[str, Any]:
        return {n: module for n, module in sys.modules.items() if n.split(".")[0] in OURS}

    today = own()
    for name in today:
        del sys.modules[name]
    try:
        in_children = mock.patch.dict(os.environ, PYTHONPATH=str(path))
        with in_children, mock.patch.object(sys, "path", [str(path), *sys.path]):
            yield importlib.import_module("monet_jax")
    finally:
        for name in own():
            del sys.modules[name]
        sys.modules |= today


@contextlib.contextmanager
def counted() -> Iterator[list[Any]]:
    """Has an item for each compilation of a version whose plans do not say how many there were."""
    found: list[Any] = []
    if importlib.util.find_spec("monet_jax._trials") is None:
        yield found
        return
    trials = importlib.import_module("monet_jax._trials")
    compiled = trials.compile_bytes

    def counting(*args: Any, **options: Any) -> Any:
        found.append(None)
        return compiled(*args, **options)

    with mock.patch.object(trials, "compile_bytes", counting):
        yield found


def made_by(
    path: Path, problem: Any, target: str, shares: list[float], seconds_of: Callable[..., float]
) -> list[dict[str, Any]]:
    """The plans that the version of a tree makes, one for each share of plain's temporaries.

    Arguments:
        path: of the tree.
        problem: a model of today's zoo.
        target: what to plan for.
        shares: of the temporaries of the plain program.
        seconds_of: prices a function.
    """
    rows = []
    with version(path) as library:

        def plan(budget: int | str) -> Any:
            return library.plan(
                problem.loss, *problem.args, budget=budget, target=target, cache=False
            )

        plain = plan("1000TiB")
        fixed, temps = plain.fixed_bytes, plain.unplanned_bytes - plain.fixed_bytes
        for share in shares:
            budget = fixed + int(share * temps)
            with counted() as compiled:
                try:
                    found = plan(budget)
                except library.InfeasibleBudget:
                    rows.append({"seconds": None})
                    continue
            seconds = seconds_of(found.apply(problem.loss))
            compilations = getattr(found, "compilations", len(compiled))
            kept = found.compiled_bytes <= budget
            rows.append({"seconds": seconds, "compilations": compilations, "kept": kept})
    return rows


def rows_of(other: Path, model: str, name: str, shares: list[float]) -> list[dict[str, Any]]:
    """A row for each budget of a model."""
    problem, target = zoo.build(model, scale="bench"), resolve_target(name)
    has_aux = isinstance(jax.eval_shape(problem.loss, *problem.args), tuple)

    def seconds_of(loss: Callable[..., Any]) -> float:
        step = jax.value_and_grad(loss, has_aux=has_aux)
        return step_costs(step, problem.args, modelled(target), backend_of(target.name)).seconds

    plain = seconds_of(problem.loss)
    theirs, ours = (
        made_by(path, problem, name, shares, seconds_of) for path in (other, HERE.parent.parent)
    )
    return [
        {"model": model, "share": share}
        | {f"{key}_before": value for key, value in x.items() if key != "seconds"}
        | {key: value for key, value in y.items() if key != "seconds"}
        | {
            "overhead_before": over(x, plain),
            "overhead": over(y, plain),
            "worse": worse(x, y, plain),
        }
        for share, x, y in zip(shares, theirs, ours, strict=True)
    ]


def over(row: dict[str, Any], plain: float) -> float | None:
    """The overhead of a plan, in percent of the plain step; None where there is none."""
    return row["seconds"] and round(100 * (row["seconds"] / plain - 1), 2)


def worse(before: dict[str, Any], after: dict[str, Any], plain: float) -> float | None:
    """How much longer the later plan takes, in percent of the plain step."""
    if before["seconds"] is None or after["seconds"] is None:
        return None
    return round(100 * (after["seconds"] - before["seconds"]) / plain, 2)


def main(
    other: Annotated[Path, typer.Argument(help="A tree of the other version.")],
    target: Annotated[str, typer.Argument(help="What to compile for.")],
    models: Annotated[list[str], typer.Argument(help="Models of the zoo.")],
    shares: Annotated[str, typer.Option(help="Of the plain temporaries.")] = SHARES,
) -> None:
    path = HERE / f"against-{target.split(':')[-1]}.json"
    rows = kept_rows(path)
    for model in models:
        made = rows_of(other.resolve(), model, target, [float(x) for x in shares.split(",")])
        rows = [row for row in rows if row["model"] != model] + made
        keep(path, f"against.py TREE {target} {' '.join(models)}", rows, jax=jax.__version__)
        print(*made, sep="\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
