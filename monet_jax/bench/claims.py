"""What is a claim that a benchmark checks?"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim and what the rows say of it.

    Attributes:
      title: what is claimed.
      figure: what was found.
      holds: whether it is as claimed; None where no row says.
      against: cells that speak against it.
    """

    title: str
    figure: str
    holds: bool | None
    against: tuple[str, ...] = ()
