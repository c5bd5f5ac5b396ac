"""Guards: dropout's rate and scale, independent masks, images as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.shared import Dropout, check_images


def _drop(rate, x, rng='threefry2x32'):
  key = jax.random.key(0, impl=rng)
  return jax.jit(Dropout(rate).apply)({}, x, rngs={'dropout': key})


@pytest.mark.parametrize('rng', ['threefry2x32', 'rbg'])
@pytest.mark.parametrize('rate', [0.001, 0.1, 0.75])
def test_rate_and_scale(rate, rng):
  rows, units = 5, 400_000
  y = np.asarray(_drop(rate, jnp.full((rows, units), 3.0), rng))
  kept = y != 0
  np.testing.assert_allclose(y[kept], 3 / (1 - rate), rtol=2e-5)
  # Six standard deviations.
  np.testing.assert_allclose(
    kept.mean(1), 1 - rate, atol=6 * (rate * (1 - rate) / units) ** 0.5
  )
  # Masks of any two rows are independent, also if they share random numbers.
  correlation = np.corrcoef(kept) - np.eye(rows)
  assert np.abs(correlation).max() < 6 / units**0.5


def test_keeps_shape_dtype_and_gradient():
  for shape in [(1,), (3, 2), (4, 5, 6, 7)]:
    x = jnp.ones(shape, jnp.bfloat16)
    y, pull = jax.vjp(lambda x: _drop(0.5, x), x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(pull(y)[0], y * 2)


@pytest.mark.parametrize(
  'module', [Dropout(0.5, deterministic=True), Dropout(0)]
)
def test_changes_nothing_and_needs_no_key(module):
  x = jnp.arange(4.0)
  np.testing.assert_array_equal(module.apply({}, x), x)


def test_masks_do_not_depend_on_the_mesh():
  x = jnp.ones((16, 32))
  mesh = jax.make_mesh((8,), ('data',))
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  split = _drop(0.5, jax.device_put(x, rows))
  assert split.sharding.is_equivalent_to(rows, 2)
  np.testing.assert_array_equal(split, _drop(0.5, x))


@pytest.mark.parametrize(
  'images', [jnp.zeros((8, 8, 3)), jnp.zeros((1, 8, 8, 3), 'uint8')]
)
def test_other_images_are_refused(images):
  with pytest.raises(ValueError, match=r'float \[batch, height, width, chan'):
    check_images(images)
