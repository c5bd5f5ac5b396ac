"""ResNet layers in plain NumPy, float64, one image at a time, as a reference.

Feature maps are [h, w, C], kernels [kh, kw, C in, C out].
"""

import jax
import numpy as np


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


def random_params(module, *inputs, scale=0.3, seed=0):
  """Returns normal parameters, float32, of standard deviation `scale`."""
  shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)['params']
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda a: rng.normal(0, scale, a.shape).astype(a.dtype), shapes
  )


def float64(tree):
  return jax.tree.map(lambda a: np.asarray(a, np.float64), tree)
