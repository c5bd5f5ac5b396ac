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
  'quick': lambda x: x / (1 + np.exp(-1.702 * x)),
}


def layer_norm(x, params, rms=False):
  """Returns LayerNorm, or RMSNorm, over the last dimension."""
  centred = x if rms else x - x.mean(-1, keepdims=True)
  x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
  return x * params['scale'] + params.get('bias', 0)


def dense(x, params, equation='...i,io->...o'):
  return np.einsum(equation, x, params['kernel']) + params.get('bias', 0)


def rotated(heads, grid, kind, base, learned=None):
  """Turns the last tokens of [B, L, H, K], the patches: complex numbers."""
  (rows, columns), (*_, width) = grid, heads.shape
  out = heads.copy()
  for place, head, plane in np.ndindex(
    rows * columns, heads.shape[2], width // 2
  ):
    y, x = divmod(place, columns)
    own = base ** (-4 * (plane % (width // 4)) / width)
    # The angle, by two frequencies, and the two channels of the plane.
    by_x, by_y = (own, 0) if plane < width // 4 else (0, own)
    real, imaginary = 2 * plane, 2 * plane + 1
    if kind == 'mixed':
      by_x, by_y = learned[:, head, plane]
    elif kind == 'dinov3':
      by_x, by_y, real, imaginary = by_y, by_x, plane, plane + width // 2
      x, y = (
        np.pi * (2 * (c + 0.5) / n - 1) * 2
        for c, n in ((x, columns), (y, rows))
      )
    token = heads.shape[1] - rows * columns + place
    number = heads[:, token, head, real] + 1j * heads[:, token, head, imaginary]
    number = number * np.exp(1j * (x * by_x + y * by_y))
    out[:, token, head, real] = number.real
    out[:, token, head, imaginary] = number.imag
  return out


def block(x, params, post, gelu, turn=lambda heads, learned: heads):
  """Returns the block's output and attention weights, in float64.

  Its options are those that its parameters tell. `turn` rotates queries and
  keys.
  """
  mha, mlp = params['MultiHeadDotProductAttention_0'], params['MlpBlock_0']
  rms = 'RMSNorm_0' in params
  norms = [params.get(f'{"RMS" if rms else "Layer"}Norm_{i}') for i in (0, 1)]
  scales = [params.get(f'layer_scale_{i}', 1) for i in (0, 1)]
  y = x if post else layer_norm(x, norms[0], rms)
  query, key, value = (
    dense(y, mha[name], 'bld,dhk->blhk') for name in ('query', 'key', 'value')
  )
  if 'query_norm' in mha:
    query, key = (
      layer_norm(query, mha['query_norm'], rms),
      layer_norm(key, mha['key_norm'], rms),
    )
  query, key = (turn(a, mha.get('rotary_frequencies')) for a in (query, key))
  scores = np.einsum('bqhk,bthk->bhqt', query, key) / query.shape[-1] ** 0.5
  weights = np.exp(scores)
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum('bhqt,bthk->bqhk', weights, value)
  x = x + scales[0] * dense(mixed, mha['out'], 'bqhk,hkd->bqd')
  if post:
    x = y = layer_norm(x, norms[0], rms)
  elif norms[1]:  # Else the MLP reads what attention read.
    y = layer_norm(x, norms[1], rms)
  hidden = dense(y, mlp['Dense_0'])
  if 'gate' in mlp:
    gate = dense(y, mlp['gate'])
    hidden *= gate / (1 + np.exp(-gate))
  else:
    hidden = GELUS[gelu](hidden)
  x = x + scales[1] * dense(hidden, mlp['Dense_1'])
  return layer_norm(x, norms[1], rms) if post else x, weights


def vit(model, p, images):
  """Returns what a ViT without a ResNet computes of [B, H, W, C] in [-1, 1].

  These are the logits, those of a head of the distillation token or None, the
  features before the head, the encoded tokens, and the tokens before each block
  and after the last.
  """
  if model.image_mean:  # Of images in [0, 1].
    images = ((images + 1) / 2 - model.image_mean) / model.image_std
  (high, wide), embedding = model.patch_size, p['embedding']
  patches = [
    np.tensordot(images[:, i : i + high, j : j + wide], embedding['kernel'], 3)
    for i in range(0, images.shape[1] - high + 1, high)
    for j in range(0, images.shape[2] - wide + 1, wide)
  ]
  x = np.stack(patches, axis=1) + embedding.get('bias', 0)
  names = [name for name in ('cls', 'dist') if name in p]
  table = p['Transformer']['posembed_input']['pos_embedding']
  if not model.class_position:
    x = x + table
  rows = len(images), 1, 1
  x = np.concatenate([*(np.tile(p[n], rows) for n in names), x], axis=1)
  if model.class_position:
    x = x + table
  if model.registers:
    first, own = x[:, : len(names)], np.tile(p['registers'], rows)
    x = np.concatenate([first, own, x[:, len(names) :]], axis=1)
  if model.embedding_norm:
    x = layer_norm(x, p['Transformer']['embedding_norm'])
  inputs = [x]
  for i in range(model.depth):
    x, _ = block(x, p['Transformer'][f'encoderblock_{i}'], False, model.gelu)
    inputs.append(x)
  norm = p.get('fc_norm') or p['Transformer']['encoder_norm']
  if model.final_norm == 'tokens':
    x = layer_norm(x, norm)
  features = pooled(model, x, len(patches))
  if model.final_norm == 'pooled':
    features = layer_norm(features, norm)
  if model.representation_size:
    features = np.tanh(dense(features, p['pre_logits']))
  second = dense(x[:, 1], p['head_dist']) if 'head_dist' in p else None
  return dense(features, p['head']), second, features, x, inputs


def pooled(model, x, patches):
  """Pools tokens, of which the last are patches."""
  token, mean = x[:, 0], x[:, -patches:].mean(axis=1)
  if model.pooling == 'token_gap':
    return np.concatenate([token, mean], axis=1)
  return token if model.pooling == 'token' else mean
