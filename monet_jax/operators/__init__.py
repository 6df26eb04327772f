"""Residual operators: what a backward pass may run from, other than what JAX keeps.

An operator replaces an equation by others with the same value, whose derivative reads something
that takes fewer bytes or is there anyway. Where a plan makes no use of it, the program is the one
that JAX would have made. Operators are of three classes (`Kind`):

    bitwise      gradients are those of JAX, bit for bit
    reordered    equal up to the order of summation, or a stated number of units in the last place
    lossy        unbiased, or biased with a stated bound; never used unless asked for

A lossy operator is a codec: by it is kept what derivatives are linear in, operands (`_codes`) and
slopes of elementwise chains (`_slopes`).
"""

from ._context import Context as Context
from ._context import Operator as Operator
from ._registry import DEFAULT as DEFAULT
from ._registry import SELECTIONS as SELECTIONS
from ._registry import not_used as not_used
from ._registry import register as register
from ._registry import rewriter as rewriter
from ._registry import selected as selected
from ._tap import AS_PLANNED as AS_PLANNED
from ._tap import Decoded as Decoded
from ._tap import Derived as Derived
from ._tap import Encoding as Encoding
from ._tap import Stored as Stored
from ._tap import encoded as encoded
from ._tap import form_name as form_name
from ._tap import forms_of as forms_of
from ._tap import is_lossy_code as is_lossy_code
from ._tap import is_tap as is_tap
from ._tap import others_of as others_of
from ._tap import run_tap as run_tap
from ._tap import tap as tap
from .codecs import Codec as Codec
from .codecs import Kind as Kind
from .operands import OfOperands as OfOperands
from .slopes import OfSlopes as OfSlopes
from .slopes import Slope as Slope
from .windows import Direct as Direct
from .windows import Undecoded as Undecoded
from .windows import Windows as Windows
