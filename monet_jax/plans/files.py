"""Files that are written whole or not at all."""

import os
import uuid
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that no reader ever sees a part of it.

    Raises:
        OSError: it cannot be written; what stood there is untouched, and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
