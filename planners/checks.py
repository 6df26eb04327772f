"""Checks that values, stages, loops and choices make a planning graph."""

from collections.abc import Mapping, Sequence

from .elements import Choice, Implementation, Loop, Op, Stage, Value


def check_values(values: Sequence[Value]) -> None:
    """Checks names, sizes and copies.

    Raises:
        ValueError: a name occurs twice, a size or a time is negative, or a value has no copy.
    """
    names = [value.name for value in values]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"Value names must be unique; {twice[:3]} occur more than once.")
    for value in values:
        if value.nbytes < 0 or value.copies < 1:
            raise ValueError(
                f"Value `{value.name}` has {value.nbytes} bytes in {value.copies} copies; need 0 "
                "or more in at least one."
            )
        if value.saving_seconds < 0:
            raise ValueError(
                f"Value `{value.name}` takes {value.saving_seconds} s to save; need 0 or more."
            )


def check_loops(loops: Sequence[Loop], choices: Sequence[Choice], stage_count: int) -> None:
    """Checks that loops and choices lie among the stages.

    Raises:
        ValueError: loops overlap, a loop or a choice is empty, or one ends behind the last stage.
    """
    start = 0
    for loop in loops:
        if not (start <= loop.first and loop.length > 0 and loop.trips > 0):
            raise ValueError(f"{loop} overlaps another loop or is empty.")
        start = loop.stop
    for choice in choices:
        ends = 0, *choice.firsts, choice.stop, stage_count
        if not choice.firsts or list(ends) != sorted(ends) or choice.stop == choice.first:
            raise ValueError(f"{choice} is empty, out of order, or ends behind the last stage.")
    if start > stage_count:
        raise ValueError(f"{loops[-1]} ends behind the last of {stage_count} stages.")


def check_dataflow(values: Sequence[Value], stages: Sequence[Stage], ops: Sequence[Op]) -> None:
    """Checks that each op reads what an earlier op writes, and that each value is written once.

    Arguments:
        values, stages: of the graph.
        ops: in the order of their first runs.

    Raises:
        ValueError: an index is out of range, a value is written twice or read before it is
            written, or a time or size is out of range.
    """
    for stage in stages:
        if stage.alone_bytes < 0 or stage.alone_seconds < 0:
            raise ValueError(
                f"Stage `{stage.name}` has a negative `alone_bytes` or `alone_seconds`."
            )
    written: set[int] = set()
    for op in ops:
        for implementation in op.implementations:
            _check_implementation(values, op, implementation, written)
        for i in op.outputs:
            if not 0 <= i < len(values) or i in written:
                raise ValueError(f"Op `{op.name}` writes value {i}: unknown or written before.")
            written.add(i)


def _check_implementation(
    values: Sequence[Value], op: Op, implementation: Implementation, written: set[int]
) -> None:
    if not (implementation.seconds >= 0 and implementation.flops >= 0):
        raise ValueError(f"Op `{op.name}` has a negative time or FLOP count.")
    if implementation.workspace_bytes < -sum(values[i].nbytes for i in op.outputs):
        raise ValueError(f"Op `{op.name}` writes more over its inputs than it writes.")
    for i in implementation.inputs:
        if i not in written:
            raise ValueError(f"Op `{op.name}` reads value {i}, which no earlier op writes.")
    if not set(implementation.overwrites) <= set(implementation.inputs):
        raise ValueError(f"Op `{op.name}` writes over what it does not read.")


def check_backward(
    values: Sequence[Value],
    stages: Sequence[Stage],
    forward_writer: Mapping[int, tuple[int, int]],
) -> None:
    """Checks that no backward op reads what the forward of a later stage writes.

    Arguments:
        values, stages: of the graph.
        forward_writer: value -> the stage and position of the forward op that writes it.

    Raises:
        ValueError: one does.
    """
    for s, stage in enumerate(stages):
        for op in stage.backward:
            for i in op.may_read:
                home = forward_writer.get(i, (s,))[0]
                if home > s:
                    raise ValueError(
                        f"Backward op `{op.name}` of stage {s} reads `{values[i].name}`, "
                        f"which the forward of the later stage {home} writes. "
                        f"Move the op to stage {home}."
                    )
