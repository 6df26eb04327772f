"""Functions under plans that save compressed residuals, and arrays on which derivatives jump."""

import jax
import jax.numpy as jnp
import numpy as np
from emission import Case, Flat, emitted, flat, graph_and_stages

from monet_jax.compiler.backend import Backend
from monet_jax.ir import gradient
from monet_jax.ir import program as program_module
from monet_jax.ir.stage import Differentiation
from monet_jax.operators import Context, rewriter, selected
from monet_jax.tracing.passes.draft import Listing
from monet_jax.tracing.pipeline import list_program
from monet_jax.transformer import names
from planners import Graph, Region
from planners.regions.simple_plans import saving_codes


def saving_results(graph: Graph) -> list[Region]:
    """Regions that save all that is no code, and the selectors by which masks come from results."""
    regions = []
    for s, stage in enumerate(graph.stages):
        values = [
            value
            for op in stage.forward
            for value in (graph.values[i] for i in op.outputs)
            if not (op.optional and value.nbytes)
        ]
        regions.append(Region(s, s, tuple(v.name for v in values if v.savable)))
    return regions


def planned(function, *args, regions=saving_codes):
    """The function of these arguments under such a plan, and its graph."""
    made = flat(Case(function, args))
    graph, staged = graph_and_stages(made)
    found = emitted(made, graph, staged, regions(graph))

    def run(*args):
        (result,) = found.function(*args)
        return result

    return run, found


#: Numbers at which derivatives jump, or are none.
AWKWARD = [0.0, -0.0, 1.0, -1.0, 6.0, 3.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 1e30, 5.9999]


def awkward(shape, dtype, seed=0):
    """An array of awkward and ordinary numbers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 3
    at = rng.random(shape) < 0.4
    x[at] = rng.choice(AWKWARD, size=int(at.sum()))
    return jnp.asarray(x, dtype)


def layered(function):
    """What `function` reads and returns is in memory: the barriers stand for products.

    There is no product that a compiler may contract with a sum, here so and there not.
    """
    fixed = jax.lax.optimization_barrier

    def loss(x, w):
        for _ in range(2):
            x = fixed(function(fixed(x + w)))
        return x

    return loss


def pulled(function, *args):
    """Value and gradients; the last argument is the cotangent."""
    *primals, ct = args
    value, pull = jax.vjp(function, *primals)
    return value, *pull(ct)


def same(ours, plain):
    """Equal bit for bit but for the sign and payload of what is no number."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a[a == a]), np.signbit(b[b == b]))


def rewritten(operator, backend, function, *args):
    """The function as the planner sees it with one operator, and its flat program."""
    rewrite = rewriter(selected([operator]), Context(backend))
    program = program_module.flatten(jax.make_jaxpr(function)(*args), rewrite=rewrite)

    def run(*inputs):
        env = dict(zip(program.inputs, inputs, strict=True))
        names.run_named(program.equations, env, {}, set())
        (output,) = program.outputs
        return env[output]

    return run, program


def program_with_indices(function, *args, chosen=("mask", "narrow")):
    """The function and its flat program by some operators."""
    rewrite = rewriter(selected(chosen), Context(Backend(fuses_gradients=True)))
    floats = [n for n, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating)]

    def covered(program) -> Differentiation:
        return gradient.derivative_of(program, [n in floats for n in range(len(args))], False)

    jaxpr = jax.make_jaxpr(lambda *args: [function(*args)])(*args)
    program = list_program(Listing(jaxpr, rewrite, False, rewrite.programs, covered))
    return Flat(lambda *args: [function(*args)], args, tuple(floats), program)


def planned_with_indices(function, *args, regions=saving_codes, **options):
    """The function under a plan, and its parts."""
    made = program_with_indices(function, *args, **options)
    graph, staged = graph_and_stages(made)
    found = emitted(made, graph, staged, regions(graph))
    return lambda *args: found.function(*args)[0], found
