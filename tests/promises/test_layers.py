"""The dependency rules, the docstrings and the wheel: checked rather than promised."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT
from processes import run_python

import monet_jax
import planners

PLANNERS = sorted((ROOT / "planners").rglob("*.py"))
MONET_JAX = sorted((ROOT / "monet_jax").rglob("*.py"))
EVERY = PLANNERS + MONET_JAX
UPWARDS = {"jax", "jaxlib", "flax", "monet_jax"}
# What an extra brings. `import monet_jax` and planning do without; these files are the exceptions.
OPTIONAL = {"flax", "optax", "sklearn", "matplotlib"}
# `search/reserved.py` needs Optax where it is given an optimizer of Optax.
NEEDING_EXTRAS = (
    "cli/demo.py",
    "search/reserved.py",
    "zoo/",
    "flax/",
    "report/plots.py",
    "tools/sweep_plot.py",
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def each(paths: list[Path]):
    return pytest.mark.parametrize("path", paths, ids=name_of)


def nodes(path: Path, *kinds: type[ast.AST]) -> list:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, kinds)]


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
    allowed = {"errors", "graph", "plan", "runs"}
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
    assert "monet-jax[flax]" in str(error)
else:
    raise AssertionError
"""
    )


# ---------------------------------------------------------------------------------- docstrings


def undocumented(path: Path) -> Iterator[str]:
    """Public functions, classes and methods of public classes that have no docstring."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in (n for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")):
        members = node.body if isinstance(node, ast.ClassDef) else []
        for n in (node, *members):
            if isinstance(n, kinds) and not n.name.startswith("_") and not ast.get_docstring(n):
                yield n.name if n is node else f"{node.name}.{n.name}"


@each(EVERY)
def test_every_module_and_public_name_says_what_it_is(path):
    if path.read_text().strip():
        assert ast.get_docstring(ast.parse(path.read_text())), "the module"
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
