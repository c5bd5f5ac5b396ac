"""Guards: filters and similarities of known embeddings are as expected."""

import numpy as np
import pytest

from tests.interop import tiny
from tests.models import stacking
from vit_jax.inspection import learned_embeddings


def _kernel(variances, patch=2, channels=3, width=64):
  """Makes a kernel from orthonormal components with the given variances.

  Returns:
    The kernel [P, P, C, D], and the components [components, P, P, C].
  """
  rng = np.random.default_rng(0)
  size = patch * patch * channels
  components = np.linalg.qr(rng.normal(size=(size, size)))[0][: len(variances)]
  # Amounts of each component in each filter: orthogonal, with mean 0.
  amounts = rng.normal(size=(width, len(variances)))
  amounts = np.linalg.qr(amounts - amounts.mean(axis=0))[0] * np.sqrt(variances)
  mean = rng.normal(size=size)
  filters = mean + amounts @ components  # [D, P * P * C]
  shape = (patch, patch, channels)
  return filters.T.reshape(*shape, width), components.reshape(-1, *shape)


def test_filters_are_the_known_components_in_order_of_variance():
  kernel, components = _kernel([1.0, 9.0, 4.0])
  found = learned_embeddings.filters(kernel, 3)
  assert found.shape == (3, 2, 2, 3)
  for image, component in zip(found, components[[1, 2, 0]], strict=True):
    # The number of largest magnitude becomes 1.
    signed = component / component.flat[np.abs(component).argmax()]
    np.testing.assert_allclose(image, 0.5 + signed / 2, atol=1e-6)


def test_filters_are_scaled_for_display_with_zero_at_mid_grey():
  kernel = np.zeros((1, 4, 1, 2))
  kernel[0, :, 0, 0] = [0, 2, -4, 1]
  np.testing.assert_allclose(
    learned_embeddings.filters(kernel, 1)[0, 0, :, 0], [0.5, 0.25, 1.0, 0.375]
  )


@pytest.mark.parametrize(
  'shape, components, message',
  [
    ((1, 1, 128, 16), 4, "A hybrid's kernel is applied to a feature map"),
    ((4, 4, 3, 16), 17, r'17 principal components .*: expected 1 to 16'),
    ((2, 2, 1, 16), 5, 'expected 1 to 4'),
    ((2, 2, 1, 16), 0, 'expected 1 to 4'),
  ],
)
def test_kernels_without_such_filters_are_refused(shape, components, message):
  with pytest.raises(ValueError, match=message):
    learned_embeddings.filters(np.ones(shape), components)


def _encoder(**tables):
  return {'Transformer': {'posembed_input': tables}}


@pytest.mark.parametrize('prefix', [0, 1])
def test_similarity_of_literal_vectors(prefix):
  vectors = [[1, 0], [0, 2], [3, 3], [-5, 0]]
  table = np.array([[[7, -7]] * prefix + vectors])
  found = learned_embeddings.position_similarity(
    _encoder(pos_embedding=table), (2, 2)
  )
  assert found.shape == (2, 2, 2, 2)
  half = 0.5**0.5
  np.testing.assert_allclose(found[0, 0], [[1, 0], [half, -1]], atol=1e-12)
  np.testing.assert_allclose(found[0, 1], [[0, 1], [half, 0]], atol=1e-12)
  np.testing.assert_allclose(
    found[1, 0], [[half, half], [1, -half]], atol=1e-12
  )


def test_similarity_of_a_2d_embedding_counts_its_column_and_its_row():
  x = np.array([[1, 0], [0, 1], [1, 0]])
  y = np.array([[1, 0], [0, 1]])
  cls = np.array([[9, 9, 9, 9]])
  found = learned_embeddings.position_similarity(
    _encoder(x_embedding=x, y_embedding=y, cls_embedding=cls), (2, 3)
  )
  # An equal column gives 0.5, and so does an equal row.
  np.testing.assert_allclose(found[0, 0], [[1, 0.5, 1], [0.5, 0, 0.5]])
  np.testing.assert_allclose(found[1, 1], [[0, 0.5, 0], [0.5, 1, 0.5]])


@pytest.mark.parametrize('scan', [False, True])
def test_each_block_has_its_own_similarity_where_it_has_its_own_table(scan):
  model = tiny.vit(position_site='every_layer')
  params = tiny.params(model)
  table = params['Transformer']['encoderblock_1']['posembed_input']
  expected = learned_embeddings.position_similarity(
    {'Transformer': {'posembed_input': table}}, (2, 2)
  )
  if scan:
    params = stacking.stack_blocks(params)
  assert learned_embeddings.own_blocks(params) == 2
  found = learned_embeddings.position_similarity(params, (2, 2), block=1)
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  for block in (None, 2, -1):
    with pytest.raises(ValueError, match=f'block is {block}, expected 0 to 1'):
      learned_embeddings.position_similarity(params, (2, 2), block=block)


@pytest.mark.parametrize('kind', ['none', 'sincos2d', 'relative'])
def test_models_without_learned_positions_are_refused(kind):
  params = tiny.params(tiny.vit(position_embedding=kind))
  with pytest.raises(ValueError, match='no learned position embeddings'):
    learned_embeddings.position_similarity(params, (2, 2))


def test_another_grid_is_refused():
  params = tiny.params(tiny.vit())
  with pytest.raises(ValueError, match='5 tokens, the grid is 3x3'):
    learned_embeddings.position_similarity(params, (3, 3))
  params = tiny.params(tiny.vit(position_embedding='2d'), (8, 16))
  with pytest.raises(ValueError, match='for 2x4, the grid is 4x2'):
    learned_embeddings.position_similarity(params, (4, 2))
