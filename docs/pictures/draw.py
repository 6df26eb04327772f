"""Draws the picture of the tutorial from its code: `python docs/pictures/draw.py`."""

import re
from pathlib import Path
from typing import Any

from monet_jax.report import plots

HERE = Path(__file__).parent


def main() -> None:
    """Run the tutorial up to its plan, and draw that."""
    text = (HERE.parent / "tutorial.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks[: 1 + next(n for n, x in enumerate(blocks) if "plan =" in x)]:
        exec(block, names)
    plots.save(names["plan"].plot(), HERE / "tutorial.svg")


if __name__ == "__main__":
    main()
