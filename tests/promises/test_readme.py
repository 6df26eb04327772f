"""The documents: their Python runs as printed, and what they refer to exists."""

import importlib
import json
import re
import runpy
import shlex
from pathlib import Path
from types import FunctionType

import pytest
from paths import ROOT
from thinning import thinned
from typer.main import get_command

import monet_jax.cli.shell

README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS += PAGES
MEASUREMENTS = sorted((ROOT / "docs/measurements").glob("*.py"))


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PROGRAMS = [p for p in [ROOT / "README.md", *PAGES] if blocks(p, "python")]


@pytest.mark.parametrize(
    "path",
    thinned(
        [pytest.param(path, id=named(path)) for path in PROGRAMS],
        "README.md",
        "docs/how/seconds.md",
        "docs/measurements/README.md",
    ),
)
def test_the_python_of_a_document_runs_in_one_go(path, tmp_path, monkeypatch):
    pytest.importorskip("flax")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    source = "\n".join(blocks(path, "python"))
    exec(compile(source, str(path), "exec"), {"__name__": "document"})


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_files_that_a_document_names_exist(path):
    text = path.read_text()
    found = re.findall(r"\b(?:tests|docs|monet_jax|planners|notebooks)/[\w./-]*\w", text)
    found += [link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    missing = [x for x in found if not any((base / x).exists() for base in (ROOT, path.parent))]
    assert not missing


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_commands_that_a_document_prints_exist(path):
    commands = get_command(monet_jax.cli.shell.app).commands
    for line in "".join(blocks(path, "sh")).splitlines():
        for words in re.split(r"&&|\|\|?|;", line.split(" #")[0]):
            words = shlex.split(words)
            if words and words[0].endswith("monet-jax"):
                command = commands[words[1]]
                options = {option for param in command.params for option in param.opts}
                assert {w.split("=")[0] for w in words if w.startswith("--")} <= options, line


@pytest.mark.parametrize("path", MEASUREMENTS, ids=named)
def test_what_a_measurement_imports_exists(path, monkeypatch):
    pytest.importorskip("flax")
    monkeypatch.syspath_prepend(str(path.parent))  # as it is where a script is run
    runpy.run_path(str(path), run_name="imported")


def test_the_figures_on_the_first_screen_are_measured():
    """After a new measurement: `python docs/measurements/curves.py`, and README.md."""
    rows = json.loads((ROOT / "docs/measurements/resnet50-h100.json").read_text())["rows"]
    usual = "blocks: nothing"
    (theirs,) = [row for row in rows if row["program"] == usual]
    (ours,) = [row for row in rows if row["baseline"] == usual]
    assert ours["total_bytes"] <= theirs["total_bytes"]
    more = [f"{100 * (row['flops_ratio'] - 1):.1f} %" for row in (ours, theirs)]
    (said,) = re.findall(r"takes ([\d.]+ %) more FLOPs than\s+plain JAX, not ([\d.]+ %)", README)
    assert list(said) == more


@pytest.mark.parametrize(
    ("package", "page"),
    [
        ("monet_jax", "planning"),
        ("monet_jax.flax", "flax"),
        ("monet_jax.operators.codecs", "operators"),
        ("planners", "planners"),
    ],
)
def test_the_reference_has_all_public_names(package, page):
    text = (ROOT / "docs/api" / f"{page}.md").read_text()
    shown = set(re.findall(rf"^::: {package}\.(\w+)$", text, re.MULTILINE))
    module = importlib.import_module(package)
    public = {
        name
        for name in dir(module)
        if not name.startswith("_") and isinstance(getattr(module, name), type | FunctionType)
    }
    assert shown == public


def test_ci_runs_the_test_command_of_the_readme():
    (line,) = [x for x in blocks(ROOT / "README.md", "sh") if "pytest" in x]
    command = line.split("&&")[-1].strip()
    assert command.splitlines()[0] in (ROOT / ".ci/run").read_text()


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150
