"""Layers in plain NumPy, float64, as a reference.

ResNets take one image at a time: feature maps are [h, w, C], kernels [kh, kw,
C in, C out]. Tokens are [B, L, D].
"""

import jax
import numpy as np
from scipy import special


def conv(x, kernel, stride=1, padding=((0, 0), (0, 0))):
  x = np.pad(x, (*padding, (0, 0)))
  high, wide = kernel.shape[:2]
  rows = (x.shape[0] - high) // stride + 1
  columns = (x.shape[1] - wide) // stride + 1
  out = np.zeros((rows, columns, kernel.shape[-1]))
  for i in range(rows):
    for j in range(columns):
      top, left = i * stride, j * stride
      window = x[top : top + high, left : left + wide]
      out[i, j] = (window[..., None] * kernel).sum((0, 1, 2))
  return out


def max_pool(x, padding):
  """Pools 3x3 windows with stride 2; pads with zeros."""
  x = np.pad(x, (*padding, (0, 0)))
  rows, columns = (x.shape[0] - 3) // 2 + 1, (x.shape[1] - 3) // 2 + 1
  out = np.zeros((rows, columns, x.shape[-1]))
  for i in range(rows):
    for j in range(columns):
      out[i, j] = x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1))
  return out


def group_norm(x, params, epsilon):
  groups = min(32, x.shape[-1] // 2)
  size = x.shape[-1] // groups
  out = np.zeros_like(x)
  for g in range(groups):
    part = x[..., g * size : (g + 1) * size]
    deviation = np.sqrt(part.var() + epsilon)
    out[..., g * size : (g + 1) * size] = (part - part.mean()) / deviation
  return out * params['scale'] + params['bias']


def relu(x):
  return np.maximum(x, 0)


def random_params(module, *inputs, scale=0.3, seed=0, **options):
  """Returns normal parameters, float32, of standard deviation `scale`."""
  shapes = jax.eval_shape(
    lambda *inputs: module.init(jax.random.key(0), *inputs, **options), *inputs
  )['params']
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda a: rng.normal(0, scale, a.shape).astype(a.dtype), shapes
  )


def float64(tree):
  return jax.tree.map(lambda a: np.asarray(a, np.float64), tree)


GELUS = {
  'exact': lambda x: x / 2 * (1 + special.erf(x / 2**0.5)),
  'tanh': lambda x: (
    x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
  ),
}


def layer_norm(x, params):
  centred = x - x.mean(-1, keepdims=True)
  x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
  return x * params['scale'] + params.get('bias', 0)


def dense(x, params, equation='...i,io->...o'):
  return np.einsum(equation, x, params['kernel']) + params.get('bias', 0)


def block(x, params, post, gelu):
  """Returns the block's output and attention weights, in float64."""
  mha, mlp = params['MultiHeadDotProductAttention_0'], params['MlpBlock_0']
  y = x if post else layer_norm(x, params['LayerNorm_0'])
  query, key, value = (
    dense(y, mha[name], 'bld,dhk->blhk') for name in ('query', 'key', 'value')
  )
  if 'query_norm' in mha:
    query, key = (
      layer_norm(query, mha['query_norm']),
      layer_norm(key, mha['key_norm']),
    )
  scores = np.einsum('bqhk,bthk->bhqt', query, key) / query.shape[-1] ** 0.5
  weights = np.exp(scores)
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum('bhqt,bthk->bqhk', weights, value)
  x = x + dense(mixed, mha['out'], 'bqhk,hkd->bqd')
  if post:
    x = y = layer_norm(x, params['LayerNorm_0'])
  elif 'LayerNorm_1' in params:  # Else the MLP reads what attention read.
    y = layer_norm(x, params['LayerNorm_1'])
  hidden = GELUS[gelu](dense(y, mlp['Dense_0']))
  x = x + dense(hidden, mlp['Dense_1'])
  return layer_norm(x, params['LayerNorm_1']) if post else x, weights
