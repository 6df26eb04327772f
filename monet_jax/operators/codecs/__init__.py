"""Codecs: store one array in fewer bytes, and read it again.

| codec | kind | bytes of an element |
|---|---|---|
| `Mask` | bitwise | 1/8 |
| `Integers` | bitwise | 1/8 to 4, by their range |
| `BFloat16`, `RandomBFloat16` | biased, unbiased | 2 |
| `Float8` | biased | 1 + 2 / group |
| `Groups` | unbiased | bits / 8 + 4 / group |
| `Range` | unbiased | bits / 8 |
| `Pool` | biased | of the dtype, over p² |
| `PoolResidual` | unbiased | 2 / p² + bits / 8 + 4 / group |
| `Pixel` | unbiased | of the dtype, over p² |
| `Blocks` | biased | of the dtype, times `keep` |
| `Rows` | unbiased | of the dtype, times `keep` |

Groups have `group` elements, or fewer where the array's axes demand it (`groups`). Codecs follow
`Codec`, the protocol; user-defined codecs need nothing else.
"""

from .blocks import Blocks as Blocks
from .codec import FLOATS as FLOATS
from .codec import Code as Code
from .codec import Codec as Codec
from .codec import Kind as Kind
from .codec import arrays as arrays
from .codec import nbytes as nbytes
from .exact import Integers as Integers
from .exact import Mask as Mask
from .floats import BFloat16 as BFloat16
from .floats import Float8 as Float8
from .floats import RandomBFloat16 as RandomBFloat16
from .noise import fold as fold
from .noise import words_of as words_of
from .pooled import Pixel as Pixel
from .pooled import Pool as Pool
from .pooled import PoolResidual as PoolResidual
from .quantized import Groups as Groups
from .quantized import Range as Range
from .rows import Rows as Rows
