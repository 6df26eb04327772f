"""Compares the planners with published results, on published problems.

For each instance, published budget and planner: the objective and the peak by replay, the proven
bound and the seconds, beside the published ones. Neither JAX nor a device takes part.

    rows     a planner's answer beside a published result
    answers  a planner's answer, checked by replay
    run      all of it
    claims   claims that the rows must bear out
    text     rows and claims as tables
"""

from .claims import check_claims as check_claims
from .claims import to_json as to_json
from .rows import Results as Results
from .rows import Row as Row
from .run import Request as Request
from .run import make_request as make_request
from .run import run_bench as run_bench
from .text import describe as describe
from .text import to_markdown as to_markdown
