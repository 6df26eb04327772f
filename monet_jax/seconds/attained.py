"""The shares of published peaks that programs attain, with the measurement that each is from."""

import dataclasses
from collections.abc import Mapping

from ..compiler.targets import Target
from .prices import ByRoofline, Prices
from .roofline import Roofline, Tile


@dataclasses.dataclass(frozen=True, slots=True)
class Attained:
    """What a device attains of its peaks.

    Attributes:
        products: share of the peak of matrix products by the dtype of their operands.
        tile: of the matrix units.
        measured: where the shares come from.
        launch_seconds: the least that an op takes.
        compare_seconds, relay_seconds: as in `Roofline`.
    """

    products: Mapping[str, float]
    tile: Tile
    measured: str
    launch_seconds: float = 0.0
    compare_seconds: float = 0.0
    relay_seconds: float = 0.0


#: Elementwise work and memory traffic are charged at their peaks: a sum of arrays of 1 GiB takes
#: 0.75 ms more on an H100 than one of 256 MiB, which is 3.24 of 3.35 TB/s (rates-h100.json).
_ATTAINED = {
    "cuda": Attained(
        {"float32": 0.695, "bfloat16": 0.661, "float16": 0.661},
        # The smallest tile of cuBLAS, and 16 bytes of bfloat16, to which operands are aligned
        # (NVIDIA, Matrix Multiplication Background, sections 2.2 and 3.1).
        Tile(64, 64, 8),
        "by the clock of an H100, JAX 0.11.2 (docs/measurements/rates-h100.json): 8192 x 8192 x "
        "8192, bfloat16 in 1.681 ms, float32 at default precision in 3.196 ms; other cards are "
        "taken to attain as much",
        # Steps of small ops on an H100 (device-h100.json): a neural ODE's 9,743 in 39.3 ms; the
        # 73,768 of an LSTM, not all of them small, in 440.
        4e-6,
    ),
    "tpu": Attained(
        {"float32": 0.96, "bfloat16": 0.96, "float16": 0.96},
        Tile(8, 128, 128),  # sublanes by lanes of registers, and the matrix unit of 128 x 128
        "XLA:TPU's `estimated_cycles`, JAX 0.12: the 11 products of a four-layer MLP take 2.00 ms "
        "on a v5e at 1.5 GHz, 1.92 ms at its peak",
    ),
    "cpu": Attained(
        {"float32": 1.0, "bfloat16": 1.0, "float16": 1.0},
        Tile(),
        "on two cores of an AMD EPYC, JAX 0.12.0, as `compiler.target_table` says",
        # XLA:CPU looks through windows in a scalar loop (docs/measurements/windows-cpu.json).
        compare_seconds=6.5e-9,
        # Gradients of weights by batch and sequence (docs/measurements/copies-cpu.json).
        relay_seconds=1.0e-9,
    ),
}


def roofline_of(target: Target) -> Roofline:
    """The rates that a target attains."""
    attained = _ATTAINED.get(target.platform, _ATTAINED["cuda"])
    peaks = {
        name: target.matmul_flops_per_second(4 if name == "float32" else 2)
        for name in attained.products
    }
    return Roofline(
        {name: attained.products[name] * peak for name, peak in peaks.items()},
        target.flops_per_second,
        target.bandwidth_bytes_per_second,
        attained.tile,
        attained.launch_seconds,
        attained.compare_seconds,
        attained.relay_seconds,
        target.link_bytes_per_second,
    )


def modelled(target: Target) -> Prices:
    """Prices by the roofline of a target alone: the same ones on every machine."""
    return ByRoofline(roofline_of(target))


def measurement_of(target: Target) -> str:
    """Where the shares of a target come from, in words."""
    return _ATTAINED.get(target.platform, _ATTAINED["cuda"]).measured
