"""How do the planners do on published problems: as good, as fast, as safe as their rivals?

For each instance, published budget and planner: the objective and the peak by replay, the proven
bound and the seconds it took, beside what was published. Neither JAX nor a device has a part in it.

    _rows     what is kept of an answer
    _answers  a planner's answer, checked by replay
    _run      all of it
    _claims   what the rows have to show
    _text     rows and claims as tables
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
