"""The parts of JAX that are not public API.

`jax.extend` is documented but may change between minor releases; everything else in the package
uses `jax`, `jax.lax` and `jax.numpy` only. Seen to work on JAX 0.11.2 and 0.12.0.
"""

from .avals import explicit_sharding as explicit_sharding
from .avals import is_float as is_float
from .avals import is_key as is_key
from .avals import is_placed as is_placed
from .avals import key_implementation as key_implementation
from .avals import unused as unused
from .avals import varying_axes as varying_axes
from .avals import with_weak_type as with_weak_type
from .avals import zeros as zeros
from .binding import bind as bind
from .binding import bind_here as bind_here
from .binding import current_name_stack as current_name_stack
from .binding import name_stack_of as name_stack_of
from .binding import placed_at as placed_at
from .binding import placed_like as placed_like
from .binding import traced_like as traced_like
from .jaxprs import Jaxpr as Jaxpr
from .jaxprs import JaxprEqn as JaxprEqn
from .jaxprs import Literal as Literal
from .jaxprs import Var as Var
from .jaxprs import as_function as as_function
from .jaxprs import checkpoint_name_of as checkpoint_name_of
from .jaxprs import checkpointed as checkpointed
from .jaxprs import integers_of as integers_of
from .jaxprs import jaxpr_inputs as jaxpr_inputs
from .jaxprs import jit_p as jit_p
from .jaxprs import name_p as name_p
from .jaxprs import of_constants as of_constants
from .jaxprs import outer_axes as outer_axes
from .jaxprs import primitive_name as primitive_name
from .jaxprs import remat_p as remat_p
from .jaxprs import scan_counts as scan_counts
from .jaxprs import subjaxprs as subjaxprs
from .memories import PINNED_HOST as PINNED_HOST
from .memories import is_on_host as is_on_host
from .own_primitives import abstract_primitive as abstract_primitive
from .own_primitives import accumulated_p as accumulated_p
from .own_primitives import backward_only_p as backward_only_p
from .own_primitives import constant_p as constant_p
from .own_primitives import lookup_p as lookup_p
from .planned import planned_p as planned_p
from .planned import until_differentiated as until_differentiated
from .plugins import is_gpu_attached as is_gpu_attached
from .plugins import quieten_plugins as quieten_plugins
from .references import is_reference as is_reference
from .references import uses_references as uses_references
from .references import without_references as without_references
from .rules import NOT_DIFFERENTIABLE as NOT_DIFFERENTIABLE
from .rules import closed_over_count as closed_over_count
from .rules import closes_over_its_own as closes_over_its_own
from .rules import forward_rules as forward_rules
from .sources import INTERNAL as INTERNAL
from .sources import is_library as is_library
from .sources import source_of as source_of
from .sources import sourced_by as sourced_by
from .tracers import carries_tangent as carries_tangent
from .tracers import current_trace as current_trace
from .tracers import is_batch_tracer as is_batch_tracer
from .tracers import is_pushed_forward as is_pushed_forward
from .tracers import is_staged as is_staged
from .tracers import no_gradient_is_taken as no_gradient_is_taken
from .tracers import trace_context as trace_context
