"""Products of several axes run as products of two matrices, of which XLA:CPU copies nothing."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from emission import assert_same, reference
from exact_operators import rewritten
from thinning import thinned

from monet_jax.compiler.backend import Backend, backend_of
from monet_jax.operators import matrices
from monet_jax.operators.context import Context

CPU = backend_of("cpu")
SIZES = dict(b=2, s=3, d=8, n=5, h=4, k=6, v=7)
#: Products by the axes of their operands and of their results.
MATRICES = [
    *("bsd,dn->bsn", "bsd,dhk->bshk", "bshk,hkd->bsd", "bsd,vd->bsv", "dbs,dn->bsn"),
    *("bd,dhk->bhk", "bsd,bsn->dn"),
]
OTHERS = ["bs,bshk->hk", "bsd,bdn->bsn", "bds,dn->bsn", "bshk,khd->bsd", "bs,sn->bn", "bsd,d->bs"]


def product(axes):
    """The product, and operands for it."""
    operands = axes.partition("->")[0].split(",")
    keys = jax.random.split(jax.random.key(0), 2)
    shapes = [tuple(SIZES[a] for a in of_one) for of_one in operands]
    args = [jax.random.normal(*pair) for pair in zip(keys, shapes, strict=True)]
    return lambda x, w: jnp.einsum(axes, x, w, precision="highest"), args


def ranks(program):
    """How many axes the operands of products have."""
    found = (e for e in program.equations if e.primitive == "dot_general")
    return {len(v.aval.shape) for e in found for v in e.eqn.invars}


def gradients(function):
    return jax.value_and_grad(lambda *args: (jnp.sin(function(*args)) ** 2).sum(), (0, 1))


@pytest.mark.parametrize(
    ("axes", "is_mapped"),
    thinned(
        itertools.product(MATRICES, [False, True]),
        "bsd,dhk->bshk-True",
        "bshk,hkd->bsd-True",
        "bsd,bsn->dn-True",
        "bd,dhk->bhk-True",
    ),
)
def test_values_and_gradients_are_those_of_jax(axes, is_mapped):
    function, (x, w) = product(axes)
    ours, program = rewritten("matrix", CPU, function, x, w)
    assert ranks(program) == {2}
    runs = [gradients(f) for f in (ours, function)]
    if is_mapped:
        runs, x = [jax.vmap(run, in_axes=(0, None)) for run in runs], jnp.stack([x, 2 * x])
    assert_same(jax.jit(runs[0])(x, w), *reference(runs[1], (x, w)))


@pytest.mark.parametrize("axes", OTHERS)
def test_what_is_no_product_of_matrices_is_left_alone(axes):
    function, args = product(axes)
    (equation,) = (e for e in jax.make_jaxpr(function)(*args).eqns if "dot" in e.primitive.name)
    assert matrices.rewrite(equation, Context(CPU)) is None


def test_only_one_device_of_a_compiler_that_copies_is_concerned():
    function, args = product("bsd,dn->bsn")
    (equation,) = jax.make_jaxpr(function)(*args).eqns
    assert matrices.rewrite(equation, Context(CPU)) is not None
    assert matrices.rewrite(equation, Context(CPU, devices=2)) is None
    for other in (Backend(), backend_of("gpu:h100"), backend_of("tpu:v5e")):
        assert matrices.rewrite(equation, Context(other)) is None


def test_a_product_keeps_its_precision_and_the_dtype_of_its_result():
    def function(x, w):
        dims = ((2,), (0,)), ((), ())
        kind = jax.lax.Precision.HIGHEST, jnp.float32
        return jax.lax.dot_general(x, w, dims, *kind)

    x, w = jnp.ones((2, 3, 8), jnp.bfloat16), jnp.ones((8, 5), jnp.bfloat16)
    ours, program = rewritten("matrix", CPU, function, x, w)
    (found,) = (e.eqn for e in program.equations if e.primitive == "dot_general")
    assert found.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2
    assert ours(x, w).dtype == jnp.float32


def test_xla_copies_no_cotangent_for_the_gradient_of_weights():
    """Fails where XLA:CPU no longer copies; then the operator is of no use."""

    def loss(w, x):
        return jnp.sin(x @ w).sum()

    w, x = jnp.ones((64, 192)), jnp.ones((4, 128, 64))
    ours, _ = rewritten("matrix", CPU, loss, w, x)
    compiled = (jax.jit(jax.grad(f, (0, 1))).lower(w, x).compile() for f in (loss, ours))
    plain, without_copy = (x.memory_analysis().temp_size_in_bytes for x in compiled)
    cotangent_bytes = 4 * 4 * 128 * 192
    assert plain - without_copy >= cotangent_bytes
