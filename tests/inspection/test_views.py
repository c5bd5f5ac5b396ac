"""Guards: filters and similarities of known embeddings are as expected.

And components of patches, and attention of registers.
"""

import types

import numpy as np
import pytest

from tests.interop import tiny
from tests.models import stacking
from vit_jax.inspection import capture, views
from vit_jax.models import layers
from vit_jax.models.shared import normalize

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3), np.uint8)


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


def _random(**options):
  model = tiny.vit(**options)
  params = tiny.params(model, (8, 12))
  return types.SimpleNamespace(model=model, params=params, image_size=(8, 12))


@pytest.mark.parametrize('options', [{'registers': 2}, {'pooling': 'gap'}])
def test_components_of_patches_are_those_of_an_svd(options):
  of = _random(**options)
  x = layers.tokens(of.model, of.params, PIXELS, ['encoded'])[0].patches
  x = np.float64(x).reshape(18, 16)
  x -= x.mean(axis=0)
  found = views.patch_pca(of, PIXELS)
  assert found.shape == (3, 2, 3, 3)
  for i, direction in enumerate(np.linalg.svd(x)[2][:3]):
    values = x @ direction * np.sign(direction[np.abs(direction).argmax()])
    expected = (values - values.min()) / (values.max() - values.min())
    np.testing.assert_allclose(found[..., i].ravel(), expected, atol=1e-5)


def test_two_kinds_of_patches_have_one_component():
  images = np.zeros_like(PIXELS)
  images[:, :, 4:] = 200
  found = views.patch_pca(_random(position_embedding='none'), images)
  first = np.abs(found[..., 0] - found[0, 0, 0, 0])
  np.testing.assert_allclose(first, [[[0, 1, 1]] * 2] * 3, atol=1e-4)
  np.testing.assert_array_equal(found[..., 1:], 0.5)


def test_registers_show_their_rows_of_the_last_block():
  of = _random(registers=2, distillation_token=True)
  weights = capture.attention_weights(of.model, of.params, normalize(PIXELS))
  expected = np.asarray(weights[-1]).mean(axis=1)[:, 2:4, 4:]
  found = views.registers(of, PIXELS)
  np.testing.assert_allclose(found, expected.reshape(3, 2, 2, 3), atol=1e-6)
