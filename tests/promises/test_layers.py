"""Import directions, the shape of the sources, their words, their docstrings and the wheel."""

import ast
import logging
import runpy
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from architecture import (
    DIRECTIONS,
    DIRECTIONS_OF_PLANNERS,
    import_circles,
    misshapen,
    nodes_of,
    questions,
    read_sources,
    retired_words,
    shape_of,
    tree_of,
    untested,
    wrong_directions,
)
from paths import ROOT
from processes import run_python

import monet_jax
import planners
from monet_jax._extras import REQUIREMENTS
from monet_jax.ir.compat import plugins

PLANNERS = sorted((ROOT / "planners").rglob("*.py"))
MONET_JAX = sorted((ROOT / "monet_jax").rglob("*.py"))
EVERY = PLANNERS + MONET_JAX
UPWARDS = {"jax", "jaxlib", "flax", "monet_jax"}
# What an extra brings. `import monet_jax` and planning do without; these files are the exceptions.
OPTIONAL = {"flax", "optax", "sklearn", "matplotlib"}
# `planning/reserved.py` needs Optax where it is given an optimizer of Optax.
NEEDING_EXTRAS = (
    "cli/demo.py",
    "planning/reserved.py",
    "zoo/",
    "flax/",
    "report/plots.py",
    "tools/sweep_plot.py",
)

