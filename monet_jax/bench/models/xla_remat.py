"""Caps the memory that XLA:GPU's own rematerialization works towards.

XLA:GPU runs instructions again once the temporaries and results that live at one time pass a limit.
The limit comes from the card: 95 % of what four fifths of its memory leave beside arguments and
results. It is no promise: XLA's account of what lives differs from its assignment of memory, in
which results have their place before they are written, and nothing more may be worth running again.
So compiled bytes decide.
"""

import dataclasses
import re

from ...compiler.compile import CompiledBytes
from ...compiler.targets import Target

#: XLA:GPU's shares (openxla/xla, `gpu_hlo_schedule.cc`): of the card's memory, and of what is left.
_OF_THE_CARD, _OF_THE_REST = 0.80, 0.95
_MEMORY = re.compile(r"device_memory_size: \d+")


def can_cap(target: Target) -> bool:
    """Whether the compiler takes the memory of a target from a description of the card."""
    return target.gpu_config is not None and not target.attached


def capped(target: Target, total_bytes: int, plain: CompiledBytes) -> Target:
    """A card on which XLA's rematerialization sets in where a program takes more than a total.

    Args:
        target: the card as it is; `can_cap` holds of it.
        total_bytes: arguments, results and temporaries together.
        plain: the program as compiled without rematerialization.
    """
    if not can_cap(target):
        raise ValueError(f"{target.name} has no memory to cap; need a GPU that is not attached")
    assert target.gpu_config is not None
    outside = plain.argument_bytes + plain.output_bytes - plain.alias_bytes
    limit = max(total_bytes - plain.argument_bytes, 0)
    memory = int((limit / _OF_THE_REST + outside) / _OF_THE_CARD)
    text = _MEMORY.sub(f"device_memory_size: {memory}", target.gpu_config)
    return dataclasses.replace(target, gpu_config=text)
