"""The shell: `demo`, `plan`, `diff`, `check`, `fit`, `sweep` and `bench`."""

from .shell import main as main
