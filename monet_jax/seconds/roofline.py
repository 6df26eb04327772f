"""The roofline model (Williams et al., CACM 2009), with the tiles of matrix units.

An op takes as long as its arithmetic at the rates that the device attains, as its memory traffic at
the bandwidth, or as what it sends to other devices at that of their link, whichever is longer: that
other ops may run meanwhile is left out. A matrix unit works on whole tiles: a product whose sides
are no multiples of the tile takes as long as the padded one (the staircase of Radu et al., 2019).
"""

import dataclasses
import math
from collections.abc import Mapping

from ..ir.costs import Product, Work


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """What a matrix unit works on at once; sides are padded to multiples of it."""

    rows: int = 1
    columns: int = 1
    depth: int = 1

    def padding(self, product: Product) -> float:
        """How many times the work of a product that of the padded one is.

        Either operand may be the one that stays in the unit: the better way counts.
        """
        sides = ((product.rows, product.columns), (product.columns, product.rows))
        across = min(_padding(a, self.rows) * _padding(b, self.columns) for a, b in sides)
        return across * _padding(product.depth, self.depth)


def _padding(side: int, tile: int) -> float:
    return -(-side // tile) * tile / side if side else 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Roofline:
    """The rates that a device attains.

    Attributes:
        matmul_flops_per_second: of products by the dtype of their operands; "float32" must be
            there, and counts for all others.
        vector_flops_per_second: of elementwise work, and of products outside the matrix units.
        bandwidth_bytes_per_second: of the device's main memory.
        tile: of the matrix units.
        launch_seconds: the least that any op takes: what starting it takes the host.
        compare_seconds: of an element of a window, in the gradient of max pooling, beyond what its
            instructions take.
        relay_seconds: of a byte that is copied into another layout, element by element.
        link_bytes_per_second: that the device sends to others of its mesh.
    """

    matmul_flops_per_second: Mapping[str, float]
    vector_flops_per_second: float
    bandwidth_bytes_per_second: float
    tile: Tile = Tile()
    launch_seconds: float = 0.0
    compare_seconds: float = 0.0
    relay_seconds: float = 0.0
    link_bytes_per_second: float = math.inf

    def seconds(self, work: Work, moved_bytes: int) -> float:
        """Seconds of an op with this work that reads and writes `moved_bytes`."""
        products = sum(map(self.product_seconds, work.products))
        arithmetic = products + work.instructions / self.vector_flops_per_second
        arithmetic += work.compared * self.compare_seconds
        in_memory = moved_bytes / self.bandwidth_bytes_per_second
        in_place = max(arithmetic, in_memory, work.sent_bytes / self.link_bytes_per_second)
        return in_place + self.relaying_seconds(work)

    def relaying_seconds(self, work: Work) -> float:
        """Seconds of the copies into other layouts, which are ops of their own."""
        return work.relaid_bytes * self.relay_seconds

    def product_seconds(self, product: Product) -> float:
        """Seconds of a product: in the matrix units, or outside where padding costs more."""
        rates = self.matmul_flops_per_second
        padded = self.tile.padding(product) * product.flops
        inside = padded / rates.get(product.dtype, rates["float32"])
        return min(inside, product.flops / self.vector_flops_per_second)
