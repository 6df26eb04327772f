"""The parts of JAX that are not public API, in one place.

`jax.extend` is documented but may change between minor releases; everything else in the package
uses `jax`, `jax.lax` and `jax.numpy` only. Seen to work on JAX 0.11.2 and 0.12.0.
"""

import contextlib
import functools
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax._src.config import trace_context as trace_context
from jax._src.core import trace_ctx
from jax._src.interpreters.ad import CustomVJPException
from jax._src.interpreters.partial_eval import convert_constvars_jaxpr
from jax._src.state.discharge import discharge_state
from jax._src.state.types import AbstractRef
from jax.extend import core, source_info_util
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: A warning is about the line that called, not about the frames of these files between.
#: (CPython 3.12.1 skips no file by its whole name.)
INTERNAL = (_PACKAGE, os.path.dirname(jax.__file__), contextlib.__file__.removesuffix("py"))

_ZOO = os.path.join(_PACKAGE, "zoo") + os.sep

#: Packages between a user's line and the equation that it makes.
_SITE = "site-packages"
_LIBRARIES = ("jax", "jaxlib", "flax", "equinox", "haiku", "optax")

Jaxpr = core.Jaxpr
JaxprEqn = core.JaxprEqn
Literal = core.Literal
Var = core.Var

jit_p = core.primitives.jit_p
name_p = core.primitives.name_p
remat_p = core.primitives.remat_p

#: What JAX raises where something cannot be differentiated: a `while` in reverse, or a rule by what
#: its function closes over.
NOT_DIFFERENTIABLE = (TypeError, ValueError, CustomVJPException)


def jaxpr_inputs(jaxpr: Any) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The constant variables of a (closed) jaxpr, their values, and its argument variables."""
    # JAX >= 0.11: `Jaxpr` carries its constants, also in `remat_p`; `.jaxpr` is itself.
    return jaxpr.jaxpr.constvars, jaxpr.consts, jaxpr.jaxpr.invars


def as_function(jaxpr: Any) -> Callable[..., list[Any]]:
    """A closed jaxpr as a function of its arguments."""
    return core.jaxpr_as_fun(jaxpr)


def of_constants(jaxpr: Any) -> Any:
    """A closed jaxpr as one of its constants, which come first, and its inputs."""
    return convert_constvars_jaxpr(jaxpr.jaxpr)


def integers_of(eqn: Any) -> list[Any]:
    """The parameters of an equation that are integers, or nested tuples of them, by no name."""

    def is_integer(value: Any) -> bool:
        if isinstance(value, tuple):
            return bool(value) and all(map(is_integer, value))
        return isinstance(value, int) and not isinstance(value, bool)

    return [x for _, x in sorted(eqn.params.items()) if is_integer(x)]


def without_references(jaxpr: Any) -> Any:
    """A closed jaxpr with the mutable references that it makes itself as plain values.

    Where it reads or writes others, or JAX has no rule for that, it is returned as it is.
    """
    own = jaxpr.jaxpr
    given = any(map(is_reference, (*own.invars, *own.constvars)))
    if given or not own.effects or not any(map(has_references, own.eqns)):
        return jaxpr
    try:
        return discharge_state(jaxpr, lower=False)
    except NotImplementedError:
        return jaxpr


def has_references(eqn: Any) -> bool:
    """Whether an equation, or one inside it, makes, reads or writes mutable references."""
    if any(map(is_reference, (*eqn.invars, *eqn.outvars))):
        return True
    return any(has_references(e) for body in subjaxprs(eqn) for e in body.jaxpr.eqns)


def is_reference(atom: Any) -> bool:
    """Whether a variable or literal of a jaxpr stands for a mutable reference."""
    return isinstance(atom.aval, AbstractRef)


def subjaxprs(eqn: Any) -> list[Any]:
    """The jaxprs among the parameters of an equation, those of a hijax primitive included."""
    found = []
    hidden = getattr(eqn.params.get("_prim"), "params", None) or {}
    for value in (*eqn.params.values(), *hidden.values()):
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, Jaxpr):
                found.append(item)
    return found


def forward_rules(eqn: Any) -> list[Any]:
    """The jaxpr of what a `custom_vjp` runs where it is differentiated; none of other equations."""
    # With `jax_custom_vjp3` it is a hijax primitive.
    is_hidden = type(eqn.params.get("_prim")).__name__ == "CustomVJPTraced"
    if eqn.primitive.name != "custom_vjp_call" and not is_hidden:
        return []
    operands = [var.aval for var in eqn.invars]
    own = range(eqn.params.get("num_consts", 0), len(operands))
    places = [n for n in own if is_float(operands[n])]

    def forward(*operands):
        def differentiated(*chosen):
            given = list(operands)
            for n, x in zip(places, chosen, strict=True):
                given[n] = x
            results = bind_here(eqn, given)
            return [x for x in results if is_float(jax.typeof(x))]

        return jax.tree.leaves(jax.vjp(differentiated, *(operands[n] for n in places)))

    try:
        shapes = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=explicit_sharding(a)) for a in operands
        ]
        with jax.debug_key_reuse(False):
            return [jax.make_jaxpr(forward)(*shapes)]
    except Exception:  # a rule may raise anything, and does so again where it runs
        return []


def scan_counts(eqn: Any) -> tuple[int, int, int]:
    """How many of a `scan` equation's operands are constants, carried, and stacked."""
    consts, carry, stacked = map(list, eqn.params["ft_in"].update(eqn.invars).unpack())
    return len(consts), len(carry), len(stacked)


