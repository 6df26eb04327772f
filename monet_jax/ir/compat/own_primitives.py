"""The primitives of monet_jax that change how a value is differentiated, and nothing else."""

import functools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
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


#: `gather`, but the cotangent of its operand begins as zeros that are not made before the result's
#: cotangent has come.
lookup_p = core.Primitive("monet_jax_lookup")


def _looked_up(operand: Any, indices: Any, **params: Any) -> Any:
    return jax.lax.gather_p.bind(operand, indices, **params)


def _pushed_lookup(primals: Any, tangents: Any, **params: Any) -> Any:
    result, (tangent, _) = lookup_p.bind(*primals, **params), tangents
    if isinstance(tangent, ad.Zero):
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, lookup_p.bind(tangent, primals[1], **params)


def _transposed_lookup(
    cotangent: Any, operand: Any, indices: Any, *, dimension_numbers: Any, **params: Any
) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(operand.aval), None]
    zero = jnp.zeros((), cotangent.dtype)
    zero, cotangent = jax.lax.optimization_barrier((zero, cotangent))
    where = jax.lax.ScatterDimensionNumbers(
        update_window_dims=dimension_numbers.offset_dims,
        inserted_window_dims=dimension_numbers.collapsed_slice_dims,
        scatter_dims_to_operand_dims=dimension_numbers.start_index_map,
        operand_batching_dims=dimension_numbers.operand_batching_dims,
        scatter_indices_batching_dims=dimension_numbers.start_indices_batching_dims,
    )
    same = {name: params[name] for name in ("indices_are_sorted", "unique_indices", "mode")}
    zeros = jax.lax.broadcast(zero, operand.aval.shape)
    return [jax.lax.scatter_add(zeros, indices, cotangent, where, **same), None]


def _batched_lookup(operands: Any, axes: Any, **params: Any) -> Any:
    return jax.vmap(functools.partial(_looked_up, **params), in_axes=axes)(*operands), 0


def _lookup_aval(*avals: Any, **params: Any) -> Any:
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    found = jax.eval_shape(functools.partial(_looked_up, **params), *shapes)
    return jax.core.ShapedArray(found.shape, found.dtype)


lookup_p.def_impl(_looked_up)
lookup_p.def_abstract_eval(_lookup_aval)
ad.primitive_jvps[lookup_p] = _pushed_lookup
ad.primitive_transposes[lookup_p] = _transposed_lookup
batching.primitive_batchers[lookup_p] = _batched_lookup
mlir.register_lowering(lookup_p, mlir.lower_fun(_looked_up, multiple_results=False))


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