#: The tests of what has no test file of its name. Of an entry that is a folder, the same tests are
#: about all that lies in it. What no test calls by itself is held to what is seen of it from there:
#: bytes against a compiler, values and gradients against plain JAX, plans against replay.
TESTED_BY: dict[str, tuple[str, ...]] = {
    # The API
    "monet_jax/_api.py": ("promises/test_api.py", "promises/test_static.py"),
    "monet_jax/_calls.py": ("promises/test_api.py", "plans/test_record.py"),
    "monet_jax/debug.py": ("promises/test_conventions.py",),
    "monet_jax/_disk.py": ("plans/test_cache.py", "seconds/test_measured.py"),
    "monet_jax/_extras.py": ("promises/test_layers.py",),
    "monet_jax/_plan.py": ("plans/test_record.py", "report/test_text.py", "tools/test_sweep.py"),
    "monet_jax/_step_time.py": ("plans/test_record.py", "cli/test_shell.py"),
    "monet_jax/_sources.py": ("promises/test_api.py", "plans/test_cache.py"),
    "monet_jax/_version.py": ("promises/test_layers.py",),
    "monet_jax/_wrapped.py": ("promises/test_api.py", "tracing/test_marked.py"),
    # Programs of equations
    "monet_jax/ir/barriers.py": ("transformer/test_transform.py",),
    "monet_jax/ir/compat/": ("transformer/test_transform.py", "promises/test_jax_features.py"),
    "monet_jax/ir/costs.py": ("transformer/test_transform.py", "tracing/passes/test_branches.py"),
    "monet_jax/ir/fingerprint.py": ("plans/test_record.py", "plans/test_cache.py"),
    "monet_jax/ir/gradient.py": ("transformer/test_transform.py", "promises/test_jax_semantics.py"),
    "monet_jax/ir/places.py": ("tracing/passes/test_loops.py", "tracing/passes/test_branches.py"),
    "monet_jax/ir/arrays/materialised.py": ("ir/arrays/test_library_reductions.py",),
    "monet_jax/ir/arrays/kernels.py": ("analyzer/test_local_ops.py",),
    "monet_jax/ir/primitives.py": ("compiler/test_backend.py", "promises/test_jax_features.py"),
    "monet_jax/ir/memories.py": ("transformer/test_host.py", "step/updates/test_emission.py"),
    "monet_jax/ir/program/": ("transformer/test_transform.py", "operators/test_indices.py"),
    "monet_jax/ir/stage.py": ("transformer/test_transform.py",),
    # Compilers
    "monet_jax/compiler/child.py": ("compiler/test_compile.py",),
    "monet_jax/compiler/export.py": ("compiler/test_compile.py",),
    "monet_jax/compiler/options.py": ("compiler/test_compile.py",),
    "monet_jax/compiler/target_table.py": ("compiler/test_compile.py",),
    "monet_jax/compiler/targets.py": ("compiler/test_compile.py", "promises/test_sharding.py"),
    "monet_jax/compiler/worker.py": ("compiler/test_compile.py", "compiler/test_backend.py"),
    # Seconds
    "monet_jax/seconds/sources.py": ("seconds/test_compiled.py",),
    "monet_jax/seconds/attained.py": ("seconds/test_roofline.py",),
    "monet_jax/seconds/group.py": ("seconds/test_roofline.py",),
    "monet_jax/seconds/prices.py": ("seconds/test_roofline.py",),
    "monet_jax/seconds/rates.py": ("seconds/test_measured.py",),
    "monet_jax/seconds/running.py": ("seconds/test_measured.py",),
    # Operators
    "monet_jax/operators/codecs/": ("operators/codecs/test_codecs.py",),
    "monet_jax/operators/compression/": (
        "operators/compression/test_encoding.py",
        "operators/compression/test_chain_derivatives.py",
    ),
    "monet_jax/operators/context.py": ("operators/test_operators.py",),
    "monet_jax/operators/derivative.py": ("operators/test_operators.py",),
    "monet_jax/operators/elementwise/": (
        "operators/elementwise/test_results.py",
        "operators/compression/test_chain_derivatives.py",
    ),
    "monet_jax/operators/emission.py": (
        "operators/test_operators.py",
        "operators/compression/test_encoding.py",
    ),
    "monet_jax/operators/hooks.py": (
        "operators/test_operators.py",
        "operators/compression/test_encoding.py",
    ),
    "monet_jax/operators/masks.py": ("operators/test_operators.py",),
    "monet_jax/operators/ranges.py": ("operators/test_indices.py",),
    "monet_jax/operators/registry.py": ("operators/test_operators.py", "search/test_search.py"),
    "monet_jax/operators/representations.py": (
        "operators/test_operators.py",
        "operators/compression/test_encoding.py",
    ),
    "monet_jax/operators/tiling/": (
        "operators/tiling/test_attention.py",
        "operators/tiling/test_chunked_loss.py",
    ),
    # From a function to a staged program
    "monet_jax/tracing/closures.py": ("tracing/test_marked.py",),
    "monet_jax/tracing/conditionals.py": ("tracing/passes/test_branches.py",),
    "monet_jax/tracing/nesting.py": ("promises/test_api.py",),
    "monet_jax/tracing/passes/draft.py": ("tracing/test_pipeline.py",),
    "monet_jax/tracing/passes/rewrites.py": ("tracing/test_pipeline.py",),
    "monet_jax/tracing/passes/stage_rewrites.py": ("tracing/test_pipeline.py",),
    "monet_jax/tracing/signature.py": ("promises/test_static.py", "promises/test_api.py"),
    "monet_jax/tracing/staged.py": ("tracing/test_pipeline.py", "plans/test_mismatch.py"),
    "monet_jax/tracing/trace.py": ("promises/test_api.py", "plans/test_record.py"),
    "monet_jax/tracing/traced.py": ("tracing/test_pipeline.py", "plans/test_mismatch.py"),
    # From a staged program to a planning graph
    "monet_jax/analyzer/": (
        "analyzer/test_materialised.py",
        "compiler/test_backend.py",
        "transformer/test_transform.py",
    ),
    "monet_jax/analyzer/pins.py": ("plans/test_record.py", "search/test_search.py"),
    # From a staged program and its regions to a function
    "monet_jax/transformer/host_stacks.py": ("transformer/test_host.py",),
    "monet_jax/transformer/apply.py": ("plans/test_record.py", "promises/test_api.py"),
    "monet_jax/transformer/invariants.py": ("tracing/passes/test_loops.py",),
    "monet_jax/transformer/names.py": ("transformer/test_transform.py",),
    "monet_jax/transformer/parts.py": (
        "tracing/passes/test_loops.py",
        "tracing/passes/test_branches.py",
    ),
    "monet_jax/transformer/scan.py": ("tracing/passes/test_loops.py",),
    "monet_jax/transformer/scan_operands.py": ("tracing/passes/test_loops.py",),
    # Plans and what is shown of them
    "monet_jax/plans/multihost.py": ("plans/test_cache.py", "promises/test_sharding.py"),
    "monet_jax/plans/rows.py": ("plans/test_record.py", "report/test_text.py"),
    "monet_jax/plans/tables.py": ("report/test_text.py", "tools/test_check.py"),
    "monet_jax/report/charts.py": ("report/test_html.py",),
    "monet_jax/report/figures.py": ("report/test_html.py",),
    "monet_jax/report/as_policies.py": ("report/test_policies.py",),
    "monet_jax/report/notes.py": ("report/test_text.py", "report/test_html.py"),
    "monet_jax/report/peak.py": ("report/test_html.py",),
    "monet_jax/report/trade.py": ("report/test_html.py",),
    "monet_jax/report/values.py": ("report/test_text.py", "report/test_html.py"),
    "monet_jax/report/plots.py": ("tools/test_sweep.py",),
    "monet_jax/report/tables.py": ("report/test_text.py", "tools/test_sweep.py"),
    # The search
    "monet_jax/candidates/": ("search/test_search.py", "planning/test_plan_search.py"),
    "monet_jax/planning/error_limit.py": ("planning/test_gradient_error.py",),
    "monet_jax/planning/failures.py": ("tracing/test_marked.py", "promises/test_api.py"),
    "monet_jax/planning/mistakes.py": ("promises/test_api.py", "tracing/test_marked.py"),
    "monet_jax/planning/options.py": ("promises/test_api.py", "planning/test_reserved.py"),
    "monet_jax/planning/judge.py": ("planning/test_plan_search.py", "compiler/test_backend.py"),
    "monet_jax/planning/outcome.py": ("planning/test_plan_search.py", "promises/test_api.py"),
    "monet_jax/planning/pipeline.py": ("promises/test_api.py", "plans/test_cache.py"),
    "monet_jax/planning/step.py": ("planning/test_plan_search.py", "compiler/test_backend.py"),
    "monet_jax/search/bisection.py": ("search/test_search.py", "planning/test_plan_search.py"),
    "monet_jax/search/smallest.py": ("search/test_search.py", "planning/test_plan_search.py"),
    # Whole steps
    "monet_jax/step/call.py": ("step/test_jit.py", "step/test_planning.py"),
    "monet_jax/step/compiler.py": ("step/test_jit.py", "step/test_planning.py"),
    "monet_jax/step/context.py": ("step/test_marks.py",),
    "monet_jax/step/timeline/liveness.py": ("step/test_timeline.py",),
    "monet_jax/step/questions.py": ("step/test_planning.py",),
    "monet_jax/step/share.py": ("step/test_planning.py", "step/test_jit.py"),
    "monet_jax/step/step_plan.py": ("step/test_planning.py",),
    "monet_jax/step/timeline/step_timeline.py": ("step/test_timeline.py",),
    "monet_jax/step/updates/hint.py": ("step/updates/test_decide.py",),
    "monet_jax/step/updates/layout.py": ("step/updates/test_placement.py",),
    "monet_jax/step/updates/link.py": ("step/updates/test_decide.py",),
    "monet_jax/step/timeline/chart.py": ("step/test_timeline.py",),
    # Questions asked of plans
    "monet_jax/tools/sizes/accumulation.py": ("tools/test_steps.py",),
    "monet_jax/tools/sizes/accumulation_result.py": ("tools/test_steps.py",),
    "monet_jax/tools/arguments.py": ("tools/test_fit.py",),
    "monet_jax/tools/baselines.py": ("tools/test_sweep.py", "tools/test_compare.py"),
    "monet_jax/tools/diff.py": ("tools/test_check.py",),
    "monet_jax/tools/fit_result.py": ("tools/test_fit.py",),
    "monet_jax/tools/sizes/largest.py": ("tools/test_fit.py",),
    "monet_jax/tools/sizes/small.py": ("tools/sizes/test_probes.py",),
    "monet_jax/tools/sizes/sized.py": ("tools/test_fit.py", "tools/test_steps.py"),
    "monet_jax/tools/sweep_plot.py": ("tools/test_sweep.py",),
    "monet_jax/tools/sweep_points.py": ("tools/test_sweep.py",),
    "monet_jax/tools/sweep_result.py": ("tools/test_sweep.py",),
    "monet_jax/tools/sweep_step.py": ("tools/test_steps.py",),
    # Flax, the zoo, the benchmarks and the commands
    "monet_jax/flax/": ("flax/test_linen.py", "flax/test_nnx.py", "tracing/test_modules.py"),
    "monet_jax/flax/step.py": ("flax/test_nnx_step.py",),
    "monet_jax/zoo/": ("zoo/test_zoo.py", "flax/test_linen.py"),
    "monet_jax/bench/": ("cli/test_shell.py", "bench/test_bench_planners.py"),
    "monet_jax/bench/models/": ("bench/test_bench_models.py", "cli/test_shell.py"),
    "monet_jax/bench/planners/": ("bench/test_bench_planners.py",),
    "monet_jax/cli/commands.py": ("cli/test_shell.py",),
    "monet_jax/cli/demo.py": ("cli/test_shell.py",),
    "monet_jax/cli/errors.py": ("cli/test_shell.py",),
    "monet_jax/cli/maintenance.py": ("cli/test_shell.py",),
    "monet_jax/cli/words.py": ("cli/test_shell.py",),
    # Planners
    "planners/checks.py": ("planners/test_replay.py", "planners/regions/test_stages.py"),
    "planners/elements.py": ("planners/test_replay.py", "planners/regions/test_stages.py"),
    "planners/errors.py": ("planners/regions/test_stages.py", "planners/test_replay.py"),
    "planners/graph.py": ("planners/test_replay.py", "planners/regions/test_stages.py"),
    "planners/plan.py": ("planners/regions/test_stages.py", "planners/test_replay.py"),
    "planners/registry.py": ("bench/test_bench_planners.py",),
    "planners/region_checks.py": ("planners/test_replay.py",),
    "planners/runs.py": ("planners/test_replay.py",),
    "planners/transfers.py": ("planners/regions/test_host.py",),
    "planners/solver/child.py": ("planners/solver/test_highs.py",),
    "planners/solver/deadline.py": ("planners/schedules/test_gap.py",),
    "planners/solver/sparse.py": ("planners/solver/test_highs.py",),
    "planners/solver/worker.py": ("planners/solver/test_highs.py",),
    "planners/schedules/planner.py": ("planners/test_emission.py",),
    "planners/schedules/annealing.py": ("planners/schedules/test_sequence.py",),
    "planners/schedules/bound/": ("planners/schedules/test_lower_bound.py",),
    "planners/schedules/extremes.py": (
        "planners/schedules/test_frontier.py",
        "planners/published/test_classics.py",
    ),
    "planners/schedules/grids/": ("planners/schedules/test_gap.py",),
    "planners/schedules/moves.py": ("planners/schedules/test_sequence.py",),
    "planners/schedules/orders.py": ("planners/published/test_classics.py",),
    "planners/schedules/timeline.py": ("planners/schedules/test_sequence.py",),
    "planners/regions/": (
        "planners/regions/test_stages.py",
        "planners/published/test_synthetic.py",
    ),
    "planners/regions/iterations.py": ("tracing/passes/test_loops.py",),
    "planners/published/blocks.py": ("planners/published/test_rotor.py",),
    "planners/published/checkmate_rounding.py": ("planners/published/test_classics.py",),
    "planners/published/chen.py": ("planners/published/test_classics.py",),
    "planners/published/knapsack.py": ("planners/published/test_classics.py",),
    "planners/published/monet_program.py": ("planners/published/test_monet.py",),
    "planners/published/recorder.py": ("planners/published/test_synthetic.py",),
    "planners/published/rotor_costs.py": ("planners/published/test_rotor.py",),
    "planners/published/revolve.py": (
        "planners/published/test_classics.py",
        "planners/published/test_rotor.py",
    ),
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def each(paths: list[Path]):
    """Makes one test of a check of files, which names all that fail: a thousand take a minute."""

    def decorate(check: Callable[[Path], None]) -> Callable[[], None]:
        def test():
            findings = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    findings.append(f"{name_of(path)}: {error}")
            expect_none(findings)

        test.__doc__ = check.__doc__
        return test

    return decorate


def nodes(path: Path, *kinds: type[ast.AST]) -> list:
    return [n for n in nodes_of(path.read_text()) if isinstance(n, kinds)]


def imported(path: Path) -> set[str]:
    """Dotted names that a file imports, relative ones resolved; of `from m import n`, `m.n`."""
    here = path.relative_to(ROOT).with_suffix("").parts
    found = {alias.name for node in nodes(path, ast.Import) for alias in node.names}
    for node in nodes(path, ast.ImportFrom):
        package = here[: len(here) - node.level] if node.level else ()
        module = ".".join((*package, *filter(None, [node.module])))
        found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def imports_any(path: Path, *modules: str) -> set[str]:
    """Those of a file's imports that lie in some modules."""
    return {x for x in imported(path) if any(f"{x}.".startswith(f"{m}.") for m in modules)}


def blocking(names: set[str]) -> str:
    # Blocked rather than merely absent from `sys.modules`: CVXPY <= 1.9.3 itself imports JAX, if
    # it is there, to see whether one of its solvers is installed.
    return "import sys; " + "".join(f"sys.modules[{name!r}] = None; " for name in sorted(names))


# ------------------------------------------------------------------------------------- imports


def test_one_file_that_fails_is_named():
    @each([ROOT / "tests/promises/test_layers.py", *PLANNERS])
    def check(path):
        if imports_any(path, "monet_jax"):
            raise AssertionError

    with pytest.raises(AssertionError, match=r"tests/promises/test_layers\.py: ") as error:
        check()
    assert "planners/graph.py" not in str(error.value)


@each(PLANNERS)
def test_planners_never_import_upwards(path):
    assert not imports_any(path, *UPWARDS)


def test_planners_plan_without_jax():
    run_python(
        blocking(UPWARDS)
        + "import graphs, planners; g = graphs.chain(); least = planners.Stages().smallest(g); "
        "found = planners.Stages()(g, least.peak_bytes); "
        "assert planners.replay(g, found).peak_bytes <= least.peak_bytes"
    )


@each([path for path in EVERY if not name_of(path).startswith("monet_jax/ir/compat/")])
def test_only_compat_touches_what_is_not_public_in_jax(path):
    assert not imports_any(path, "jax.extend", "jax._src")


SOLVING = ("planners/solver/highs.py", "planners/solver/worker.py", "planners/solver/child.py")


@each([path for path in EVERY if name_of(path) not in SOLVING])
def test_only_highs_solves(path):
    calls = [n.func for n in nodes(path, ast.Call) if isinstance(n.func, ast.Attribute)]
    assert "solve" not in {call.attr for call in calls}
    assert "HIGHS" not in {n.attr for n in nodes(path, ast.Attribute)}
    assert not imports_any(path, "highspy", "planners.solver.worker")


def test_the_child_that_solves_starts_without_what_takes_long_to_import():
    run_python(
        blocking(UPWARDS | {"cvxpy", "scipy", "planners"})
        + f"import runpy; runpy.run_path({str(ROOT / SOLVING[1])!r})"
    )


def test_replay_imports_no_planner():
    allowed = {"errors", "graph", "plan", "region_checks", "runs", "transfers"}
    own = imports_any(ROOT / "planners/replay.py", "planners")
    assert {x.split(".")[1] for x in own} <= allowed


@each(MONET_JAX)
def test_monet_jax_has_no_optimization_in_it(path):
    assert not imports_any(path, "cvxpy", "highspy", "scipy")


@each([p for p in EVERY if not name_of(p).removeprefix("monet_jax/").startswith(NEEDING_EXTRAS)])
def test_only_files_that_say_so_need_an_extra(path):
    assert not imports_any(path, *OPTIONAL)


def test_the_package_comes_up_without_extras_and_without_cvxpy():
    """CVXPY takes seconds to import, and applying a stored plan does not need it."""
    run_python(blocking(OPTIONAL) + "import monet_jax, planners; assert 'cvxpy' not in sys.modules")


def test_without_flax_its_budgets_say_what_to_install():
    run_python(
        blocking({"flax"})
        + """
import monet_jax
try:
    monet_jax.flax.remat(lambda model: model, budget=0.5)()
except ImportError as error:
    assert 'pip install "flax' in str(error)
else:
    raise AssertionError
"""
    )


# -------------------------------------------------------------------------------- architecture

SOURCES = read_sources()
PLANNING_SOURCES = {path: text for path, text in SOURCES.items() if path.startswith("planners/")}
TESTS = {
    path.relative_to(ROOT / "tests").as_posix(): path.read_text()
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
}


def expect_none(findings: list[str]) -> None:
    assert not findings, "\n" + "\n".join(findings)


def test_files_import_only_what_stands_above_them():
    expect_none(wrong_directions(SOURCES, DIRECTIONS))
    expect_none(wrong_directions(PLANNING_SOURCES, DIRECTIONS_OF_PLANNERS))


def test_no_files_import_one_another():
    expect_none(import_circles(SOURCES))


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("monet_jax/ir/costs.py", "from ..tracing.trace import Traced"),
        ("monet_jax/ir/costs.py", "import monet_jax.tracing.trace"),
        ("monet_jax/ir/costs.py", "def late():\n    from ..tracing import trace"),
        ("monet_jax/ir/costs.py", "if TYPE_CHECKING:\n    from ..operators import Context"),
        ("monet_jax/ir/costs.py", "from ..zoo import build"),
        ("monet_jax/ir/costs.py", "import planners"),
        ("monet_jax/search/search.py", "from .. import Plan"),
        ("monet_jax/nonsense.py", ""),
        ("planners/graph.py", "from .runs import runs"),
        ("planners/regions/chain.py", "from .. import Stages"),
        ("planners/schedules/steps.py", "from ..regions.chain import x"),
    ],
)
def test_an_import_upwards_is_noticed(path, statement):
    planted = {**SOURCES, path: f"{SOURCES.get(path, '')}\n{statement}\n"}
    found = wrong_directions(planted, DIRECTIONS)
    if path.startswith("planners/"):
        planted = {x: text for x, text in planted.items() if x.startswith("planners/")}
        found += wrong_directions(planted, DIRECTIONS_OF_PLANNERS)
    assert [line.partition(":")[0].split()[0] for line in found] == [path]


