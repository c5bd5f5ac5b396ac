"""Guards AxialResNet: attention and unit equal NumPy; sizes; the loss falls."""

import flax.errors
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive_resnet as naive
from vit_jax.models import axial_resnet, position


def _normal(*shape, seed=1):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _attention(query, key, value, table):
  """Computes attention of one sequence and head with loops.

  Query and key are [L, K/2], value is [L, K].
  """
  length, width = value.shape
  half = width // 2
  out = np.zeros((length, width))
  for o in range(length):
    scores, values = [], []
    for p in range(length):
      r = table[o - p + length - 1]
      of_query, of_key, of_value = r[:half], r[half:width], r[width:]
      scores.append(query[o] @ key[p] + query[o] @ of_query + key[p] @ of_key)
      values.append(value[p] + of_value)
    weights = np.exp(scores) / np.exp(scores).sum()
    out[o] = weights @ np.array(values)
  return out


def _sequence(x, p, heads):
  """Computes the layer for one row or column [L, C]."""
  length, channels = x.shape
  width = channels // heads
  x = x @ p['qkv']['kernel']
  x = naive.group_norm(x, p['gn_qkv'], 1e-4).reshape(length, heads, 2 * width)
  half = width // 2
  out = [
    _attention(
      x[:, h, :half],
      x[:, h, half:width],
      x[:, h, width:],
      p['relative_embedding'],
    )
    for h in range(heads)
  ]
  return naive.group_norm(np.concatenate(out, axis=-1), p['gn_out'], 1e-4)


def _layer(x, p, heads, axis):
  """Computes the layer for one feature map [h, w, C]."""
  if axis == 'height':
    return _layer(x.swapaxes(0, 1), p, heads, 'width').swapaxes(0, 1)
  return np.stack([_sequence(row, p, heads) for row in x])


def test_relative_attention_equals_loops():
  query, key = _normal(2, 5, 3, 2), _normal(2, 5, 3, 2, seed=2)
  value, table = _normal(2, 5, 3, 4, seed=3), _normal(9, 8, seed=4)
  out = axial_resnet.relative_attention(query, key, value, table)
  for n in range(2):
    for h in range(3):
      expected = _attention(query[n, :, h], key[n, :, h], value[n, :, h], table)
      np.testing.assert_allclose(out[n, :, h], expected, rtol=1e-4, atol=1e-6)


# At scale 3e-3 the norms' epsilon changes the result.
@pytest.mark.parametrize(
  'axis, length, scale', [('height', 3, 3e-3), ('width', 4, 0.3)]
)
def test_layer_equals_numpy(axis, length, scale):
  x = _normal(2, 3, 4, 64)
  layer = axial_resnet.AxialAttention(heads=4, axis=axis)
  params = naive.random_params(layer, x, scale=scale)
  shapes = jax.tree.map(np.shape, params)
  assert shapes == {
    'qkv': {'kernel': (64, 128)},
    'gn_qkv': {'scale': (128,), 'bias': (128,)},
    'relative_embedding': (2 * length - 1, 32),
    'gn_out': {'scale': (64,), 'bias': (64,)},
  }
  out = layer.apply({'params': params}, x)
  for image, result in zip(naive.float64(x), out, strict=True):
    expected = _layer(image, naive.float64(params), 4, axis)
    np.testing.assert_allclose(
      result, expected, rtol=2e-4, atol=1e-5 * np.abs(expected).max()
    )


