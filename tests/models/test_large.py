"""Guards the options for large models: a NumPy form, and other code paths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import models
from vit_jax.inspection import capture

ALL = dict(parallel=True, qk_norm=True, qkv_bias=False, norm_bias=False)
SIZE = (16, 16)
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, *SIZE, 3)).astype('f')


def _params(model):
  """Random parameters whose softmaxes are neither flat nor sharp."""
  return jax.tree.map(lambda a: 0.3 * a, tiny.params(model, SIZE))


def _norm(x, params):
  centred = x - x.mean(-1, keepdims=True)
  x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
  return x * params['scale'] + params.get('bias', 0)


def _dense(x, params, equation='...i,io->...o'):
  return np.einsum(equation, x, params['kernel']) + params.get('bias', 0)


def _block(x, params):
  """Returns the block's output and attention weights, in float64."""
  mha, mlp = params['MultiHeadDotProductAttention_0'], params['MlpBlock_0']
  y = _norm(x, params['LayerNorm_0'])
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
  if 'LayerNorm_1' in params:
    y = _norm(x, params['LayerNorm_1'])
  hidden = np.float64(jax.nn.gelu(_dense(y, mlp['Dense_0'])))
  return x + _dense(hidden, mlp['Dense_1']), weights


@pytest.mark.parametrize('options', [{k: v} for k, v in ALL.items()] + [ALL])
def test_blocks_are_those_of_numpy(options):
  model = tiny.vit(**options)
  params = _params(model)
  _, out = model.apply({'params': params}, IMAGES)
  encoder = jax.tree.map(np.float64, params['Transformer'])
  x, weights = np.float64(out['embedded']), []
  for i in range(model.depth):
    x, found = _block(x, encoder[f'encoderblock_{i}'])
    weights.append(found)
  x = _norm(x, encoder['encoder_norm'])
  np.testing.assert_allclose(out['encoded'], x, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    capture.attention_weights(model, params, IMAGES), weights, atol=1e-5
  )


def test_parameters():
  def names(**options):
    return set(tiny.flat(tiny.params(tiny.vit(depth=1, **options), SIZE)))

  block, plain = 'Transformer/encoderblock_0/', names()
  attention = f'{block}MultiHeadDotProductAttention_0/'
  assert plain - names(parallel=True) == {
    f'{block}LayerNorm_1/{name}' for name in ('scale', 'bias')
  }
  assert names(qk_norm=True) - plain == {
    f'{attention}{name}_norm/scale' for name in ('query', 'key')
  }
  assert plain - names(qkv_bias=False) == {
    f'{attention}{name}/bias' for name in ('query', 'key', 'value')
  }
  assert plain - names(norm_bias=False) == {
    *(f'{block}LayerNorm_{i}/bias' for i in (0, 1)),
    'Transformer/encoder_norm/bias',
  }


@pytest.mark.parametrize(
  'options',
  [
    dict(attention_implementation='lanes'),
    dict(remat='dots'),
    dict(scan=True),
  ],
  ids=str,
)
def test_other_implementations(options):
  plain = tiny.vit(**ALL, pooling='gap', heads=2)
  params = _params(plain)
  expected, _ = plain.apply({'params': params}, IMAGES)
  model = plain.clone(**options)
  if model.scan:
    params = models.stack_blocks(params)
  found, _ = jax.jit(model.apply)({'params': params}, IMAGES)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_bfloat16():
  model = tiny.vit(**ALL)
  params = _params(model)
  expected, _ = model.apply({'params': params}, IMAGES)
  half = model.clone(dtype=jnp.bfloat16)
  found, out = half.apply({'params': params}, IMAGES)
  assert out['encoded'].dtype == jnp.bfloat16
  np.testing.assert_allclose(
    found, expected, atol=0.05 * np.abs(expected).max()
  )
