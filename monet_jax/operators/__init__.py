"""Other backward implementations of an equation, and what they keep.

A residual operator replaces an equation by others with the same value, whose derivative reads a
residual that takes fewer bytes or is in memory anyway. Where a plan makes no use of an operator,
the program is the one that JAX would have made. Operators are of three classes (`Kind`):

    bitwise      gradients equal JAX's, bit for bit
    reordered    equal up to the order of summation, or a stated number of units in the last place
    lossy        unbiased, or biased with a stated bound; used only where they are asked for

A lossy operator is a codec. It stores what derivatives are linear in: operands
(`compression/encoding`) and local derivatives of elementwise chains
(`compression/chain_derivatives`).
"""

from .codecs import Codec as Codec
from .codecs import Kind as Kind
from .compression.local_derivatives import LocalDerivative as LocalDerivative
from .compression.local_derivatives import OfLocalDerivatives as OfLocalDerivatives
from .compression.operands import OfOperands as OfOperands
from .compression.windows import Direct as Direct
from .compression.windows import Undecoded as Undecoded
from .compression.windows import Windows as Windows
from .context import Context as Context
from .context import Operator as Operator
from .emission import AS_PLANNED as AS_PLANNED
from .emission import Encoding as Encoding
from .emission import run_hook as run_hook
from .hooks import encoded as encoded
from .hooks import hook as hook
from .hooks import is_hook as is_hook
from .hooks import is_lossy_code as is_lossy_code
from .hooks import others_of as others_of
from .hooks import representation_name as representation_name
from .hooks import representations_of as representations_of
from .registry import DEFAULT as DEFAULT
from .registry import SELECTIONS as SELECTIONS
from .registry import only_by_name as only_by_name
from .registry import register as register
from .registry import rewriter as rewriter
from .registry import selected as selected
from .representations import Decoded as Decoded
from .representations import Derived as Derived
from .representations import Stored as Stored
