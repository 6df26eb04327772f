"""The notebooks run from top to bottom and show what they say."""

import re
import runpy
from pathlib import Path

import pytest
from paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

nbformat = pytest.importorskip("nbformat")


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code_of(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture
def run(tmp_path):
    """Runs a notebook in an empty directory, and returns what its cells printed and showed."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")

    def run(name: str) -> tuple[str, set[str]]:
        notebook = read(ROOT / "notebooks" / f"{name}.ipynb")
        where = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=1200, resources=where).execute()
        outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
        assert not [o.text for o in outputs if o.get("name") == "stderr"]  # no warnings
        text = "".join(o.text for o in outputs if o.output_type == "stream")
        return text, {kind for o in outputs for kind in o.get("data", {})}

    return run


def test_there_are_notebooks_and_the_readme_names_them():
    named = set(re.findall(r"notebooks/(\w+\.ipynb)", (ROOT / "README.md").read_text()))
    assert named == {path.name for path in NOTEBOOKS} != set()


#: What would differ on another machine: paths, times, addresses of objects, warnings, the progress.
TRACES = r"/tmp/|/home/|site-packages|ipykernel|lanned in [\d.]+ s| at 0x|Warning|monet_jax: .*s\)"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_clean_and_small(path):
    notebook = read(path)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.execution_count for cell in cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert {"image/png"} <= {kind for x in outputs for kind in x.get("data", {})} or (
        {"text/html"} <= {kind for x in outputs for kind in x.get("data", {})}
    )
    shown = [x.get("text", "") or x.get("data", {}).get("text/html", "") for x in outputs]
    assert not re.findall(TRACES, "\n".join(shown))
    assert path.stat().st_size < 500_000  # as the hooks allow
    code = code_of(notebook)
    assert "%pip install" in code[0] and "%pip" not in "\n".join(code[1:])
    assert "\n".join(code).count("FULL = False") == 1
    assert notebook.cells[0].cell_type == "markdown"


def test_addresses_in_notebooks_are_those_of_the_project():
    """They come from one place: `python notebooks/store.py --address` copies them."""
    store = runpy.run_path(str(ROOT / "notebooks/store.py"))
    for path in NOTEBOOKS:
        for cell in read(path).cells:
            assert cell.source == store["with_address"](cell.source, store["repository"]())
        text = read(path).cells[0].source
        assert f"/blob/main/notebooks/{path.name})" in text and "github/OWNER/" in text
    moved = store["with_address"](text, "https://github.com/someone/monet_jax")
    assert moved.replace("github/someone/", "github/OWNER/") == text != moved


def test_traces_of_a_machine_are_taken_out_of_outputs():
    store = runpy.run_path(str(ROOT / "notebooks/store.py"))
    text = "Planned in 12.3 s at /tmp/x-1/ipykernel_27/123.py:9 and /a/b/monet_jax/zoo/gpt2.py:3"
    assert store["without_traces"](text) == (
        "Planned in some seconds at this notebook and monet_jax/zoo/gpt2.py:3"
    )


@pytest.mark.slow
def test_the_quickstart_trains_within_its_budget(run):
    text, shown = run("quickstart")
    taken, budget = map(float, re.findall(r"([\d.]+) MiB of ([\d.]+) MiB", text)[-1])
    assert taken <= budget
    assert "No plan fits" in text and {"text/html", "image/png"} <= shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("what_is_saved", ["more modelled seconds", "recomputed, then "]),
        (
            "bytes_against_seconds",
            ["each block: nothing", "jax.checkpoint: dots", "bytes planned, "],
        ),
        ("compressed_residuals", ["exact: ", "digits read right: plain "]),
    ],
)
def test_the_others_show_what_they_say(run, name, words):
    text, shown = run(name)
    assert all(word in text for word in words), text
    assert name == "compressed_residuals" or "image/png" in shown
