"""Where this checkout and the modules that tests share lie."""

from pathlib import Path

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parent.parent
