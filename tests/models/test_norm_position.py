"""Guards LayerNorm after the residual sum: a NumPy form, and other paths."""

import jax
import numpy as np
import pytest

from tests.interop import tiny
from tests.models.test_large import IMAGES, SIZE, _dense, _norm, _params
from tests.training import test_step
from vit_jax import accounting, models
from vit_jax.inspection import capture

LARGE = dict(qk_norm=True, qkv_bias=False, norm_bias=False)
HYBRID = dict(resnet_blocks=(1,), patch_size=1, resnet_width=2)
AXIAL = dict(attention='axial', pooling='gap')


def _vit(**options):
  return tiny.vit(norm_position='post', **options)


def _block(x, params):
  """Returns the block's output and attention weights, in float64."""
  mha, mlp = params['MultiHeadDotProductAttention_0'], params['MlpBlock_0']
  query, key, value = (
    _dense(x, mha[name], 'bld,dhk->blhk') for name in ('query', 'key', 'value')
  )
  if 'query_norm' in mha:
    query, key = _norm(query, mha['query_norm']), _norm(key, mha['key_norm'])
  scores = np.einsum('bqhk,bthk->bhqt', query, key) / query.shape[-1] ** 0.5
  weights = np.exp(scores)
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum('bhqt,bthk->bqhk', weights, value)
  attended = _dense(mixed, mha['out'], 'bqhk,hkd->bqd')
  x = _norm(x + attended, params['LayerNorm_0'])
  hidden = np.float64(jax.nn.gelu(_dense(x, mlp['Dense_0'])))
  return _norm(x + _dense(hidden, mlp['Dense_1']), params['LayerNorm_1']), (
    weights
  )


@pytest.mark.parametrize(
  'options', [{}, LARGE, HYBRID, dict(pooling='map')], ids=str
)
def test_blocks_are_those_of_numpy(options):
  model = _vit(**options)
  params = _params(model)
  logits, out = model.apply({'params': params}, IMAGES)
  encoder = jax.tree.map(np.float64, params['Transformer'])
  x, weights = np.float64(out['embedded']), []
  for i in range(model.depth):
    x, found = _block(x, encoder[f'encoderblock_{i}'])
    weights.append(found)
  np.testing.assert_allclose(out['encoded'], x, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    capture.attention_weights(model, params, IMAGES), weights, atol=1e-5
  )
  if model.pooling == 'token':
    expected = _dense(x[:, 0], jax.tree.map(np.float64, params['head']))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_axial_blocks_are_two_blocks():
  model = _vit(**AXIAL)
  params = _params(model)
  _, out = model.apply({'params': params}, IMAGES)
  x = np.float64(out['embedded'])
  encoder = jax.tree.map(np.float64, params['Transformer'])
  batch, length, width = x.shape
  rows, columns = model.token_grid(SIZE)
  for i in range(model.depth):
    block = encoder[f'encoderblock_{i}']
    x, _ = _block(x.reshape(batch * rows, columns, width), block['row'])
    x = x.reshape(batch, rows, columns, width).swapaxes(1, 2)
    x, _ = _block(x.reshape(batch * columns, rows, width), block['column'])
    x = x.reshape(batch, columns, rows, width).swapaxes(1, 2)
    x = x.reshape(batch, length, width)
  np.testing.assert_allclose(out['encoded'], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('options', [{}, HYBRID, AXIAL], ids=str)
def test_only_the_last_norm_is_left_out(options):
  pre, post = (
    {*tiny.flat(tiny.params(model, SIZE))}
    for model in (tiny.vit(**options), _vit(**options))
  )
  assert pre - post == {
    f'Transformer/encoder_norm/{name}' for name in ('scale', 'bias')
  }
  assert post < pre


@pytest.mark.parametrize(
  'options',
  [
    dict(attention_implementation='lanes'),
    dict(remat='dots'),
    dict(scan=True),
    dict(scan=True, remat='full'),
  ],
  ids=str,
)
def test_other_implementations(options):
  plain = _vit()
  model, params = plain.clone(**options), _params(plain)
  stacked = models.stack_blocks(params) if model.scan else params

  def loss(params, model):
    return (model.apply({'params': params}, IMAGES)[0] ** 2).sum()

  expected, slopes = jax.value_and_grad(loss)(params, plain)
  found, others = jax.jit(jax.value_and_grad(loss), static_argnums=1)(
    stacked, model
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  if model.scan:
    others = models.unstack_blocks(others)
  for name, slope in tiny.flat(slopes).items():
    np.testing.assert_allclose(
      tiny.flat(others)[name],
      slope,
      rtol=1e-3,
      atol=1e-4 * np.abs(slope).max() + 1e-4,
      err_msg=name,
    )


@pytest.mark.parametrize('options', [{}, {'scan': True}], ids=str)
def test_devices_share_the_work(options):
  model = test_step._model(norm_position='post', **options)
  one, _ = test_step._run(1, 2, model=model)
  eight, _ = test_step._run(8, 2, model=model)
  pre, _ = test_step._run(1, 2, model=model.clone(norm_position='pre'))
  for a, b, other in zip(one, eight, pre, strict=True):
    np.testing.assert_allclose(b['loss'], a['loss'], rtol=1e-5)
    np.testing.assert_allclose(b['grad_norm'], a['grad_norm'], rtol=1e-4)
    assert abs(a['grad_norm'] - other['grad_norm']) > 1e-4


def test_the_account_has_no_last_norm():
  pre, post = (accounting.account(model, 16) for model in (tiny.vit(), _vit()))
  assert pre.macs == post.macs
  assert pre.params - post.params == 2 * 16
  left_out = {part.name for part in pre.parts} - {p.name for p in post.parts}
  assert left_out == {'Transformer/encoder_norm'}


@pytest.mark.parametrize(
  'name, options, message',
  [
    (
      'ViT-B/16',
      {'norm_position': 'last'},
      "'last', expected one of pre, p",
    ),
    (
      'R50+ViT-B/16',
      {'norm_position': 'post', 'parallel': True},
      'norm_position="post" has none before them: choose one',
    ),
    ('BiT-R50x1', {'norm_position': 'post'}, 'has no option norm_position'),
    ('AxialResNet50', {'norm_position': 'pre'}, 'has no option norm_position'),
  ],
)
def test_impossible_places_are_refused(name, options, message):
  with pytest.raises(ValueError, match=message):
    models.build(name, num_classes=2, **options)
