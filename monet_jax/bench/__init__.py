"""How do plans compare with `jax.checkpoint` placed by hand, on the models of the zoo?

For each model and target: the baselines as compiled, then plans at the baselines' bytes, at shares
of the plain program's temporaries, and at the smallest budget that works. All programs go through
the same compiler, the same FLOP counter and the same roofline.

    _rows      what is kept of a program
    _programs  the baselines
    _cells     the programs of one model on one target
    _clock     measured step times
    _claims    what the rows have to show
    _text      rows and claims as tables
    _run       all of it

Needs the extra `flax`.
"""

from ..report.claims import Claim as Claim
from ._claims import check_claims as check_claims
from ._claims import to_json as to_json
from ._programs import baselines as baselines
from ._rows import Results as Results
from ._rows import Row as Row
from ._run import BUDGETS as BUDGETS
from ._run import Request as Request
from ._run import make_request as make_request
from ._run import run_bench as run_bench
from ._text import describe as describe
