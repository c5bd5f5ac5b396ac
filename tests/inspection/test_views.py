"""Guards: filters and similarities of known embeddings are as expected."""

import types

import numpy as np
import pytest

from tests.interop import tiny
from tests.models import stacking
from vit_jax.inspection import views


def _filters(kernel):
  params = {'embedding': {'kernel': kernel}}
  return views.filters(types.SimpleNamespace(params=params))


def _similarity(params, size=(8, 8)):
  """Returns the similarities in a model with patches of 4 px."""
  of = types.SimpleNamespace(model=tiny.vit(), image_size=size, params=params)
  return views.position_similarity(of)


def test_filters_are_the_known_components_in_order_of_variance():
  variances = [1.0, 9.0, 4.0]
  rng = np.random.default_rng(0)
  components = np.linalg.qr(rng.normal(size=(12, 12)))[0][:3]
  # Amounts of each component in each filter: orthogonal, with mean 0.
  amounts = rng.normal(size=(64, 3))
  amounts = np.linalg.qr(amounts - amounts.mean(axis=0))[0] * np.sqrt(variances)
  filters = rng.normal(size=12) + amounts @ components  # [D, P * P * C]
  found = _filters(filters.T.reshape(2, 2, 3, 64))
  assert found.shape == (12, 2, 2, 3)
  for image, component in zip(found, components[[1, 2, 0]], strict=False):
    # The number of largest magnitude becomes 1.
    signed = component / component[np.abs(component).argmax()]
    np.testing.assert_allclose(image.ravel(), 0.5 + signed / 2, atol=1e-6)


def test_filters_are_scaled_for_display_with_zero_at_mid_grey():
  kernel = np.zeros((1, 4, 1, 2))
  kernel[0, :, 0, 0] = [0, 2, -4, 1]
  np.testing.assert_allclose(
    _filters(kernel)[0, 0, :, 0], [0.5, 0.25, 1.0, 0.375]
  )
  assert len(_filters(np.ones((4, 4, 3, 64)))) == 28


def _encoder(**tables):
  return {'Transformer': {'posembed_input': tables}}


@pytest.mark.parametrize('prefix', [0, 1])
def test_similarity_of_literal_vectors(prefix):
  vectors = [[1, 0], [0, 2], [3, 3], [-5, 0]]
  table = np.array([[[7, -7]] * prefix + vectors])
  found = _similarity(_encoder(pos_embedding=table))
  half = 0.5**0.5
  np.testing.assert_allclose(
    found,
    [
      [[[1, 0], [half, -1]], [[0, 1], [half, 0]]],
      [[[half, half], [1, -half]], [[-1, 0], [-half, 1]]],
    ],
    atol=1e-12,
  )


def test_similarity_of_a_2d_embedding_counts_its_column_and_its_row():
  x = np.array([[1, 0], [0, 1], [1, 0]])
  y = np.array([[1, 0], [0, 1]])
  cls = np.array([[9, 9, 9, 9]])
  found = _similarity(
    _encoder(x_embedding=x, y_embedding=y, cls_embedding=cls), (8, 12)
  )
  # An equal column gives 0.5, and so does an equal row.
  np.testing.assert_allclose(found[0, 0], [[1, 0.5, 1], [0.5, 0, 0.5]])
  np.testing.assert_allclose(found[1, 1], [[0, 0.5, 0], [0.5, 1, 0.5]])


@pytest.mark.parametrize('scan', [False, True])
def test_of_blocks_with_their_own_tables_the_first_counts(scan):
  params = tiny.params(tiny.vit(position_site='every_layer'))
  table = params['Transformer']['encoderblock_0']['posembed_input']
  expected = _similarity(_encoder(**table))
  if scan:
    params = stacking.stack_blocks(params)
  np.testing.assert_allclose(_similarity(params), expected, rtol=1e-6)


@pytest.mark.parametrize('kind', ['none', 'sincos2d', 'relative'])
def test_models_without_learned_positions_are_refused(kind):
  with pytest.raises(ValueError, match='no learned position embeddings'):
    _similarity(tiny.params(tiny.vit(position_embedding=kind)))
