"""Collectives: the bytes that each device sends to the others of its mesh.

They are those of rings, which no algorithm undercuts (Patarasuk and Yuan, Bandwidth optimal
all-reduce algorithms for clusters of workstations, 2009, section 3).
"""

from typing import Any

from . import compat
from .program import aval_nbytes

#: Primitive -> shares of the array that each of n devices sends, as multiples of (n - 1) / n. The
#: array is an operand, or the result where the name says that it is gathered.
_RINGS = {
    "psum": 2,
    "psum_invariant": 2,
    "pmax": 2,
    "pmin": 2,
    "all_gather": 1,
    "all_gather_invariant": 1,
    "all_gather_reduced": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "ragged_all_to_all": 1,
}
_WHOLE = frozenset(("ppermute", "pbroadcast"))


def sent_bytes(eqn: Any) -> int:
    """Bytes that each device sends in an equation; 0 where it is no collective."""
    name = eqn.primitive.name
    if name not in _RINGS and name not in _WHOLE:
        return 0
    devices = compat.mapped_devices(eqn)
    arrays = eqn.outvars if name.startswith("all_gather") else eqn.invars
    nbytes = sum(aval_nbytes(v.aval) for v in arrays)
    if name in _WHOLE:
        return nbytes if devices > 1 else 0
    return _RINGS[name] * nbytes * (devices - 1) // devices
