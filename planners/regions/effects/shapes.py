"""What is known of stages and regions by their shape, in all graphs that one planner is asked for.

The graphs of one function differ in little: some have fewer implementations, another charges more
for stages that are left alone. Their stages are isomorphic for the most part, and so are the
regions over them: what was solved and walked in one graph holds in the others.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Effects and options, by all that they depend on.

    Attributes:
        effects: of regions.
        options: of stages: sets of values that each may save; without those that were cut short.
    """

    effects: dict[Hashable, Any] = dataclasses.field(default_factory=dict)
    options: dict[Hashable, Any] = dataclasses.field(default_factory=dict)
    _numbers: dict[Hashable, int] = dataclasses.field(default_factory=dict)

    def number(self, key: Hashable) -> int:
        """Equal for equal keys."""
        return self._numbers.setdefault(key, len(self._numbers))
