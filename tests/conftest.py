"""Where do the tests run? On CPU, unless the environment says otherwise."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