def test_a_circle_is_noticed():
    planted = {
        "planners/__init__.py": "from .plan import Plan",
        "planners/plan.py": "from . import graph",
        "planners/graph.py": "def late():\n    from .runs import runs",
        "planners/runs.py": "import planners.plan",
        "planners/errors.py": "",
        "planners/registry.py": "from .plan import Plan",
    }
    circle = ["planners/graph.py", "planners/plan.py", "planners/runs.py"]
    assert import_circles(planted) == circle
    assert not import_circles(planted | {"planners/runs.py": "import planners.errors"})


def test_sources_have_no_retired_word_and_ask_no_question():
    expect_none([*retired_words(SOURCES), *questions(SOURCES)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tap = 1", {"tap"}),
        ("def read_taps(): pass", {"read_taps"}),
        ("class PairOfTaps: pass", {"PairOfTaps"}),
        ("f(settled=x.is_lodged)", {"settled", "is_lodged", "settl"}),
        ("x.nearly_fits", {"nearly_fits"}),
        ('"""Evened."""', {"Evened"}),
        ("# rivals, as it were", {"rival", "as it were"}),
        ("tape, mistap = staple, resettlement", set()),
        ("# nearly all that is tapped", set()),
    ],
)
def test_a_retired_word_is_noticed(text, words):
    found = retired_words({"planners/planted.py": text})
    assert {line.split(" ", 1)[1].strip("'") for line in found} == words