def primitive_name(eqn: Any) -> str:
    """The name of an equation's primitive."""
    # With `jax_remat3`, a `checkpoint_name` is a hijax primitive.
    hidden = eqn.params.get("_prim")
    return "name" if type(hidden).__name__ == "CheckpointName" else eqn.primitive.name


def checkpointed(eqn: Any) -> Any:
    """The jaxpr of a region of `jax.checkpoint`; None where an equation is none."""
    # With `jax_remat3` it is a hijax primitive.
    hidden = eqn.params.get("_prim")
    if type(hidden).__name__ == "RematTraced":
        return hidden.jaxpr
    return eqn.params["jaxpr"] if eqn.primitive is remat_p else None


def checkpoint_name_of(eqn: Any) -> str:
    """The name that a `checkpoint_name` equation gives; "" where it is another equation."""
    if primitive_name(eqn) != "name":
        return ""
    return str(eqn.params["name"] if "name" in eqn.params else eqn.params["_prim"].name)


def bind(eqn: Any, inputs: Sequence[Any], name_stack: Any) -> list[Any]:
    """Run one equation on new inputs, with its own rules, context and source position."""
    # `get_bind_params` restores the callables of custom_jvp and custom_vjp calls.
    params = eqn.primitive.get_bind_params(eqn.params)
    with placed_at(eqn, name_stack):
        outputs = eqn.primitive.bind(*unused(inputs), **params)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


@contextlib.contextmanager
def placed_at(eqn: Any, name_stack: Any) -> Iterator[None]:
    """What is traced here has an equation's context and source position, and a module path."""
    where = source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack)
    with where, eqn.ctx.manager:
        yield


