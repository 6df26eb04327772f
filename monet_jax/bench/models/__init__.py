"""Compares plans with `jax.checkpoint` placed by hand, on the models of the zoo.

For each model and target: the baselines as compiled, then plans at the baselines' bytes, at shares
of the plain program's temporaries, and at the smallest budget that works. All programs go through
the same compiler, the same FLOP counter and the same roofline.

    rows      the costs of a program
    fields    the fields of a row
    programs  the baselines
    cells     the programs of one model on one target
    clock     measured step times
    claims    claims that the rows must bear out
    text      rows and claims as tables
    run       all of it

Needs the extra `flax`.
"""

from ..claims import Claim as Claim
from .claims import check_claims as check_claims
from .claims import to_json as to_json
from .programs import baselines as baselines
from .rows import Results as Results
from .rows import Row as Row
from .run import BUDGETS as BUDGETS
from .run import Request as Request
from .run import make_request as make_request
from .run import run_bench as run_bench
from .text import describe as describe
