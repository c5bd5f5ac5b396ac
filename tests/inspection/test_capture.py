"""Guards: captured attention weights match NumPy and the model's own output."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from tests.models import stacking
from vit_jax import models
from vit_jax.inspection import capture

SIZE = (16, 16)  # 4x4 patches.


def _images(count=2, seed=1):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.uniform(-1, 1, (count, *SIZE, 3)), jnp.float32)


def _params(model):
  """Random parameters whose softmaxes are neither flat nor sharp."""
  return jax.tree.map(lambda a: 0.3 * a, tiny.params(model, SIZE))


def _softmax(scores):
  scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return scores / scores.sum(axis=-1, keepdims=True)


def _layer_norm(x, params):
  centred = x - x.mean(-1, keepdims=True)
  deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
  return centred / deviation * params['scale'] + params['bias']


def _attention_input(params, images, model):
  """Returns the input and parameters of the first attention, in float64."""
  _, out = jax.jit(model.apply)({'params': params}, images)
  block = jax.tree.map(np.float64, params['Transformer']['encoderblock_0'])
  y = _layer_norm(np.float64(out['embedded']), block['LayerNorm_0'])
  return y, block['MultiHeadDotProductAttention_0']


def _naive(y, params):
  """Computes the weights [B, H, L, L] with loops."""
  query, key = (
    np.einsum('bld,dhk->blhk', y, params[name]['kernel']) + params[name]['bias']
    for name in ('query', 'key')
  )
  batch, length, heads, width = query.shape
  scores = np.zeros((batch, heads, length, length))
  for b, h, q, k in np.ndindex(scores.shape):
    keys = key[b, k, h]
    if 'relative_embedding' in params:
      table = params['relative_embedding']
      keys = keys + table[q - k + length - 1, h % table.shape[1]]
    scores[b, h, q, k] = query[b, q, h] @ keys / np.sqrt(width)
  return _softmax(scores)


@pytest.mark.gate
@pytest.mark.parametrize(
  'overrides',
  [
    {},
    {'pooling': 'map'},
    {'position_embedding': 'relative_per_head'},
  ],
  ids=str,
)
def test_weights_are_a_naive_recomputation_of_one_block(overrides):
  model = tiny.vit(depth=1, **overrides)
  params, images = _params(model), _images()
  weights = capture.attention_weights(model, params, images)
  length = 16 + (model.pooling == 'token')
  assert weights.shape == (1, 2, 2, length, length)
  assert weights.dtype == jnp.float32
  np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
  y, attention = _attention_input(params, images, model)
  np.testing.assert_allclose(weights[0], _naive(y, attention), atol=1e-5)


@pytest.mark.parametrize(
  'site', ['every_layer', pytest.param('stem', marks=pytest.mark.gate)]
)
def test_weights_times_values_are_the_output_of_each_block(site):
  model = tiny.vit(depth=3, position_site=site)
  params, images = _params(model), _images()
  weights = capture.attention_weights(model, params, images)
  assert weights.shape == (3, 2, 2, 17, 17)
  capture_some = functools.partial(
    model.apply,
    capture_intermediates=lambda module, _: (
      module.name in ('LayerNorm_0', 'MultiHeadDotProductAttention_0')
    ),
    mutable=['intermediates'],
  )
  _, kept = jax.jit(capture_some)({'params': params}, images)
  kept = kept['intermediates']['Transformer']
  for i in range(3):
    block, of = f'encoderblock_{i}', 'MultiHeadDotProductAttention_0'
    attention = params['Transformer'][block][of]
    (y,) = kept[block]['LayerNorm_0']['__call__']
    (expected,) = kept[block][of]['__call__']
    values = jnp.einsum('bld,dhk->blhk', y, attention['value']['kernel'])
    values += attention['value']['bias']
    mixed = jnp.einsum('bhqt,bthk->bqhk', weights[i], values)
    out = jnp.einsum('bqhk,hkd->bqd', mixed, attention['out']['kernel'])
    np.testing.assert_allclose(
      out + attention['out']['bias'], expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
  'implementation, pooling',
  [
    pytest.param('plain', 'token', marks=pytest.mark.gate),
    ('lanes', 'map'),
  ],
)
def test_capture_changes_neither_logits_nor_weights(implementation, pooling):
  model = tiny.vit(attention_implementation=implementation, pooling=pooling)
  params, images = _params(model), _images()
  weights, logits = capture.forward(model, params, images)
  expected, _ = jax.jit(model.apply)({'params': params}, images)
  assert np.abs(expected).max() > 0.1
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
  plain = model.clone(attention_implementation='plain')
  np.testing.assert_allclose(
    weights, capture.attention_weights(plain, params, images), atol=1e-6
  )


def test_scanned_and_rematerialised_models_have_the_same_weights():
  model = tiny.vit(depth=3)
  params, images = _params(model), _images()
  expected = capture.attention_weights(model, params, images)
  assert not np.allclose(expected[0], expected[1])
  scanned = capture.attention_weights(
    tiny.vit(depth=3, scan=True, remat='full'),
    stacking.stack_blocks(params),
    images,
  )
  np.testing.assert_array_equal(scanned, expected)


def test_pieces_are_small_and_together_all(monkeypatch):
  model = tiny.vit()
  params, images = _params(model), _images(5)
  # An image has 2 blocks x 2 heads x 17 x 17 weights, in all 4,624 bytes.
  monkeypatch.setattr(capture, '_LIMIT', 2 * 4624)
  pieces = list(capture.in_pieces(model, params, images))
  assert [piece.shape[1] for piece in pieces] == [2, 2, 1]
  np.testing.assert_allclose(
    np.concatenate(pieces, axis=1),
    capture.attention_weights(model, params, images),
    atol=1e-6,
  )
  monkeypatch.setattr(capture, '_LIMIT', 1)
  assert len(list(capture.in_pieces(model, params, images))) == 5


@pytest.mark.parametrize(
  'model, message',
  [
    (
      models.build('Axial-ViT-B/16', num_classes=2, **tiny.SIZES),
      "attention='axial' has no weights between all tokens",
    ),
    (tiny.bit(), 'BiT has no Transformer blocks'),
    (tiny.axial_resnet(), 'AxialResNet has no Transformer blocks'),
  ],
)
def test_models_without_such_weights_are_refused(model, message):
  with pytest.raises(ValueError, match=message):
    capture.attention_weights(model, {}, _images())
  with pytest.raises(ValueError, match=message):
    next(capture.in_pieces(model, {}, _images()))