def bind_here(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """`bind` under the module path in force where the caller stands."""
    return bind(eqn, inputs, current_name_stack())


def traced_like(eqn: Any, function: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """The jaxpr of a function, all with the source position and the context of an equation."""
    with source_info_util.user_context(eqn.source_info.traceback), eqn.ctx.manager:
        return jax.make_jaxpr(function)(*avals)


def placed_like(eqn: Any, other: Any) -> Any:
    """An equation with the source position and the context (mesh, precision) of another one."""
    return eqn.replace(source_info=other.source_info, ctx=other.ctx)


def source_of(eqn: Any) -> str:
    """`file:line` of the user's code that made an equation; "" where JAX does not know it."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if not is_library(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return ""


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a source file belongs to a library whose lines tell a user nothing."""
    # The models of the zoo stand for a user's.
    is_ours = file.startswith(_PACKAGE + os.sep) and not file.startswith(_ZOO)
    is_python = file.startswith(("<", sysconfig.get_path("stdlib"))) and _SITE not in file
    return is_ours or is_python or any(f"{_SITE}/{name}/" in file for name in _LIBRARIES)


def name_stack_of(eqn: Any) -> Any:
    """The module path and transformation names under which an equation was traced."""
    return eqn.source_info.name_stack


def current_name_stack() -> Any:
    """The name stack in force where the caller stands."""
    return source_info_util.current_name_stack()


def is_key(aval: Any) -> bool:
    """Whether an abstract value is an array of typed PRNG keys."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


def is_float(aval: Any) -> bool:
    """Whether arrays of an abstract value have gradients: floats and complex numbers."""
    return not is_key(aval) and jnp.issubdtype(aval.dtype, jnp.inexact)


def unused(values: Any) -> Any:
    """A pytree of values, keys as copies where `jax_debug_key_reuse` is on.

    To that check a barrier, or a function with a rule of its own, uses up its keys, and so does a
    region that runs again. It is the user's function that it is about, and that has passed it when
    it was traced.
    """

    def copied(x: Any) -> Any:
        if not isinstance(x, jax.Array) or not is_key(jax.typeof(x)):
            return x
        # `jax.random.clone` has no rule for tangents, which a key carried in a loop can have.
        return jax.random.wrap_key_data(jax.random.key_data(x), impl=jax.random.key_impl(x))

    return jax.tree.map(copied, values) if jax.config.jax_debug_key_reuse else values


def is_placed(aval: Any) -> bool:
    """Whether an array is sharded by explicit axes."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and any(axis is not None for axis in sharding.spec)


def with_weak_type(x: Any, aval: Any) -> Any:
    """An array, or the value of a literal, as an array of a weak type where `aval` has one."""
    is_array = isinstance(x, jax.Array)
    if is_array and jax.typeof(x).weak_type == aval.weak_type:
        return x
    # `jax.lax.convert_element_type` makes every type a strong one.
    return jax.lax.convert_element_type_p.bind(
        x if is_array else jnp.asarray(x, aval.dtype),
        new_dtype=aval.dtype,
        weak_type=aval.weak_type,
        sharding=None,
    )


def explicit_sharding(aval: Any) -> Any:
    """How explicit axes shard an abstract value; None where a mesh has none, or is mapped over."""
    sharding = getattr(aval, "sharding", None)
    kinds = set(sharding.mesh.axis_types) if sharding is not None else set()
    return sharding if AxisType.Explicit in kinds and AxisType.Manual not in kinds else None


def zeros(aval: Any, leading: int = 0) -> Any:
    """Zeros of an abstract value less some leading axes, sharded as it is along explicit axes."""
    spread = None
    if aval.sharding.mesh.explicit_axes:
        spread = aval.sharding.update(spec=(*aval.sharding.spec,)[leading:])
    return jax.lax.full(aval.shape[leading:], 0, aval.dtype, sharding=spread)


def key_implementation(aval: Any) -> str:
    """The name of the PRNG implementation of a typed key: "fry", "rbg", ..."""
    return getattr(getattr(aval.dtype, "_impl", None), "tag", "")


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


def is_batch_tracer(x: Any) -> bool:
    """Whether `x` is traced by `vmap`, whose axis size the traced function cannot see."""
    while isinstance(x, jax.core.Tracer):
        if type(x).__name__ == "BatchTracer":
            return True
        x = getattr(x, "primal", None)  # below a derivative, as in `vmap(grad(f))`
    return False


def is_pushed_forward(x: Any) -> bool:
    """Whether `x` carries a tangent, as in `jax.jvp`; not where a gradient will be pulled back."""
    # Without direct linearization, `jax.grad` pushes tangents forward before it transposes.
    return type(x).__name__ == "JVPTracer" and jax.config.jax_use_direct_linearize


def outer_axes(eqn: Any) -> list[str]:
    """The mapped axes of outer transformations that an equation uses, as in `psum(x, "i")`."""
    return [str(e.name) for e in eqn.effects if type(e).__name__ == "NamedAxisEffect"]


def varying_axes(x: Any) -> list[str]:
    """The axes of an outer `shard_map` along which `x` differs; none where that is not checked."""
    # JAX 0.11.2 to 0.12 call it so; it was `vma` before.
    return [str(axis) for axis in jax.typeof(x).manual_axis_type.varying]


def current_trace() -> Any:
    """What is being traced where the caller stands."""
    return trace_ctx.trace


def closes_over_its_own(jaxpr: Any, trace: Any) -> bool:
    """Whether a backward rule in a closed jaxpr reads a tracer of the trace that made the jaxpr.

    Such a rule works where the function is differentiated as it is traced, and nowhere else.
    """
    if not any(map(_has_backward_rule, jaxpr.jaxpr.eqns)):
        return False
    inputs = [var.aval for var in jaxpr.jaxpr.invars]
    floats = [n for n, aval in enumerate(inputs) if is_float(aval)]

    def pulled(values: Sequence[Any]) -> Any:
        def function(*chosen: Any) -> list[Any]:
            given = dict(zip(floats, chosen, strict=True))
            outputs = as_function(jaxpr)(*(given.get(n, x) for n, x in enumerate(values)))
            return [x for x in outputs if is_float(jax.typeof(x))]

        outputs, pull = jax.vjp(function, *(values[n] for n in floats))
        return pull([jnp.ones_like(x) for x in outputs])

    try:
        _, constants, _ = jaxpr_inputs(jax.make_jaxpr(pulled)(inputs))
    except Exception:  # by a rule of the user's: whoever differentiates the function will see it
        return False
    return any(isinstance(x, jax.core.Tracer) and x._trace is trace for x in constants)


def _has_backward_rule(eqn: Any) -> bool:
    bodies = (e for body in subjaxprs(eqn) for e in body.jaxpr.eqns)
    return eqn.primitive.name.startswith("custom_vjp_call") or any(map(_has_backward_rule, bodies))


def no_gradient_is_taken() -> bool:
    """Whether no transformation is under way but `vmap`, so that no gradient can be taken."""
    return type(_below("BatchTrace")).__name__ == "EvalTrace"


def is_staged() -> bool:
    """Whether what is called is written down, to be run, transformed or differentiated later."""
    return type(_below("BatchTrace", "JVPTrace", "LinearizeTrace")).__name__ != "EvalTrace"


def _below(*kinds: str) -> Any:
    """The trace below those of some kinds."""
    trace = trace_ctx.trace
    while type(trace).__name__ in kinds:
        trace = trace.parent_trace
    return trace


def carries_tangent(x: Any) -> bool:
    """Whether a derivative with respect to `x` is being taken, through `vmap` or not."""
    while isinstance(x, jax.core.Tracer):
        match type(x).__name__:
            case "JVPTracer" | "LinearizeTracer":
                if not isinstance(x.tangent, ad.Zero):
                    return True
                x = x.primal
            case "BatchTracer":
                x = x.val
            case _:
                return False
    return False


class _Planned(core.Primitive):
    """Runs a function as it is, until it is differentiated; then it is no primitive any more.

    What is planned then is written down where a tangent arrives, equation by equation, as if it had
    stood there from the start.
    """

    multiple_results = True

    def bind_with_trace(self, trace, args, avals, params, /):
        """As for any primitive, but where a derivative is being taken."""
        is_derivative = type(trace).__name__ in ("JVPTrace", "LinearizeTrace")
        if is_derivative and any(map(carries_tangent, args)):
            with core.set_current_trace(trace):
                return params["differentiated"](*args)
        return super().bind_with_trace(trace, args, avals, params)

    def is_high(self, *avals, jaxpr, **params):
        """Whether something in it is of JAX's higher types."""
        return getattr(jaxpr, "is_high", False)

    def to_lojax(self, *args, jaxpr, **params):
        """The function itself."""
        return as_function(jaxpr)(*args)


planned_p = _Planned("monet_jax_planned")


def until_differentiated(
    jaxpr: Any, differentiated: Callable[..., Sequence[Any]], operands: Sequence[Any]
) -> list[Any]:
    """One equation for a function that is to be planned once it is differentiated.

    Arguments:
        jaxpr: closed; the function as it is.
        differentiated: the function as planned, of the same operands.
        operands: arrays and tracers.
    """
    _, constants, _ = jaxpr_inputs(jaxpr)
    if not constants:
        return planned_p.bind(*operands, jaxpr=jaxpr, differentiated=differentiated)
    count = len(constants)  # arrays that it closes over belong to the program round it
    return planned_p.bind(
        *constants,
        *operands,
        jaxpr=of_constants(jaxpr),
        differentiated=lambda *given: differentiated(*given[count:]),
    )


def _run_plain(*operands: Any, jaxpr: Any, differentiated: Any) -> Any:
    return as_function(jaxpr)(*operands)


def _planned_results(*avals: Any, jaxpr: Any, differentiated: Any) -> tuple[Any, Any]:
    return list(jaxpr.out_avals), jaxpr.effects


def _planned_in_batches(operands: Any, axes: Any, *, jaxpr: Any, differentiated: Any) -> Any:
    def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(lambda *given: list(function(*given)), in_axes=tuple(axes))

    whole = jax.make_jaxpr(mapped(as_function(jaxpr)))(*map(jax.typeof, operands))
    found = until_differentiated(whole, mapped(differentiated), operands)
    return found, [0] * len(found)


def _planned_transposed(cotangents: Any, *operands: Any, jaxpr: Any, differentiated: Any) -> Any:
    linear = [n for n, x in enumerate(operands) if ad.is_undefined_primal(x)]

    def function(*chosen: Any) -> list[Any]:
        given = list(operands)
        for n, x in zip(linear, chosen, strict=True):
            given[n] = x
        return as_function(jaxpr)(*given)

    transposed = jax.linear_transpose(function, *(operands[n].aval for n in linear))
    found = transposed([ad.instantiate_zeros(x) for x in cotangents])
    results: list[Any] = [None] * len(operands)
    for n, x in zip(linear, found, strict=True):
        results[n] = x
    return results


planned_p.def_impl(_run_plain)
planned_p.def_effectful_abstract_eval(_planned_results)
batching.primitive_batchers[planned_p] = _planned_in_batches
ad.primitive_transposes[planned_p] = _planned_transposed
mlir.register_lowering(planned_p, mlir.lower_fun(_run_plain))


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
