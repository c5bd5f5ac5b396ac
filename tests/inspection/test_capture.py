"""Guards: captured attention weights match the model's own output."""

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


@pytest.mark.parametrize(
  'overrides',
  [
    {'position_site': 'every_layer'},
    pytest.param({'pooling': 'map'}, marks=pytest.mark.gate),
    pytest.param(
      {'position_embedding': 'relative_per_head'}, marks=pytest.mark.gate
    ),
  ],
  ids=str,
)
def test_weights_times_values_are_the_output_of_each_block(overrides):
  model = tiny.vit(**overrides)
  params, images = _params(model), _images()
  weights = capture.attention_weights(model, params, images)
  length = 16 + (model.pooling == 'token')
  assert weights.shape == (2, 2, 2, length, length)
  assert weights.dtype == jnp.float32
  np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
  of = 'MultiHeadDotProductAttention_0'
  capture_some = functools.partial(
    model.apply,
    capture_intermediates=lambda module, _: module.name in ('LayerNorm_0', of),
    mutable=['intermediates'],
  )
  _, kept = jax.jit(capture_some)({'params': params}, images)
  kept = kept['intermediates']['Transformer']
  for i in range(2):
    block = f'encoderblock_{i}'
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


def test_capture_changes_neither_logits_nor_weights():
  plain = tiny.vit(attention_implementation='plain', pooling='map')
  model = plain.clone(attention_implementation='lanes', scan=True, remat='full')
  params, images = _params(plain), _images()
  stacked = stacking.stack_blocks(params)
  weights, logits = capture.forward(model, stacked, images)
  expected, _ = jax.jit(model.apply)({'params': stacked}, images)
  assert np.abs(expected).max() > 0.1
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
    weights, capture.attention_weights(plain, params, images), atol=1e-6
  )


@pytest.mark.parametrize(
  'model',
  [
    models.build('Axial-ViT-B/16', num_classes=2, **tiny.SIZES),
    *(tiny.bit(), tiny.axial_resnet()),
  ],
)
def test_models_without_such_weights_are_refused(model):
  with pytest.raises(ValueError, match='attention'):
    capture.attention_weights(model, {}, _images())