@pytest.mark.parametrize(
    ("docstring", "is_question"),
    [
        ("Is it?", True),
        ("Which of them: this one? That one.", True),
        ("It is. Is it?", False),
        ("So it is.", False),
    ],
)
def test_a_question_is_noticed(docstring, is_question):
    assert bool(questions({"planners/planted.py": f'"""{docstring}"""'})) == is_question


def test_files_classes_folders_and_functions_are_small():
    expect_none(misshapen(SOURCES))


def test_what_is_too_large_is_noticed():
    long = "class Long:\n" + "    x = 1\n" * 150
    many = {f"planners/many/{n}.py": "" for n in range(15)}
    found = misshapen(many | {"planners/long.py": long})
    assert found == ["planners/long.py: class Long: 151 lines", "planners/many: 15 files"]
    function = "def f():\n    'What it does.'\n" + "    x = 1\n" * 21
    assert shape_of({"planners/long.py": function}).bodies == (21,)
    assert len(misshapen({"planners/long.py": function * 14})) == 3  # the file, and both figures


def test_every_source_has_tests_that_are_found_from_its_name_or_from_the_table():
    expect_none(untested(SOURCES, TESTS, TESTED_BY))


def test_a_source_without_tests_and_a_wrong_entry_are_noticed():
    sources = {"monet_jax/ir/a.py": "", "monet_jax/_b.py": "", "planners/c/d.py": ""}
    tests = {"ir/test_a.py": "", "test_b.py": "", "planners/c/test_d.py": ""}
    assert not untested(sources, tests, {})
    assert len(untested(sources, {"ir/test_a.py": ""}, {})) == 2
    by_folder = dict.fromkeys(["monet_jax/", "planners/c/"], ("x.py",))
    assert not untested(sources, {"x.py": ""}, by_folder)
    assert len(untested(sources, tests, {"planners/c/d.py": ("ir/test_a.py",)})) == 1
    assert len(untested(sources, tests, {"planners/c/": ("ir/test_a.py",)})) == 1
    assert len(untested(sources, {"test_b.py": ""}, by_folder)) == 2  # which names no test file


