"""How do the scripts beside this file keep what they measured?"""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def keep(path: Path, command: str, rows: Sequence[dict[str, Any]], **context: Any) -> None:
    """Writes rows to a file, a line each, with what they were measured by, when and of what."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    known = {
        "command": f"python docs/measurements/{command}",
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    path.write_text(
        f'{{\n  "context": {json.dumps(known | context)},\n  "rows": [\n{lines}\n  ]\n}}\n'
    )


def kept_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that `keep` wrote; none where there is no file yet."""
    return json.loads(path.read_text())["rows"] if path.exists() else []
