"""The candidates of a search and the integer programs over them, made when first needed."""

import functools as ft
import time
from collections.abc import Iterator, Sequence

from ...graph import Graph
from ..candidates.candidates import Candidates
from ..composition.program import Composition
from ..effects.candidate import Candidate
from ..effects.shapes import Shapes
from .chain import ChainHeuristic
from .clock import Clock

# Shares of the time: for single stages and their composition, and until all candidates are known.
FIRST, SECOND = 0.5, 0.8


class Spaces:
    """Candidates and programs of one graph, for any number of budgets."""

    def __init__(self, graph: Graph, shapes: Shapes, clock: Clock, max_options: int):
        self._graph, self._shapes = graph, shapes
        self._clock, self._max_options = clock, max_options
        self._seconds_per_candidate = 0.0  # that setting up a composition takes

    def steps_ahead(self) -> Iterator[None]:
        """Find all candidates, in two steps."""
        self._clock.restart()
        _ = self.candidates
        yield
        _ = self.everything
        yield

    @property
    def are_known(self) -> bool:
        """Whether the candidates of single stages have been found."""
        return "candidates" in vars(self)

    @ft.cached_property
    def candidates(self) -> Candidates:
        """The candidates of single stages."""
        deadline = self._clock.at(FIRST)
        most = self._max_options
        return Candidates(self._graph, self._shapes, max_options=most, deadline=deadline)

    @ft.cached_property
    def singles(self) -> list[Candidate]:
        """The candidates of all single stages."""
        return [x for some in self.candidates.singles for x in some]

    @ft.cached_property
    def of_singles(self) -> Composition:
        """The program over single stages."""
        singles = self.singles
        start = time.process_time()
        composition = self.composition(singles)
        self._seconds_per_candidate = (time.process_time() - start) / len(singles)
        return composition

    @ft.cached_property
    def everything(self) -> list[Candidate]:
        """All candidates."""
        return self.singles + self.candidates.intervals(self._clock.at(SECOND))

    @ft.cached_property
    def of_everything(self) -> Composition:
        """The program over all candidates."""
        return self.composition(self.everything)

    @ft.cached_property
    def chain(self) -> ChainHeuristic:
        """The chain heuristic over all candidates."""
        return ChainHeuristic(self._graph, self.everything)

    def composition(self, candidates: Sequence[Candidate]) -> Composition:
        """The program over some candidates."""
        return Composition(self._graph, candidates)

    def is_late(self, candidates: Sequence[Candidate]) -> bool:
        """Whether there is no time to set up the composition of candidates."""
        # Twice, since the first solve sets up as much again.
        return self._clock.left() <= 2 * self._seconds_per_candidate * len(candidates)


class SingleStageSpaces(Spaces):
    """The part of some spaces whose regions are single stages; its candidates are the same ones."""

    def __init__(self, spaces: Spaces, clock: Clock):
        super().__init__(spaces._graph, spaces._shapes, clock, spaces._max_options)
        self._spaces = spaces

    @property
    def are_known(self) -> bool:
        """Whether they have been found."""
        return self._spaces.are_known

    @property
    def candidates(self) -> Candidates:
        """The candidates of single stages."""
        return self._spaces.candidates

    @property
    def everything(self) -> list[Candidate]:
        """The candidates of single stages."""
        return self.singles

    @property
    def of_singles(self) -> Composition:
        """The program over single stages."""
        return self._spaces.of_singles

    @property
    def of_everything(self) -> Composition:
        """The program over single stages."""
        return self.of_singles
