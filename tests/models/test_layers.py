"""Guards the features of every layer, with the model's own outputs."""

import jax
import numpy as np
import pytest

from vit_jax import models, sharding
from vit_jax.models import layers
from vit_jax.models.shared import normalize

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 8, 12, 3), np.uint8)
SIZES = dict(width=16, depth=2, heads=2, mlp_dim=24, patch_size=4)
BIT = dict(blocks=(1, 1), width_factor=0.25)


def _model(name='ViT-B/16', **overrides):
  sizes = SIZES if name.startswith('ViT') else BIT
  return models.build(name, num_classes=5, **sizes | overrides)


def _params(model):
  """Returns random parameters, so that no layer has the features of another."""
  shapes = jax.eval_shape(
    lambda: model.init(jax.random.key(0), normalize(IMAGES[:1]))['params']
  )
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes
  )


def _features(model, params, layer, devices=8):
  compiled = layers.compiled(model, sharding.make_mesh(devices), layer)
  return np.asarray(compiled(params, IMAGES))


@pytest.mark.gate
@pytest.mark.parametrize('pooling', ['token', 'gap', 'map'])
def test_layers_of_a_vit_are_pooled_as_the_model_pools(pooling):
  model = _model(pooling=pooling)
  params = _params(model)
  (logits, out), kept = model.apply(
    {'params': params},
    normalize(IMAGES),
    capture_intermediates=lambda module, _: 'block' in (module.name or ''),
  )
  assert layers.names(model) == (
    ['pre_logits', 'block_0', 'block_1', 'encoded', 'logits']
  )
  (tokens,) = kept['intermediates']['Transformer']['encoderblock_0']['__call__']
  if pooling != 'map':
    expected = tokens[:, 0] if pooling == 'token' else tokens.mean(axis=1)
    found = _features(model, params, 'block_0')
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  for layer in ('pre_logits', 'encoded'):  # No layer lies between them.
    found = _features(model, params, layer)
    np.testing.assert_allclose(found, out['pre_logits'], rtol=1e-4, atol=1e-5)
  found = _features(model, params, 'logits')
  np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.gate
def test_layers_of_a_resnet_are_means_of_feature_maps():
  model = _model('BiT-R50x1')
  params = _params(model)
  _, out = model.apply({'params': params}, normalize(IMAGES))
  assert layers.names(model) == (
    ['pre_logits', 'stage_1', 'stage_2', 'encoded', 'logits']
  )
  found = _features(model, params, 'encoded')
  np.testing.assert_allclose(found, out['pre_logits'], rtol=1e-4, atol=1e-5)
  assert _features(model, params, 'stage_1').shape == (8, 64)
  assert _features(model, params, 'stage_2').shape == (8, 128)


def test_an_unknown_layer_is_refused():
  with pytest.raises(
    ValueError, match=r"no layer 'block_2'; choose one of pre_logits, block_0,"
  ):
    layers.compiled(_model(), sharding.make_mesh(1), 'block_2')
  model = _model().clone(patch_outputs=3)
  with pytest.raises(ValueError, match=r"no layer 'logits'; .*, encoded\.$"):
    layers.check(model, 'logits')
