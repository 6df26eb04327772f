"""How do the scripts beside this file plan again and again, and compile each program once?"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import planners
from monet_jax.planning.judge import TracedJudge


def compiled_once() -> AbstractContextManager[Any]:
    """A context in which a program that was compiled before is not compiled again."""
    unplanned, planned = TracedJudge.unplanned_bytes, TracedJudge.planned_bytes
    known: dict[Any, Any] = {}

    def as_it_is(judge: TracedJudge) -> Any:
        return once(judge.fingerprint, lambda: unplanned(judge))

    def as_planned(judge: TracedJudge, decisions: planners.Plan) -> Any:
        return once((judge.fingerprint, decisions.regions), lambda: planned(judge, decisions))

    def once(key: Any, compile_it: Callable[[], Any]) -> Any:
        if key not in known:
            known[key] = compile_it()
        return known[key]

    return mock.patch.multiple(TracedJudge, unplanned_bytes=as_it_is, planned_bytes=as_planned)
