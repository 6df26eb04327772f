"""Slices of an axis: together they are the array, and each has a share of every block."""

import jax.numpy as jnp
import numpy as np
import pytest

from monet_jax.operators.tiling.division import Division


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("blocks", [1, 3])
def test_slices_are_taken_and_put_back(blocks, axis):
    division = Division(2, blocks)
    x = jnp.arange(5 * 12 * 7).reshape(5, 12, 7)
    x = jnp.moveaxis(x, 1, axis)
    stacked = division.stacked(x, axis)
    assert stacked.shape[1:] == division.resized(x.shape, axis)
    np.testing.assert_array_equal(division.joined(stacked, axis), x)
    lying = np.moveaxis(np.asarray(x), axis, 0).reshape(blocks, 2, -1)
    for k in range(2):
        found = division.slice_of(x, axis, k)
        np.testing.assert_array_equal(found, stacked[k])
        rows = np.moveaxis(np.asarray(found), axis, 0).reshape(blocks, -1)
        np.testing.assert_array_equal(rows, lying[:, k])
    other = division.with_slice(x, -stacked[1], axis, 1)
    np.testing.assert_array_equal(division.slice_of(other, axis, 0), stacked[0])
    np.testing.assert_array_equal(division.slice_of(other, axis, 1), -stacked[1])


def test_an_axis_is_divided_where_each_block_is():
    assert Division(4).divides(12) and not Division(4, 2).divides(12)
    assert Division(2, 3).divides(12) and not Division(1).divides(1)