# ---------------------------------------------------------------------------------- docstrings


def undocumented(path: Path) -> Iterator[str]:
    """Public functions, classes and methods of public classes that have no docstring."""
    tree = tree_of(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in (n for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")):
        members = node.body if isinstance(node, ast.ClassDef) else []
        for n in (node, *members):
            if isinstance(n, kinds) and not n.name.startswith("_") and not ast.get_docstring(n):
                yield n.name if n is node else f"{node.name}.{n.name}"


@each(EVERY)
def test_every_module_and_public_name_says_what_it_is(path):
    if path.read_text().strip():
        assert ast.get_docstring(tree_of(path.read_text())), "the module"
    assert not list(undocumented(path))


def test_public_names_are_exported_as_themselves():
    for module in (monet_jax, planners):
        for node in nodes(Path(str(module.__file__)), ast.ImportFrom):
            assert all(alias.asname == alias.name for alias in node.names)


def test_planners_that_are_imported_late_are_public_names_too():
    assert {"Checkmate", "Gap", "Monet", "Sequence"} <= set(dir(planners))
    assert all(hasattr(planners, name) for name in dir(planners))
    assert not hasattr(planners, "nonsense")


# ----------------------------------------------------------------------------------- the wheel


def test_the_version_is_said_once_more_and_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert monet_jax.__version__ == project["version"]


def test_the_release_check_finds_what_is_not_done(tmp_path):
    check = runpy.run_path(str(ROOT / ".ci/check_release.py"))
    names = ("pyproject.toml", "monet_jax/_version.py", "CITATION.cff", "CHANGELOG.md")
    texts = {name: (ROOT / name).read_text().replace("/OWNER/", "/somebody/") for name in names}
    changelog = texts["CHANGELOG.md"].replace(
        "## [Unreleased]", f"## [Unreleased]\n\n## [{monet_jax.__version__}] - 2026-11-26"
    )
    texts["CHANGELOG.md"] = changelog

    def found(**changes: str) -> list[str]:
        for name, text in (texts | changes).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return [*check["problems"](tmp_path)]

    assert found() == []
    for name in names[1:]:
        broken = texts[name].replace(monet_jax.__version__, "9.9.9")
        (line,) = found(**{name: broken})
        assert line.startswith(name)
    (line,) = found(**{"CHANGELOG.md": "## [Unreleased]\n\n- More.\n\n" + changelog})
    assert "under Unreleased" in line
    placeholder = texts["pyproject.toml"].replace("/somebody/", "/OWNER/")
    (line,) = found(**{"pyproject.toml": placeholder})
    assert "placeholder" in line


def test_hints_name_the_packages_of_the_extras():
    """They work where monet_jax itself is on no index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra, packages in REQUIREMENTS.items():
        assert [x for x in extras[extra] if not x.startswith("monet-jax[")] == [*packages]


def test_a_plugin_that_is_a_compiler_only_logs_no_traceback(caplog, monkeypatch):
    plugins.quieten_plugins()  # once more changes nothing
    logger = logging.getLogger("jax._src.xla_bridge")

    def logged(text: str, attached: bool) -> list[str]:
        monkeypatch.setattr(plugins, "is_gpu_attached", lambda: attached)
        caplog.clear()
        try:
            raise RuntimeError(text)
        except RuntimeError:
            logger.exception("Jax plugin configuration error: Exception when calling %s", "x")
        return [caplog.handler.format(record) for record in caplog.records]

    assert logged("Unable to load cuDNN. Is it installed?", attached=False) == []
    (line,) = logged("Unable to load cuDNN. Is it installed?", attached=True)
    assert "\n" not in line and 'pip install "jax[cuda13]"' in line
    (other,) = logged("The driver is too old.", attached=False)
    assert "Traceback" in other


def test_the_planners_are_ours():
    """`planners` is a common word: another distribution's must not stand before it."""
    assert Path(str(planners.__file__)).parent.parent == Path(str(monet_jax.__file__)).parent.parent


def test_the_wheel_holds_both_packages_and_nothing_else(tmp_path):
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    info = {name for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names if name not in info} == {"monet_jax", "planners"}
    sources = {name_of(path) for path in EVERY}
    typed = {"monet_jax/py.typed", "planners/py.typed"}
    templates = {name_of(path) for path in (ROOT / "monet_jax/report/templates").iterdir()}
    assert sources | typed | templates <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]
    assert any(name.endswith("licenses/LICENSE") for name in info)
