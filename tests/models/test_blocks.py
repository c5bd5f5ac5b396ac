"""Guards post-LayerNorm and the options for large models: a NumPy form."""

import jax
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import models
from vit_jax.inspection import capture

LARGE = dict(qk_norm=True, qkv_bias=False, norm_bias=False)
HYBRID = dict(resnet_blocks=(1,), patch_size=1, resnet_width=2)
SIZE = (16, 16)
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, *SIZE, 3)).astype('f')


def _norm(x, params):
  centred = x - x.mean(-1, keepdims=True)
  x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
  return x * params['scale'] + params.get('bias', 0)


def _dense(x, params, equation='...i,io->...o'):
  return np.einsum(equation, x, params['kernel']) + params.get('bias', 0)


def _block(x, params, post):
  """Returns the block's output and attention weights, in float64."""
  mha, mlp = params['MultiHeadDotProductAttention_0'], params['MlpBlock_0']
  y = x if post else _norm(x, params['LayerNorm_0'])
  query, key, value = (
    _dense(y, mha[name], 'bld,dhk->blhk') for name in ('query', 'key', 'value')
  )
  if 'query_norm' in mha:
    query, key = _norm(query, mha['query_norm']), _norm(key, mha['key_norm'])
  scores = np.einsum('bqhk,bthk->bhqt', query, key) / query.shape[-1] ** 0.5
  weights = np.exp(scores)
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum('bhqt,bthk->bqhk', weights, value)
  x = x + _dense(mixed, mha['out'], 'bqhk,hkd->bqd')
  if post:
    x = y = _norm(x, params['LayerNorm_0'])
  elif 'LayerNorm_1' in params:  # Else the MLP reads what attention read.
    y = _norm(x, params['LayerNorm_1'])
  hidden = np.float64(jax.nn.gelu(_dense(y, mlp['Dense_0'])))
  x = x + _dense(hidden, mlp['Dense_1'])
  return _norm(x, params['LayerNorm_1']) if post else x, weights


@pytest.mark.parametrize(
  'options',
  [
    {'parallel': True},
    LARGE | {'parallel': True},
    {'norm_position': 'post'},
    {'norm_position': 'post'} | LARGE | HYBRID,
  ],
  ids=str,
)
def test_blocks_are_those_of_numpy(options):
  model = tiny.vit(**options)
  # The softmaxes are neither flat nor sharp.
  params = jax.tree.map(lambda a: 0.3 * a, tiny.params(model, SIZE))
  _, out = model.apply({'params': params}, IMAGES)
  encoder = jax.tree.map(np.float64, params['Transformer'])
  post = model.norm_position == 'post'
  x, weights = np.float64(out['embedded']), []
  for i in range(model.depth):
    x, found = _block(x, encoder[f'encoderblock_{i}'], post)
    weights.append(found)
  # No norm follows the last block if the block ends with one.
  assert ('encoder_norm' in encoder) != post
  x = x if post else _norm(x, encoder['encoder_norm'])
  np.testing.assert_allclose(out['encoded'], x, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    capture.attention_weights(model, params, IMAGES), weights, atol=1e-5
  )


def test_post_layernorm_has_no_parallel_blocks():
  with pytest.raises(ValueError, match=r'parallel=True .*"post".*choose one'):
    models.build('ViT-B/16', num_classes=2, norm_position='post', parallel=True)
