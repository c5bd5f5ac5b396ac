"""Guards the blocks' options: a NumPy form, and axial attention.

And the features of every layer, which are the model's own outputs.
"""

import functools
import math

import jax
import numpy as np
import pytest

from tests.interop import tiny
from tests.models import naive, stacking
from vit_jax import models, sharding
from vit_jax.inspection import capture
from vit_jax.models import attention, encoder, layers, model_options
from vit_jax.models.shared import normalize

LARGE = dict(qk_norm=True, qkv_bias=False, norm_bias=False)
SIZE, GRID = (8, 12), (2, 3)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (2, *SIZE, 3)).astype('f')
CLOSE = dict(rtol=1e-4, atol=1e-5)


def _params(model):
  """Returns parameters whose softmaxes are neither flat nor sharp."""
  return jax.tree.map(lambda a: 0.3 * a, tiny.params(model, SIZE))


@pytest.mark.parametrize(
  'options',
  [
    LARGE | {'parallel': True},
    {'norm_position': 'post', 'gelu': 'exact'},
    dict(norm='rms', qk_norm=True, mlp='swiglu', layer_scale=1.0),
    dict(rotary='axial', position_embedding='none', layer_scale=1.0),
    dict(rotary='mixed', norm='rms', norm_position='post'),
    dict(rotary='dinov3', rotary_base=9.0, parallel=True, mlp='swiglu'),
  ],
  ids=str,
)
def test_blocks_are_those_of_numpy(options):
  model = tiny.vit(**options)
  params = _params(model)
  _, out = jax.jit(model.apply)({'params': params}, IMAGES)
  transformer = jax.tree.map(np.float64, params['Transformer'])
  post = model.norm_position == 'post'
  x, weights = np.float64(out['embedded']), []

  def turn(heads, learned):
    if not model.rotary:
      return heads
    base = model.rotary_base or 100
    return naive.rotated(heads, GRID, model.rotary, base, learned)

  for i in range(model.depth):
    x, found = naive.block(
      x, transformer[f'encoderblock_{i}'], post, model.gelu, turn
    )
    weights.append(found)
  # No norm follows the last block if the block ends with one.
  assert ('encoder_norm' in transformer) != post
  if not post:
    x = naive.layer_norm(x, transformer['encoder_norm'], model.norm == 'rms')
  np.testing.assert_allclose(out['encoded'], x, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    capture.attention_weights(model, params, IMAGES), weights, atol=1e-5
  )


@pytest.mark.parametrize('axis', ['row', 'column'])
def test_axial_attention_is_dense_attention_with_a_mask(axis):
  x = RNG.normal(size=(2, 6, 16)).astype(np.float32)
  axial = attention.MultiHeadDotProductAttention(
    model_options.Options(depth=1, heads=2, mlp_dim=1), axis
  )
  variables = axial.init(jax.random.key(0), x, grid=GRID)
  params = jax.tree.map(np.asarray, variables['params'])
  query, key, value = (
    naive.dense(x, params[n], 'bld,dhk->blhk')
    for n in ('query', 'key', 'value')
  )
  place = np.indices(GRID).reshape(2, -1)[['row', 'column'].index(axis)]
  scores = np.einsum('bqhk,bthk->bhqt', query, key) / math.sqrt(8)
  scores = np.where(place[:, None] == place[None], scores, -np.inf)
  weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  mixed = np.einsum('bhqt,bthk->bqhk', weights, value)
  np.testing.assert_allclose(
    axial.apply(variables, x, grid=GRID),
    naive.dense(mixed, params['out'], 'bqhk,hkd->bqd'),
    atol=1e-5,
  )


def test_an_axial_block_attends_within_rows_then_columns():
  x = RNG.normal(size=(2, 6, 16)).astype(np.float32)
  options = model_options.options_of(tiny.vit(attention='axial', pooling='gap'))
  block = encoder.AxialBlock(options)
  call = functools.partial(jax.jit, static_argnames=('grid', 'train'))
  params = naive.random_params(block, x, grid=GRID, train=False)
  assert set(params) == {'row', 'column'}
  expected = x
  for axis in ('row', 'column'):
    expected = call(encoder.EncoderBlock(options, axis).apply)(
      {'params': params[axis]}, expected, grid=GRID, train=False
    )
  np.testing.assert_allclose(
    call(block.apply)({'params': params}, x, grid=GRID, train=False),
    expected,
    atol=1e-5,
  )


# Layers ----------------------------------------------------------------------

PIXELS = RNG.integers(0, 256, (8, *SIZE, 3), np.uint8)


def _features(model, params, layer):
  compiled = layers.compiled(model, sharding.make_mesh(8), layer)
  return np.asarray(compiled(params, PIXELS))


