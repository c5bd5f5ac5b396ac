"""Guards: rollout and mean distance equal naive loops and known numbers."""

import math

import numpy as np
import pytest

from vit_jax.inspection import attention_maps


def _random(depth, batch, heads, length, seed=0):
  """Softmax weights [depth, B, H, L, L], float64."""
  rng = np.random.default_rng(seed)
  weights = rng.gamma(0.3, size=(depth, batch, heads, length, length))
  return weights / weights.sum(axis=-1, keepdims=True)


def _naive_rollout(weights, prefix):
  """§D.8: [B, N], from one product of whole matrices."""
  mixed = weights.mean(axis=2) + np.eye(weights.shape[-1])
  mixed /= mixed.sum(axis=-1, keepdims=True)
  product = mixed[0]
  for block in mixed[1:]:
    product = block @ product
  rows = product[:, :1] if prefix else product
  return rows.mean(axis=1)[:, prefix:]


def _naive_distance(weights, prefix, grid, image_size):
  """§D.7 with a loop over all pairs of patches."""
  total = np.zeros(weights.shape[:3])
  for q, k in np.ndindex(math.prod(grid), math.prod(grid)):
    apart = np.subtract(np.unravel_index(q, grid), np.unravel_index(k, grid))
    distance = np.hypot(*(apart * image_size / np.array(grid)))
    total += weights[..., prefix + q, prefix + k] * distance
  return total.mean(axis=1) / math.prod(grid)


def _pieces(weights):
  return (weights[:, rows].astype(np.float32) for rows in ([0, 1], [2]))


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('depth', [1, 3])
def test_rollout_is_the_naive_product(prefix, depth):
  weights = _random(depth, batch=3, heads=3, length=prefix + 6)
  maps = attention_maps.rollout(
    _pieces(weights), num_prefix_tokens=prefix, grid=(2, 3)
  )
  assert maps.shape == (3, 2, 3)
  assert maps.dtype == np.float32
  np.testing.assert_allclose(
    maps.reshape(3, 6), _naive_rollout(weights, prefix), atol=1e-6
  )


@pytest.mark.parametrize('prefix', [0, 1])
def test_distance_is_the_naive_mean(prefix):
  weights = _random(2, batch=3, heads=3, length=prefix + 6)
  layout = dict(grid=(2, 3), num_prefix_tokens=prefix, image_size=(8, 30))
  expected = _naive_distance(weights, prefix, (2, 3), (8, 30))
  for given in (weights.astype(np.float32), _pieces(weights)):
    found = attention_maps.mean_attention_distance(given, **layout)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_another_grid_is_refused():
  weights = _random(2, batch=1, heads=1, length=7)
  with pytest.raises(ValueError, match='grid of 2x3'):
    attention_maps.rollout(weights, num_prefix_tokens=0, grid=(2, 3))
