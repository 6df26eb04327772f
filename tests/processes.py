"""How does a test run code in a fresh Python process?"""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def run_python(code: str, *options: str, **environment: str) -> str:
    """What a new process prints; it finds this checkout and the tests' own modules."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
