"""The arithmetic of an equation: its matrix products, and the instructions of everything else.

What a target takes for it in seconds is another question: `monet_jax.seconds` answers that.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from . import compat
from .collectives import sent_bytes
from .primitives import Kind, kind_of, traits_of
from .program import Equation, aval_nbytes

#: Trips charged to a loop whose length is not known before it runs.
UNKNOWN_TRIPS = 1
#: Cotangents of fewer bytes stay in a core's cache, where copying a byte takes a third of the time.
CACHED_BYTES = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of one shape, or a convolution as one: rows x depth by depth x columns.

    Attributes:
        flops: of all of them, two for each multiply-add.
        dtype: of the operands, which decides the speed.
        rows, columns, depth: of one of them.
    """

    flops: int
    dtype: str
    rows: int = 1
    columns: int = 1
    depth: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of one or several equations.

    Attributes:
        products: matrix products and convolutions.
        instructions: of everything else, one for each simple elementwise result.
        compared: elements of windows that the gradient of max pooling looks for the largest in.
        relaid_bytes: of cotangents that are summed over several axes at once, for the gradient of
            weights: XLA:CPU copies them into another layout (see `operators/matrices`). A third of
            them where they stay in a cache.
        sent_bytes: that each device sends to others.
    """

    products: tuple[Product, ...] = ()
    instructions: int = 0
    compared: int = 0
    relaid_bytes: int = 0
    sent_bytes: int = 0

    @property
    def flops(self) -> int:
        """Of products and convolutions."""
        return sum(product.flops for product in self.products)

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.products + other.products,
            self.instructions + other.instructions,
            self.compared + other.compared,
            self.relaid_bytes + other.relaid_bytes,
            self.sent_bytes + other.sent_bytes,
        )

    def times(self, trips: int) -> "Work":
        """The work of `trips` repetitions."""
        return Work(
            tuple(dataclasses.replace(x, flops=x.flops * trips) for x in self.products),
            self.instructions * trips,
            self.compared * trips,
            self.relaid_bytes * trips,
            self.sent_bytes * trips,
        )

    def with_flops(self, flops: int) -> "Work":
        """The same with other products, whose shapes are those of the largest one."""
        largest = max(self.products, key=lambda x: x.flops, default=Product(0, "float32"))
        products = (dataclasses.replace(largest, flops=flops),)
        return dataclasses.replace(self, products=products)


def work_of(equation: Equation) -> Work:
    """The arithmetic of one equation, loops times their trips. Never free unless a view."""
    return _eqn_work(equation.eqn)


def flops_of(equations: Iterable[Equation]) -> int:
    """FLOPs of all products and convolutions, loops times their trips."""
    return sum(work_of(equation).flops for equation in equations)


def _eqn_work(eqn: Any) -> Work:
    name = eqn.primitive.name
    if name == "dot_general":
        return Work((_dot(eqn),), relaid_bytes=_relaid_bytes(eqn))
    if name == "conv_general_dilated":
        return Work((_convolution(eqn),))
    inner = [_jaxpr_work(jaxpr) for jaxpr in compat.subjaxprs(eqn)]
    if not inner:
        return _elementwise_work(eqn)
    if name == "cond":
        return max(inner, key=lambda work: (work.flops, work.instructions))
    total = sum(inner, Work())
    return total.times(_trips(eqn))


def _jaxpr_work(jaxpr: Any) -> Work:
    return sum((_eqn_work(eqn) for eqn in jaxpr.jaxpr.eqns), Work())


def _trips(eqn: Any) -> int:
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    return UNKNOWN_TRIPS


def _elementwise_work(eqn: Any) -> Work:
    if kind_of(Equation(eqn, (), (), None)) is Kind.VIEW:
        return Work()
    sizes = [
        math.prod(v.aval.shape) for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "shape")
    ]
    if "window_dimensions" in eqn.params:  # every window is looked at whole
        sizes.append(min(sizes) * math.prod(eqn.params["window_dimensions"]))
    traits = traits_of(eqn.primitive.name)
    compared = sizes[-1] if traits.compares_windows else 0
    instructions = max(sizes, default=0) * traits.instructions
    return Work((), instructions, compared, sent_bytes=sent_bytes(eqn))


def _dot(eqn: Any) -> Product:
    (contracted, _), (batched, _) = eqn.params["dimension_numbers"]
    lhs, rhs = eqn.invars[0].aval, eqn.invars[1].aval.shape
    depth = math.prod(lhs.shape[i] for i in contracted)
    batch = math.prod(lhs.shape[i] for i in batched)
    flops = 2 * math.prod(eqn.outvars[0].aval.shape) * depth
    rows, columns = (_over(math.prod(shape), depth * batch) for shape in (lhs.shape, rhs))
    return Product(flops, str(lhs.dtype), rows, columns, depth)


def _relaid_bytes(eqn: Any) -> int:
    """The bytes of the left operand, where JAX sums both over several axes of a batch."""
    summed, batched = eqn.params["dimension_numbers"]
    leading = list(range(len(summed[0])))
    is_relaid = len(leading) > 1 and not any(batched) and all([*x] == leading for x in summed)
    nbytes = aval_nbytes(eqn.invars[0].aval) if is_relaid else 0
    return nbytes if nbytes >= CACHED_BYTES else nbytes // 3


def _convolution(eqn: Any) -> Product:
    numbers = eqn.params["dimension_numbers"]
    kernel, result = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    features_in, features_out = kernel[numbers.rhs_spec[1]], kernel[numbers.rhs_spec[0]]
    window = math.prod(kernel[i] for i in numbers.rhs_spec[2:])
    # Window elements that fall on the zeros of a dilated input (a strided convolution's gradient)
    # are not work; XLA and the hardware skip them.
    dilation = math.prod(eqn.params["lhs_dilation"])
    flops = 2 * math.prod(result) * features_in * window // dilation
    columns = _over(features_out, eqn.params["feature_group_count"])
    rows, depth = _over(math.prod(result), features_out), _over(features_in * window, dilation)
    return Product(flops, str(eqn.invars[0].aval.dtype), rows, columns, depth)


def _over(size: int, parts: int) -> int:
    """The size of one part, at least 1."""
    return max(1, size // max(1, parts))
