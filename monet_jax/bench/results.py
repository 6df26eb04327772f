"""The results of a benchmark: rows and their context, as JSON."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .claims import Claim


@dataclasses.dataclass(frozen=True)
class Results[Row]:
    """The rows of a benchmark, and their context.

    Attributes:
      rows: dataclasses, in the order in which they were made.
      context: versions, compilers, date, machine, command.
    """

    rows: tuple[Row, ...]
    context: Mapping[str, Any]

    def to_json(self, claims: Sequence[Claim], version: int) -> str:
        """JSON text, with the verdict on each claim.

        Arguments:
          claims: what the rows were checked against.
          version: of the format of the rows.
        """
        rows: Any = self.rows
        data = {
            "format": version,
            "context": dict(self.context),
            "claims": [dataclasses.asdict(claim) for claim in claims],
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        return json.dumps(data, indent=1)
