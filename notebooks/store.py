"""Runs the notebooks and stores their outputs without paths, times and other traces of a machine.

    python notebooks/store.py             # all of them, or those that are named
    python notebooks/store.py --address   # only the repository's address, from pyproject.toml

A reader who runs nothing sees what they show; a change of the outputs is a change of what is said.
"""

import re
import resource
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbclient
import nbformat

HERE = Path(__file__).parent
#: What differs between two runs of the same notebook, and what stands for it.
TRACES = (
    (re.compile(r"/[\w/.+-]*/ipykernel_\d+/\d+\.py:\d+"), "this notebook"),
    (re.compile(r"/[\w/.+-]*/(?=(?:monet_jax|site-packages)/)"), ""),
    (re.compile(r"lanned in [\d.,]+ s\b"), "lanned in some seconds"),
)


def repository() -> str:
    """The address of the repository, as `pyproject.toml` has it."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    return project["urls"]["Repository"]


def without_traces(text: str) -> str:
    """An output as every machine shows it."""
    for pattern, said in TRACES:
        text = pattern.sub(said, text)
    return text


def cleaned(output: Any) -> Any | None:
    """An output without traces; None where nothing is left of it."""
    if output.output_type == "stream":
        output.text = without_traces(output.text)
        return output if output.text.strip() else None
    data = {k: without_traces(x) if k.startswith("text/") else x for k, x in output.data.items()}
    if set(data) == {"text/plain"} and not data["text/plain"].strip("'\" \n"):
        return None  # the line of progress, which is gone
    if "text/html" in data:
        data.pop("text/plain", None)  # no reader of a notebook sees it
    output.data, output.metadata = data, {}
    if "execution_count" in output:
        output.execution_count = None
    return output


def with_address(source: str, address: str) -> str:
    """A cell with the repository's address: where it is installed from, and Colab's link."""
    owner_and_name = address.removeprefix("https://github.com/")
    source = re.sub(r"https://github\.com/[\w.-]+/monet_jax", address, source)
    return re.sub(r"(?<=google\.com/github/)[\w.-]+/[\w.-]+", owner_and_name, source)


def store(path: Path, runs: bool = True) -> str:
    """Run a notebook and store it; a line about it."""
    notebook = nbformat.read(path, as_version=4)
    started, used = time.perf_counter(), _cpu_seconds()
    if runs:
        with tempfile.TemporaryDirectory() as folder:
            where = {"metadata": {"path": folder}}
            nbclient.NotebookClient(notebook, timeout=1200, resources=where).execute()
    for cell in notebook.cells:
        cell.source = with_address(cell.source, repository())
        if cell.cell_type == "code":
            cell.execution_count, cell.metadata = None, {}
            cell.outputs = [x for x in map(cleaned, cell.outputs) if x is not None]
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)
    seconds, used = time.perf_counter() - started, _cpu_seconds() - used
    return f"{path.name}: {seconds:.0f} s, {used:.0f} s of processor time"


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(words: Sequence[str]) -> None:
    """Store the notebooks that are named, or all."""
    names = [word for word in words if not word.startswith("--")]
    for path in sorted(HERE.glob("*.ipynb")):
        if not names or path.stem in names:
            print(store(path, "--address" not in words))


if __name__ == "__main__":
    main(sys.argv[1:])
