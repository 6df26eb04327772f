"""Reads XLA:GPU's own estimates of the seconds of instructions from the text of a compiled program.

With `xla_gpu_collect_cost_model_stats`, instructions carry `reification_cost`, a list of estimates
by several models. The entry named `sol` is the latency-hiding scheduler's, whose products come from
a measured table. The format is promised by nobody: what is not understood is not priced.

This file imports nothing of monet_jax: `worker` loads it by its path.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

#: Arrays of fewer elements are scalars, counters and the like, which tell instructions not apart.
FEWEST_ELEMENTS = 64

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(?:, (.*))?$")
_ARRAY = re.compile(r"\b(?:pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|body|to_apply|called_computations)=\{?%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ESTIMATE = re.compile(r'\{[^{}]*"exec_time_us":([^,}]*)[^{}]*"name":"sol"[^{}]*\}')
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """What the compiler says of an instruction.

    Attributes:
        seconds: of one run.
        runs: how often it runs; loops of unknown trips count once.
        flops: of the products in it.
        read, written: elements of the arrays that it reads and writes, in ascending order.
    """

    seconds: float
    runs: int
    flops: int
    read: tuple[int, ...]
    written: tuple[int, ...]


def estimates_in(text: str) -> list[tuple[float, int, int, tuple[int, ...], tuple[int, ...]]]:
    """The priced instructions of a compiled program.

    Returns:
        The fields of an `Estimate` for each, as they leave a process that does not know the class.
        Empty where no instruction carries an estimate.
    """
    if '"sol"' not in text:
        return []
    computations = dict(_computations(text))
    trips = _trips(computations)
    found = []
    for name, instructions in computations.items():
        for instruction in instructions.values():
            seconds = _seconds(instruction["rest"])
            if seconds is None:
                continue
            read = [n for x in instruction["operands"] for n in _sizes(instructions, x)]
            flops = _flops(computations, instructions, instruction)
            written = instruction["elements"]
            found.append((seconds, trips.get(name, 1), flops, _large(read), _large(written)))
    return found


def _computations(text: str) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """The instructions of each computation by their names."""
    name, instructions = "", dict[str, dict[str, Any]]()
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            name, instructions = head[1], {}
        elif line.startswith("}") and name:
            yield name, instructions
            name = ""
        elif name and (found := _INSTRUCTION.match(line)):
            instructions[found[1]] = _instruction(found)


def _instruction(found: re.Match[str]) -> dict[str, Any]:
    shapes = [_dimensions(dims) for dims in _ARRAY.findall(found[2])]
    return {
        "shape": shapes[0] if shapes else (),
        "elements": [math.prod(shape) for shape in shapes],
        "kind": found[3],
        "operands": _OPERAND.findall(found[4]),
        "rest": found[5] or "",
    }


def _dimensions(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.replace('"', "").split(",") if n)


def _seconds(rest: str) -> float | None:
    """The estimate that an instruction carries; None where it is absent, zero, or no number."""
    found = _ESTIMATE.search(rest)
    try:
        seconds = float(found[1]) / 1e6 if found else 0.0
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _sizes(instructions: Mapping[str, dict[str, Any]], operand: str) -> list[int]:
    return instructions[operand]["elements"] if operand in instructions else []


def _large(elements: list[int]) -> tuple[int, ...]:
    return tuple(sorted(n for n in elements if n >= FEWEST_ELEMENTS))


def _flops(
    computations: Mapping[str, dict[str, dict[str, Any]]],
    instructions: Mapping[str, dict[str, Any]],
    instruction: dict[str, Any],
) -> int:
    """FLOPs of the products in an instruction, or in the computations that it calls."""
    called = _CALLED.findall(instruction["rest"])
    own = 0
    contracted = _CONTRACTED.search(instruction["rest"])
    if contracted and instruction["operands"] and instruction["elements"]:
        lhs = instructions.get(instruction["operands"][0], {}).get("shape", ())
        sides = [lhs[i] for i in _dimensions(contracted[1]) if i < len(lhs)]
        own = 2 * instruction["elements"][0] * math.prod(sides)
    inner = (computations.get(name, {}) for name in called)
    return own + sum(_flops(computations, some, x) for some in inner for x in some.values())


def _trips(computations: Mapping[str, dict[str, dict[str, Any]]]) -> dict[str, int]:
    """How often each computation runs; callers come behind what they call."""
    found: dict[str, int] = {}
    for name, instructions in [*computations.items()][::-1]:
        for instruction in instructions.values():
            known = _TRIPS.search(instruction["rest"])
            times = found.get(name, 1) * (int(known[1]) if known else 1)
            for called in _CALLED.findall(instruction["rest"]):
                found[called] = found.get(called, 0) + times
    return found