def _mean_pool(x):
  """Averages 2x2 windows over the values inside the map."""
  rows, columns = -(-x.shape[0] // 2), -(-x.shape[1] // 2)
  return np.array(
    [
      [
        x[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((0, 1))
        for j in range(columns)
      ]
      for i in range(rows)
    ]
  )


@pytest.mark.parametrize('strides, channels', [(1, 256), (1, 64), (2, 256)])
def test_unit_equals_numpy(strides, channels):
  x = _normal(1, 3, 4, channels)
  unit = axial_resnet.AxialUnit(features=64, strides=strides, heads=4)
  params = naive.random_params(unit, x, scale=3e-3)
  out = jax.jit(unit.apply)({'params': params}, x)
  p = naive.float64(params)

  def conv(name, x, stride=1):
    kernel = p[name]['kernel']
    deviation = kernel.std((0, 1, 2)) + 1e-5
    kernel = (kernel - kernel.mean((0, 1, 2))) / deviation
    return naive.conv(x, kernel, stride)

  def norm(name, x):
    return naive.group_norm(x, p[name], epsilon=1e-4)

  image = naive.float64(x[0])
  residual = image
  if strides == 2 or channels == 64:
    residual = norm('gn_proj', conv('conv_proj', image, strides))
  y = naive.relu(norm('gn1', conv('conv1', image)))
  y = _layer(y, p['height_attention'], 4, 'height')
  y = _layer(y, p['width_attention'], 4, 'width')
  if strides == 2:
    y = _mean_pool(y)
  y = norm('gn3', conv('conv3', naive.relu(y)))
  expected = naive.relu(residual + y)
  np.testing.assert_allclose(
    out[0], expected, rtol=5e-4, atol=2e-5 * np.abs(expected).max()
  )


def _shapes(model, size):
  images = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
  out, variables = jax.eval_shape(
    model.init_with_output, jax.random.key(0), images
  )
  return out, flax.traverse_util.flatten_dict(variables['params'], sep='/')


def _formula(grids):
  """Returns the parameter count for 1,000 classes and each stage's grid."""
  count = 7 * 7 * 3 * 64 + 2 * 64
  channels = 64
  maps = (grids[0], *grids)  # A stage's first unit attends before it pools.
  for i, units in enumerate((3, 4, 6, 3)):
    f = 64 * 2**i
    count += channels * 4 * f + 2 * 4 * f  # The projection and its norm.
    for unit in range(units):
      count += channels * f + f * 4 * f + 2 * (f + 4 * f)
      for length in maps[i if unit == 0 else i + 1]:
        count += f * 2 * f + 2 * (2 * f + f)
        count += 2 * (f // 8) * (2 * length - 1)
      channels = 4 * f
  return count + 2048 * 1000 + 1000


@pytest.mark.parametrize(
  'size, grids, count',
  [
    ((224, 224), ((56, 56), (28, 28), (14, 14), (7, 7)), 19_373_640),
    ((97, 160), ((25, 40), (13, 20), (7, 10), (4, 5)), 19_346_344),
  ],
)
def test_axial_resnet50(size, grids, count):
  model = axial_resnet.AxialResNet(1000)
  (logits, out), shapes = _shapes(model, size)
  assert (logits.shape, logits.dtype) == ((2, 1000), jnp.float32)
  assert out['encoded'].shape == (2, *grids[-1], 2048)
  assert out['pre_logits'].shape == (2, 2048)
  assert position.grid_of(model, size) is None
  assert sum(a.size for a in shapes.values()) == count == _formula(grids)
  for path, channels, grid in [
    ('block1/unit1', 64, grids[0]),
    ('block2/unit1', 128, grids[0]),
    ('block2/unit2', 128, grids[1]),
    ('block4/unit3', 512, grids[3]),
  ]:
    for axis, length in zip(('height', 'width'), grid, strict=True):
      table = shapes[f'{path}/{axis}_attention/relative_embedding']
      assert table.shape == (2 * length - 1, 2 * channels // 8)
  assert 'block1/unit1/conv2/kernel' not in shapes
  top = {'conv_root', 'gn_root', 'head', *(f'block{b}' for b in range(1, 5))}
  assert {name.split('/')[0] for name in shapes} == top


def _tiny(blocks=(1,), **kwargs):
  return axial_resnet.AxialResNet(3, blocks=blocks, heads=2, **kwargs)


def _zeros(model, size):
  _, shapes = _shapes(model, size)
  return {name: np.zeros(a.shape, a.dtype) for name, a in shapes.items()}


def test_another_image_size_needs_resized_position_embeddings():
  model = _tiny(blocks=(1, 1))
  params, new = _zeros(model, (16, 16)), _zeros(model, (16, 24))
  images = jnp.zeros((1, 16, 24, 3))

  def apply(params):
    tree = flax.traverse_util.unflatten_dict(params, sep='/')
    return jax.eval_shape(model.apply, {'params': tree}, images)

  with pytest.raises(
    flax.errors.ScopeParamShapeError, match='relative_embedding'
  ):
    apply(params)
  for name, value in params.items():
    if name.endswith('relative_embedding'):
      params[name] = position.resize_relative(value, len(new[name]))
  apply(params)


def test_heads_must_divide_half_the_channels():
  with pytest.raises(ValueError, match=r'64 channels are not .* 2 \* 64 heads'):
    _shapes(axial_resnet.AxialResNet(3, heads=64), (32, 32))