@pytest.mark.gate
@pytest.mark.parametrize('pooling', ['gap', 'map'])
def test_layers_of_a_vit_are_pooled_as_the_model_pools(pooling):
  model = tiny.vit(pooling=pooling)
  params = _params(model)
  (logits, out), kept = model.apply(
    {'params': params},
    normalize(PIXELS),
    capture_intermediates=lambda module, _: 'block' in (module.name or ''),
  )
  assert layers.names(model) == (
    ['pre_logits', 'block_0', 'block_1', 'encoded', 'logits']
  )
  (tokens,) = kept['intermediates']['Transformer']['encoderblock_0']['__call__']
  # No layer lies between the last two.
  expected = {'logits': logits, 'encoded': out['pre_logits']}
  if pooling == 'gap':
    expected['block_0'] = tokens.mean(axis=1)
  for layer, features in expected.items():
    found = _features(model, params, layer)
    np.testing.assert_allclose(found, features, rtol=1e-4, atol=1e-5)


@pytest.mark.gate
@pytest.mark.parametrize(
  'options',
  [
    {'registers': 2, 'distillation_token': True, 'norm': 'rms'},
    {'pooling': 'map', 'norm_bias': False},
    {'pooling': 'gap_patches', 'final_norm': 'pooled'},
    {'norm_position': 'post'},
    {'attention': 'axial', 'pooling': 'gap'},
    {'resnet_blocks': (1,), 'patch_size': 1},
  ],
  ids=str,
)
def test_tokens_are_slices_of_blocks_and_their_norms(options):
  model = tiny.vit(**options)
  params = _params(model)
  stacked = stacking.stack_blocks(params)
  given = model.clone(scan=True, remat='full'), stacked, PIXELS[:2]

  @jax.jit
  def run(params):
    _, kept = model.apply(
      {'params': params},
      normalize(PIXELS[:2]),
      capture_intermediates=lambda module, _: 'block_' in (module.name or ''),
    )
    names = 'block_1/norm', 'encoded', 'block_0/norm/patches'
    return (
      kept['intermediates']['Transformer'],
      layers.tokens(*given, ['block_1', 'block_0'], norm=False)[::-1],
      layers.tokens(*given, ['block_0', 'block_1', 'encoded']),
      [layers.represent(*given, name) for name in names],
    )

  kept, plain, (*normed, whole), (last, encoded, first) = run(params)
  np.testing.assert_allclose(normed[1].patches, whole.patches, **CLOSE)
  norm = params['Transformer'].get('encoder_norm')
  for i, (found, other) in enumerate(zip(plain, normed, strict=True)):
    (out,) = np.float64(kept[f'encoderblock_{i}']['__call__'])
    after = naive.layer_norm(out, norm, model.norm == 'rms') if norm else out
    for (patches, cls), x in ((found, out), (other, np.asarray(after))):
      expected = x[:, -6:].reshape(2, *GRID, 16)
      np.testing.assert_allclose(patches, expected, **CLOSE)
      assert (cls is None) == ('cls' not in params)
      if cls is not None:
        np.testing.assert_allclose(cls, x[:, 0], **CLOSE)
  np.testing.assert_allclose(first, normed[0].patches, **CLOSE)
  # The norm comes before pooling, as in the model.
  np.testing.assert_allclose(last, encoded, **CLOSE)


@pytest.mark.gate
def test_layers_of_a_resnet_are_means_of_feature_maps():
  model = models.build(
    'BiT-R50x1', num_classes=5, blocks=(1, 1), width_factor=0.25
  )
  params = _params(model)
  assert layers.names(model) == (
    ['pre_logits', 'stage_1', 'stage_2', 'encoded', 'logits']
  )
  means = _features(model, params, 'stage_1')
  assert means.shape == (8, 64)
  [(maps, cls)] = layers.tokens(model, params, PIXELS, ['stage_1'])
  np.testing.assert_allclose(maps.mean(axis=(1, 2)), means, rtol=1e-4)
  assert cls is None
  np.testing.assert_allclose(
    _features(model, params, 'encoded'),
    _features(model, params, 'pre_logits'),
    rtol=1e-4,
  )


def test_an_unknown_layer_is_refused():
  with pytest.raises(
    ValueError, match=r"no layer 'block_2'; choose one of pre_logits, block_0,"
  ):
    layers.compiled(tiny.vit(), sharding.make_mesh(1), 'block_2')
  model = tiny.vit().clone(patch_outputs=3)
  with pytest.raises(ValueError, match=r"no layer 'logits'; .*, encoded\.$"):
    layers.check(model, 'logits')
  for layer in ('encoded/cls', 'encoded/norm', 'pre_logits/patches'):
    with pytest.raises(ValueError, match=f"no layer '{layer}'; choose"):
      layers.check(tiny.vit(pooling='gap'), layer)
