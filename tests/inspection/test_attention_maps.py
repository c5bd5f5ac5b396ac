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


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('depth', [1, 3])
def test_rollout_is_the_naive_product(prefix, depth):
  weights = _random(depth, batch=3, heads=3, length=prefix + 6)
  maps = attention_maps.rollout(np.float32(weights), prefix)
  assert maps.dtype == np.float32
  np.testing.assert_allclose(maps, _naive_rollout(weights, prefix), atol=1e-6)


@pytest.mark.parametrize('prefix', [0, 1])
def test_distance_is_the_naive_mean(prefix):
  weights = _random(2, batch=3, heads=3, length=prefix + 6)
  expected = _naive_distance(weights, prefix, (2, 3), (8, 30))
  apart = attention_maps.patch_distances((2, 3), (8, 30))
  found = attention_maps.sum_distances(
    np.float32(weights), np.float32(apart), prefix
  )
  np.testing.assert_allclose(found / 3, expected, rtol=1e-5)
