"""Flat programs of JAX equations: as data, flattened from a jaxpr, and run in part."""

from .dataflow import dependents as dependents
from .dataflow import mutable_references as mutable_references
from .dataflow import parameters_of as parameters_of
from .dataflow import positions_of as positions_of
from .dataflow import run as run
from .dataflow import values_of as values_of
from .dataflow import with_replacements as with_replacements
from .dataflow import without_dead_code as without_dead_code
from .flattening import flatten as flatten
from .flattening import has_checkpoints as has_checkpoints
from .flattening import listed as listed
from .flattening import with_replaced as with_replaced
from .program import Equation as Equation
from .program import Program as Program
from .program import Replacement as Replacement
from .program import Rewrite as Rewrite
from .program import aval_nbytes as aval_nbytes
from .program import aval_of as aval_of
from .program import device_nbytes as device_nbytes
from .program import shape_of as shape_of
from .program import unchanged as unchanged
