"""Checks that a release can be made: `python .ci/check_release.py`, before it is tagged.

The versions agree, the changelog has the version and nothing unreleased, and the address of the
repository is set. Then the wheel and the sdist are built, and each is installed in a fresh
environment of every Python that is named (`--python python3.12 --python python3.13`) and of which
there is one, where it plans a function. All that is wrong is listed; the exit code is 1 then.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Plans and runs a function, from another directory than the checkout.
SMOKE = """
import jax, jax.numpy as jnp, monet_jax
def loss(params, x):
    for w in params:
        x = x + jnp.sin(jnp.sin(x @ w) @ w)
    return jnp.mean(x**2)
params, x = [jnp.eye(64) / 8] * 4, jnp.ones((1024, 64))
lean = monet_jax.remat(loss, budget="60%", cache=False)
plan = monet_jax.plan(lean, params, x)
assert plan.compiled_bytes <= plan.budget_bytes, plan
assert jnp.isfinite(jax.jit(jax.value_and_grad(lean))(params, x)[0])
plan.to_html("plan.html")
"""


def problems(root: Path) -> Iterator[str]:
    """What is wrong with the files of a checkout, in words."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version = project["version"]
    said = {
        "monet_jax/_version.py": rf'__version__ = "{re.escape(version)}"',
        "CITATION.cff": rf"^version: {re.escape(version)}$",
        "CHANGELOG.md": rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$",
    }
    for name, pattern in said.items():
        if not re.search(pattern, (root / name).read_text(), re.MULTILINE):
            yield f"{name} does not have the version {version} of pyproject.toml"
    unreleased = re.search(
        r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)",
        (root / "CHANGELOG.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    if unreleased and unreleased[1].strip():
        yield "CHANGELOG.md has changes under Unreleased: give them the version and a date"
    if "/OWNER/" in project["urls"]["Repository"]:
        yield (
            "`urls.Repository` of pyproject.toml is a placeholder: set it, then run "
            "`python notebooks/store.py --address`"
        )
    if "/OWNER/" in (root / "CITATION.cff").read_text():
        yield "`repository-code` of CITATION.cff is a placeholder: set it"


def failures(pythons: list[str], folder: Path) -> Iterator[str]:
    """What fails of the built files, in words."""
    built = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    subprocess.run(built, cwd=ROOT, check=True)
    for python in pythons:
        if not _runs(python):
            print(f"-- {python} is not here: not checked")
            continue
        for n, file in enumerate(sorted((folder / "dist").iterdir())):
            print(f"-- {file.name} under {python}", flush=True)
            place = folder / f"{python.replace('/', '-')}-{n}"
            for command in (
                [python, "-m", "venv", str(place)],
                [str(place / "bin/pip"), "install", "--quiet", str(file)],
                [str(place / "bin/python"), "-c", SMOKE],
                [str(place / "bin/monet-jax"), "env"],
            ):
                done = subprocess.run(command, cwd=folder, env=_environment())
                if done.returncode:
                    yield f"{file.name} under {python}: `{' '.join(command[:3])}` failed"
                    break


def _runs(python: str) -> bool:
    try:
        return subprocess.run([python, "--version"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _environment() -> dict[str, str]:
    kept = {name: x for name, x in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"JAX_PLATFORMS": "cpu", "MONET_JAX_STRICT": "1"}


def main() -> int:
    """Check, and list what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", help="of an environment; repeatable")
    parser.add_argument("--files-only", action="store_true", help="build and install nothing")
    given = parser.parse_args()
    found = [*problems(ROOT)]
    if not given.files_only:
        with tempfile.TemporaryDirectory() as folder:
            found += failures(given.python or ["python3.12", "python3.13"], Path(folder))
    print("\n".join(f"wrong: {x}" for x in found) or "a release can be made")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
