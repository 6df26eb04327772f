"""Tests run on CPU, unless the environment says otherwise, with a plan cache of their own."""

import gc
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# A fault of ours is an error here, and not a warning and the user's function as it is.
os.environ["MONET_JAX_STRICT"] = "1"
# Most programs of the tests run once: LLVM would optimize for longer than they run. It comes after
# all that XLA does to a program, buffers included.
os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}"
# As `monet_jax.tracing.garbage` does while planning: at the default, 6 % of the tests' time.
gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Plans of the tests are kept apart from the user's."""
    os.environ["MONET_JAX_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
