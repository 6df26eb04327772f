"""Only what its own update alone reads, and what comes back at its place, may leave the device."""

import jax
import jax.numpy as jnp
import optax
import pytest
from hosted import movable, small_counts
from steps import STEPS, WIDTH, layers, loss, normal, plain, updated

X = normal(9, 64, WIDTH)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    small_counts(monkeypatch)


def moved(name: str) -> set[str]:
    case = STEPS[name]()
    return {leaf.path for leaf in movable(case.make(jax), case.state, case.batch)}


def test_moments_and_averages_can_move_and_parameters_cannot():
    moments = {f"args[0][1][0].{name}[{n}]" for name in ("mu", "nu") for n in range(3)}
    assert moved("plain") == moments
    assert moved("averaged") == moments | {f"args[0][2][{n}]" for n in range(3)}


def test_late_gradients_come_last():
    case = plain()
    leaves = movable(case.make(jax), case.state, case.batch)
    assert [leaf.path[-2] for leaf in leaves] == [*"221100"]
    assert {leaf.nbytes for leaf in leaves} == {WIDTH * WIDTH * 4}


def test_what_is_not_donated_or_updated_in_a_branch_stays():
    case = plain()
    assert movable(case.make(jax), case.state, case.batch, donated=()) == ()
    assert moved("every_second") == set()


def test_what_else_reads_it_keeps_it_on_the_device():
    sgd = optax.sgd(0.1, momentum=0.9)

    def step(state, x):
        new = updated(sgd, state, jax.grad(loss)(state[0], x))
        return new, jnp.sum(jax.tree.leaves(state[1])[0])  # the first leaf's sum is a metric

    found = movable(step, (layers(), sgd.init(layers())), X)
    assert {leaf.path[-3:] for leaf in found} == {"[1]", "[2]"}


def test_integers_and_keys_stay():
    def step(state, x):
        params, sums, keys = state
        gradient = jax.grad(loss)(params, x)
        sums = [s + jnp.sign(g).astype(s.dtype) for s, g in zip(sums, gradient, strict=True)]
        ups = jnp.resize(sums[0], keys.shape).astype(jnp.uint32)
        return (
            jax.tree.map(jnp.subtract, params, gradient),
            sums,
            jax.vmap(jax.random.fold_in)(keys, ups),
        )

    sums = [jnp.zeros_like(w, jnp.int32) for w in layers()]
    assert movable(step, (layers(), sums, jax.random.split(jax.random.key(0), 1024)), X) == ()


def test_states_of_one_shape_in_arguments_of_their_own_keep_their_places():
    def step(params, first, second, x):
        gradient = jax.grad(loss)(params, x)
        first = jax.tree.map(lambda m, g: 0.9 * m + g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.9 * v + g * g, second, gradient)
        params = jax.tree.map(lambda w, m, v: w - m / (1 + v), params, first, second)
        return params, first, second

    zeros = jax.tree.map(jnp.zeros_like, layers())
    found = movable(step, layers(), zeros, zeros, X, donated=(0, 1, 2))
    assert {(leaf.argument, leaf.result) for leaf in found} == {(n, n) for n in range(3, 9)}
