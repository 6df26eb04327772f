"""Replaces the traceback that JAX logs for a GPU plugin without its libraries by one line.

The extra `aot-gpu` brings XLA:GPU's compiler, a plugin of JAX, and none of the libraries that
running on a GPU takes. JAX then logs thirty lines when its backends come up, in every process.
"""

import glob
import logging

#: The logger of JAX's backends, and how it begins what it logs of a plugin.
_LOGGER, _PROBLEM = "jax._src.xla_bridge", "Jax plugin configuration error"
_GPU_IS_UNUSED = (
    "A GPU is attached, but JAX computes on the CPU: only XLA:GPU's compiler is installed, to plan "
    'for GPUs that are not attached. To compute on it, run: pip install "jax[cuda13]"'
)


class _CompilerOnly(logging.Filter):
    """Drops the record of a plugin that lacks its libraries; one line where a GPU is attached."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not str(record.msg).startswith(_PROBLEM) or "cuDNN" not in str(error):
            return True
        record.msg, record.args, record.exc_info = _GPU_IS_UNUSED, (), None
        return is_gpu_attached()


def is_gpu_attached() -> bool:
    """Whether the driver of an NVIDIA GPU shows one."""
    return bool(glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dxg"))


def quieten_plugins() -> None:
    """Say nothing, or one line, of a GPU plugin that is installed for its compiler alone."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(known, _CompilerOnly) for known in logger.filters):
        logger.addFilter(_CompilerOnly())


quieten_plugins()  # before anything brings up the backends
