"""Guards the blocks' options: a NumPy form, axial, scan, remat, 8 bits.

And the features of every layer, which are the model's own outputs.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from tests.models import naive, stacking
from vit_jax import models, sharding
from vit_jax.inspection import capture
from vit_jax.models import attention, encoder, layers
from vit_jax.models.shared import normalize

LARGE = dict(qk_norm=True, qkv_bias=False, norm_bias=False)
SIZE, GRID = (8, 12), (2, 3)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (2, *SIZE, 3)).astype('f')


def _params(model):
  """Returns parameters whose softmaxes are neither flat nor sharp."""
  return jax.tree.map(lambda a: 0.3 * a, tiny.params(model, SIZE))


@pytest.mark.parametrize(
  'options',
  [LARGE | {'parallel': True}, {'norm_position': 'post', 'gelu': 'exact'}],
  ids=str,
)
def test_blocks_are_those_of_numpy(options):
  model = tiny.vit(**options)
  params = _params(model)
  _, out = jax.jit(model.apply)({'params': params}, IMAGES)
  transformer = jax.tree.map(np.float64, params['Transformer'])
  post = model.norm_position == 'post'
  x, weights = np.float64(out['embedded']), []
  for i in range(model.depth):
    x, found = naive.block(
      x, transformer[f'encoderblock_{i}'], post, model.gelu
    )
    weights.append(found)
  # No norm follows the last block if the block ends with one.
  assert ('encoder_norm' in transformer) != post
  x = x if post else naive.layer_norm(x, transformer['encoder_norm'])
  np.testing.assert_allclose(out['encoded'], x, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    capture.attention_weights(model, params, IMAGES), weights, atol=1e-5
  )


@pytest.mark.parametrize('axis', ['row', 'column'])
def test_axial_attention_is_dense_attention_with_a_mask(axis):
  x = RNG.normal(size=(2, 6, 16)).astype(np.float32)
  axial = attention.MultiHeadDotProductAttention(2, axis=axis)
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
  options = encoder.Options.of(tiny.vit(attention='axial', pooling='gap'))
  block = encoder.AxialBlock(options)
  variables = block.init(jax.random.key(0), x, grid=GRID, train=False)
  assert set(variables['params']) == {'row', 'column'}
  expected = x
  for axis in ('row', 'column'):
    expected = encoder.EncoderBlock(options, axis).apply(
      {'params': variables['params'][axis]}, expected, grid=GRID, train=False
    )
  np.testing.assert_array_equal(
    block.apply(variables, x, grid=GRID, train=False), expected
  )


# Scan and remat --------------------------------------------------------------


def _loss_and_grads(model, params, key=None):
  def loss(params):
    rngs = {} if key is None else {'dropout': key}
    logits, _ = model.apply(
      {'params': params}, IMAGES, train=key is not None, rngs=rngs
    )
    return (logits**2).mean()

  return jax.value_and_grad(loss)(params)


_jit_loss_and_grads = jax.jit(_loss_and_grads, static_argnums=0)


def _assert_close(actual, expected):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    actual,
    expected,
  )


def test_scan_equals_unrolled_blocks():
  params = _params(tiny.vit())
  stacked = stacking.stack_blocks(params)
  block = stacked['Transformer']['encoderblock']
  assert block['LayerNorm_0']['scale'].shape == (2, 16)
  jax.tree.map(
    np.testing.assert_array_equal, models.unstack_blocks(stacked), params
  )
  loss, grads = _jit_loss_and_grads(tiny.vit(scan=True), stacked)
  _assert_close(
    (loss, models.unstack_blocks(grads)),
    _jit_loss_and_grads(tiny.vit(), params),
  )


@pytest.mark.gate
def test_remat_recomputes_the_same_values():
  params = stacking.stack_blocks(_params(tiny.vit()))
  key = jax.random.key(0)
  products, results = [], []
  for remat in ('none', 'dots', 'full'):
    model = tiny.vit(remat=remat, scan=True, dropout_rate=0.2)
    results.append(_jit_loss_and_grads(model, params, key))
    step = functools.partial(_loss_and_grads, model)
    products.append(str(jax.make_jaxpr(step)(params, key)).count('dot_general'))
  assert products == sorted(set(products))
  _assert_close(results[1], results[0])
  _assert_close(results[2], results[0])


# 8-bit products --------------------------------------------------------------


def _small(quantization, **options):
  pytest.importorskip('qwix')
  return tiny.vit(quantization=quantization, **options)


def _logits_and_grads(model):
  def loss(params):
    logits, _ = model.apply({'params': params}, IMAGES, train=True)
    return (logits**2).sum(), logits

  return jax.jit(jax.grad(loss, has_aux=True))


@pytest.mark.gate
@pytest.mark.parametrize(
  'name, products',
  # Six dense layers in a block; a gradient has two products for each.
  [('none', 0), ('int8', 12), ('int8_all', 36)],
)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_dense_layers_of_blocks_multiply_integers(name, products, dtype):
  model = _small(name, dtype=dtype)
  text = _logits_and_grads(model).lower(_params(model)).as_text()
  found = [line for line in text.splitlines() if 'dot_general' in line]
  assert sum('xi8>' in line for line in found) == products


@pytest.mark.gate
@pytest.mark.parametrize('scan', [False, True])
def test_quantized_logits_and_gradients_stay_close(scan):
  params = tiny.vit().init(jax.random.key(0), IMAGES)['params']
  head = params['head']['kernel']
  params['head']['kernel'] = jax.random.normal(jax.random.key(2), head.shape)
  params = stacking.stack_blocks(params) if scan else params
  results = [
    _logits_and_grads(_small(name, scan=scan))(params)
    for name in ('none', 'int8', 'int8_all')
  ]
  assert _distance(results[1][1], results[0][1]) == pytest.approx(
    0.01, abs=0.009
  )
  kernels = [
    jnp.concatenate([x.ravel() for x in jax.tree.leaves(one[0])])
    for one in results
  ]
  for one in kernels[1:]:
    assert 0 < _distance(one, kernels[0]) < 0.05
  assert jax.tree.structure(results[1]) == jax.tree.structure(results[0])


def _distance(found, expected):
  return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# Layers ----------------------------------------------------------------------

PIXELS = RNG.integers(0, 256, (8, *SIZE, 3), np.uint8)


def _features(model, params, layer):
  compiled = layers.compiled(model, sharding.make_mesh(8), layer)
  return np.asarray(compiled(params, PIXELS))


@pytest.mark.gate
@pytest.mark.parametrize('pooling', ['token', 'gap', 'map'])
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
  expected = {'logits': logits} | dict.fromkeys(
    ('pre_logits', 'encoded'), out['pre_logits']
  )
  if pooling != 'map':
    expected['block_0'] = (
      tokens[:, 0] if pooling == 'token' else tokens.mean(axis=1)
    )
  for layer, features in expected.items():
    found = _features(model, params, layer)
    np.testing.assert_allclose(found, features, rtol=1e-4, atol=1e-5)


@pytest.mark.gate
def test_layers_of_a_resnet_are_means_of_feature_maps():
  model = models.build(
    'BiT-R50x1', num_classes=5, blocks=(1, 1), width_factor=0.25
  )
  params = _params(model)
  _, out = model.apply({'params': params}, normalize(PIXELS))
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
    layers.compiled(tiny.vit(), sharding.make_mesh(1), 'block_2')
  model = tiny.vit().clone(patch_outputs=3)
  with pytest.raises(ValueError, match=r"no layer 'logits'; .*, encoded\.$"):
    layers.check(model, 'logits')
