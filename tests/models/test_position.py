"""Guards position embeddings: resizing equals SciPy; wrong sizes are errors."""

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from vit_jax import models
from vit_jax.models import position

# Sides of the paper's token grids at 224, 384, 512 and 518 px.
SIDES = (7, 12, 14, 16, 24, 27, 32, 37)


def _table(tokens, width=2, dtype=np.float64):
  return np.random.default_rng(0).normal(size=(1, tokens, width)).astype(dtype)


def _zoomed(grid, new_grid, **kwargs):
  factors = (new_grid[0] / grid.shape[0], new_grid[1] / grid.shape[1], 1)
  return ndimage.zoom(grid, factors, order=1, **kwargs)


def test_resize_aligns_the_end_samples():
  table = np.arange(4.0).reshape(1, 4, 1)
  resized = position.resize(
    table, old_grid=(1, 4), new_grid=(1, 7), num_prefix_tokens=0
  )
  assert resized.ravel().tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]


@pytest.mark.parametrize('old', SIDES)
def test_resize_equals_scipy_on_the_papers_grids(old):
  table = _table(old * old + 1)
  for new in (side for side in SIDES if side >= old):
    resized = position.resize(table, new_grid=(new, new), num_prefix_tokens=1)
    expected = _zoomed(table[0, 1:].reshape(old, old, 2), (new, new))
    np.testing.assert_array_equal(resized[:, 0], table[:, 0])
    np.testing.assert_allclose(
      resized[0, 1:].reshape(new, new, 2), expected, atol=1e-12
    )


@pytest.mark.parametrize(
  'shape, kwargs, message',
  [
    (
      (1, 7, 2),
      {},
      r'6 patch tokens \(7 minus 1 prefix\) are not a square grid: give old_g',
    ),
    ((2, 5, 2), {}, r'the shape \(2, 5, 2\), expected \(1, tokens, width\)'),
    ((1, 1, 2), {}, r'0 patch tokens \(1 minus 1 prefix\) are not a square'),
    (
      (1, 7, 2),
      {'old_grid': (2, 4)},
      r'old_grid 2x4 has 8 tokens, but .* has 6 \(7 minus 1 prefix\)',
    ),
  ],
)
def test_resize_rejects(shape, kwargs, message):
  with pytest.raises(ValueError, match=message):
    position.resize(
      np.zeros(shape), new_grid=(2, 2), num_prefix_tokens=1, **kwargs
    )


@pytest.mark.parametrize(
  'offsets, expected',
  [
    (1, [2]),
    (3, [0, 2, 8]),
    (5, [0, 1, 2, 5, 8]),
    (9, [0, 0.5, 1, 1.5, 2, 3.5, 5, 6.5, 8]),
  ],
)
def test_resize_relative_keeps_offset_0_in_the_middle(offsets, expected):
  table = np.array([[0, 0], [1, 10], [2, 20], [5, 50], [8, 80]], np.float32)
  resized = position.resize_relative(table, offsets)
  assert resized.dtype == np.float32
  assert resized.tolist() == [[x, 10 * x] for x in expected]
  assert position.resize_relative(table[:1] + 7, offsets).tolist() == (
    [[7, 7]] * offsets
  )


def _tiny(pooling):
  return models.build(
    'ViT-B/4',
    num_classes=3,
    width=8,
    depth=1,
    heads=2,
    mlp_dim=8,
    pooling=pooling,
  )


@pytest.mark.parametrize('pooling', ['token', 'gap'])
def test_another_image_size_needs_resized_parameters(pooling):
  model = _tiny(pooling)
  small, large = (
    jax.ShapeDtypeStruct((1, 8, width, 3), jnp.float32) for width in (8, 12)
  )

  def zeros(images):
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    return jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes)

  with pytest.raises(flax.errors.ScopeParamShapeError, match='pos_embedding'):
    jax.eval_shape(model.apply, zeros(small), large)
  variables = zeros(small)
  embedding = variables['params']['Transformer']['posembed_input']
  embedding['pos_embedding'] = position.resize(
    embedding['pos_embedding'],
    new_grid=(2, 3),
    num_prefix_tokens=int(pooling == 'token'),
  )
  jax.eval_shape(model.apply, variables, large)
