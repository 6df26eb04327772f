"""Where monet_jax keeps its files, and files that are written whole or not at all."""

import os
import uuid
from pathlib import Path

import platformdirs

#: Set to anything but "" or "0", this environment variable turns every cache off.
DISABLE = "MONET_JAX_NO_CACHE"
#: Where plans and measured seconds are kept instead of the user's cache directory.
DIRECTORY = "MONET_JAX_CACHE_DIR"


def is_enabled() -> bool:
    """Whether the environment leaves caches on."""
    return os.environ.get(DISABLE, "") in ("", "0")


def directory() -> Path:
    """The folder of all caches."""
    return Path(os.environ.get(DIRECTORY) or platformdirs.user_cache_dir("monet_jax"))


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
    except OSError as error:
        temporary.unlink(missing_ok=True)
        # It names the temporary file, which says nothing to who asked for this one.
        raise type(error)(error.errno, error.strerror, str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
