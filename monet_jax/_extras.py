"""The packages that each extra brings, and errors that say how to install them.

The hints name the packages themselves, so that they work wherever monet_jax was installed from.
"""

import importlib
from typing import Any

#: Extra -> what it installs, as `pyproject.toml` has it (a test compares them).
REQUIREMENTS = {
    "flax": ("flax>=0.12",),
    "plot": ("matplotlib>=3.8",),
    "examples": ("flax>=0.12", "optax>=0.2.5", "scikit-learn>=1.5"),
    "aot-gpu": ("jax[cuda13-local]>=0.11.2", "nvidia-cuda-nvcc>=13", "nvidia-nvvm>=13"),
    "aot-tpu": ("jax[tpu]>=0.11.2",),
    "aot-cudnn": ("nvidia-cudnn-cu13>=9.8",),
}


def install_command(extra: str) -> str:
    """The command that installs what an extra brings."""
    return "pip install " + " ".join(f'"{package}"' for package in REQUIREMENTS[extra])


def needing_extra(module: str, extra: str) -> Any:
    """A module of this package that needs packages which are not always installed.

    Raises:
        ModuleNotFoundError: one of them is not; the message says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("monet_jax"):
            raise
        raise ModuleNotFoundError(
            f"`{error.name}` is not installed, which the extra `{extra}` brings; "
            f"run: {install_command(extra)}",
            name=error.name,
        ) from error
