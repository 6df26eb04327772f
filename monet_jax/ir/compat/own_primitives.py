"""The primitives of monet_jax that change how a value is differentiated, and nothing else."""

from typing import Any

import jax
import jax.core
from jax.extend import core
from jax.interpreters import ad, batching, mlir

#: The identity on tangents that will be transposed; to run it forward is a `TypeError`. What JAX
#: itself puts in the place of a `custom_vjp` there names none of our arguments.
backward_only_p = core.Primitive("monet_jax_backward_only")


def _refuse_to_run(*_: Any, message: str, **__: Any) -> Any:
    raise TypeError(message)


backward_only_p.def_impl(_refuse_to_run)
backward_only_p.def_abstract_eval(lambda aval, *, message: aval)
ad.deflinear2(backward_only_p, lambda cotangent, _, *, message: [cotangent])
batching.primitive_batchers[backward_only_p] = _refuse_to_run
mlir.register_lowering(backward_only_p, _refuse_to_run)
# With `jax_custom_vjp3` JAX refuses its stand-in before any primitive that is not hijax is lowered.
backward_only_p.is_high = lambda *_, **__: jax.config.jax_custom_vjp3
backward_only_p.to_lojax = _refuse_to_run


#: The identity, for tangents: their cotangents are added to what the caller chose, a reference say
#: (`with_refs` of what `jax.vjp` returns). A barrier's transpose cannot do so (JAX 0.12).
accumulated_p = core.Primitive("monet_jax_accumulated")
accumulated_p.def_impl(lambda x: x)
accumulated_p.def_abstract_eval(lambda aval: aval)
ad.deflinear2(accumulated_p, lambda cotangent, _: [cotangent])
batching.defvectorized(accumulated_p)
mlir.register_lowering(accumulated_p, lambda ctx, x: [x])


#: Its first operand; a `TypeError` where the second one has a tangent.
constant_p = core.Primitive("monet_jax_constant")


def _pushed_constant(primals: Any, tangents: Any, *, message: str) -> Any:
    if not isinstance(tangents[1], ad.Zero):
        raise TypeError(message)
    return constant_p.bind(*primals, message=message), ad.Zero(jax.typeof(primals[0]))


def _batched_constant(operands: Any, axes: Any, *, message: str) -> Any:
    return constant_p.bind(*operands, message=message), axes[0]


constant_p.def_impl(lambda x, _, *, message: x)
constant_p.def_abstract_eval(lambda aval, _, *, message: aval)
ad.primitive_jvps[constant_p] = _pushed_constant
batching.primitive_batchers[constant_p] = _batched_constant
mlir.register_lowering(constant_p, lambda ctx, x, _, *, message: [x])


def abstract_primitive(name: str, results: Any) -> Any:
    """A primitive that stands in traced programs and is never run; no tangent passes it.

    Arguments:
        name: of the primitive.
        results: `(*avals, **params) -> [aval]`, as shapes and dtypes.
    """
    primitive = core.Primitive(name)
    primitive.multiple_results = True

    @primitive.def_abstract_eval
    def abstract(*avals, **params):
        found = results(*avals, **params)
        return [jax.core.ShapedArray(x.shape, x.dtype) for x in found]

    def pushed(primals, tangents, **params):
        del tangents
        found = primitive.bind(*primals, **params)
        return found, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in found]

    ad.primitive_jvps[primitive] = pushed
    return primitive
