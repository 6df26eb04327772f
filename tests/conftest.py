"""Where do the tests run? On CPU, unless the environment says otherwise; with their own cache."""

import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Plans of the tests are kept apart from the user's."""
    os.environ["MONET_JAX_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
