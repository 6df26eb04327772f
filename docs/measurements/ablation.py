"""What each heuristic of the search for a plan is worth: cells planned without it, one by one.

    python docs/measurements/ablation.py cpu mlp gpt2       # adds to ablation.json
    python docs/measurements/ablation.py gpu:h100 mlp --shares 0.45

Every plan is verified by the compiler, as users' are. The compiler is asked once for each program:
where a heuristic moves no proposal, its answers are those on record, and nothing is compiled again.
"""

import functools
import json
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import typer
from recording import compiled_once

import monet_jax
import planners
from monet_jax import zoo
from monet_jax.candidates import live_bytes, proposals, spaces
from monet_jax.search import bisection, search
from planners.regions.stage_program import options

HERE = Path(__file__).parent
SHARES = "0.6,0.45,0.35"

_MODELS_OF = spaces._models_of


def _by_one_model(*args: Any) -> tuple[proposals.Proposals, ...]:
    return _MODELS_OF(*args)[:1]


def _planned_at_once(found: proposals.Proposals, limit: int) -> planners.Plan | None:
    return live_bytes.fastest_within(found.solved, found.modelled, limit, limit)[0]


#: What is left out -> the part of the program that does it, and what stands in its place.
HEURISTICS: dict[str, tuple[Any, str, Any]] = {
    "local search": (proposals, "POLISH_CANDIDATES", 0),
    "second model": (spaces, "_models_of", _by_one_model),
    "single stages first": (proposals.Proposals, "_planned", _planned_at_once),
    "bisection of single stages": (bisection._Bisection, "of_single_stages", lambda *x: []),
    "answers for other programs": (bisection._Bisection, "follow", lambda *x: None),
    "crossovers": (search, "compile_crossovers", lambda *x: None),
    "knees": (options, "_KNEES", 0),
}


def row(problem: Any, model: str, target: str, share: float) -> dict[str, Any]:
    """A cell planned with all heuristics, and without each."""
    plan = functools.partial(
        monet_jax.plan, problem.loss, *problem.args, target=target, cache=False
    )
    with compiled_once():
        plain = plan(budget="1000TiB")
        temps = plain.unplanned_bytes - plain.fixed_bytes
        budget = plain.fixed_bytes + int(share * temps)

        def found() -> tuple[float | None, int]:
            try:
                made = plan(budget=budget)
            except monet_jax.InfeasibleBudget:
                return None, 0
            return made.overhead, made.compilations

        overhead, compilations = found()
        cell = {"target": target, "model": model, "share": share}
        cell |= {"overhead": overhead and round(overhead, 5), "compilations": compilations}
        for name, (owner, attribute, instead) in HEURISTICS.items():
            with mock.patch.object(owner, attribute, instead):
                other, count = found()
            known = overhead is not None and other is not None
            percent = round(100 * (other - overhead) / (1 + overhead), 2) if known else None
            cell[name] = {"percent": percent, "more compilations": count - compilations}
        return cell


def main(
    target: Annotated[str, typer.Argument(help="What to compile for.")],
    models: Annotated[list[str], typer.Argument(help="Models of the zoo.")],
    shares: Annotated[str, typer.Option(help="Of the plain temporaries.")] = SHARES,
) -> None:
    path = HERE / "ablation.json"
    known = json.loads(path.read_text()) if path.exists() else []
    for model in models:
        problem = zoo.build(model, scale="bench")
        for share in map(float, shares.split(",")):
            made = row(problem, model, target, share)
            place = target, model, share
            known = [x for x in known if (x["target"], x["model"], x["share"]) != place]
            known.append(made)
            path.write_text("[\n" + ",\n".join(json.dumps(x) for x in known) + "\n]\n")
            print(made, flush=True)


if __name__ == "__main__":
    typer.run(main)
