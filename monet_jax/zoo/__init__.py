"""The training losses that the demo, the benchmarks, the notebooks and the tests share.

`build(name)` returns one of `MODELS` as a `Problem`: a loss as people train it (BatchNorm in
train mode, dropout, cross-entropy), its abstract arguments, and a way to make real ones. The
convolutional five are the models of MONeT (Shah et al., 2021, ICLR).

Needs the extra `flax`.
"""

from .build import FRONTIER as FRONTIER
from .build import MODELS as MODELS
from .build import build as build
from .problem import Problem as Problem
