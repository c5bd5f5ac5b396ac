"""Guards AxialResNet: attention and unit equal NumPy; sizes; the loss falls."""

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
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


def test_relative_values_by_hand():
  # All scores are equal, so each of three positions takes the mean of three
  # values. The table's rows belong to the offsets -2, -1, 0, 1, 2.
  zeros = jnp.zeros((1, 3, 1, 1))
  table = (
    jnp.zeros((5, 4)).at[:, 2].set(jnp.array([1.0, 10, 100, 1000, 10_000]))
  )
  out = axial_resnet.relative_attention(
    zeros, zeros, jnp.zeros((1, 3, 1, 2)), table
  )
  np.testing.assert_allclose(out[0, :, 0, 0], [37, 370, 3700], rtol=1e-6)
  np.testing.assert_array_equal(out[0, :, 0, 1], 0)


# At scale 3e-3 the norms' epsilon changes the result.
@pytest.mark.parametrize('scale', [0.3, 3e-3])
@pytest.mark.parametrize('axis, length', [('height', 3), ('width', 4)])
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


def test_a_unit_without_projection_starts_as_the_identity():
  x = _normal(1, 2, 3, 256)
  unit = axial_resnet.AxialUnit(features=64)
  out, _ = jax.jit(unit.init_with_output)(jax.random.key(0), x)
  np.testing.assert_array_equal(out, np.maximum(x, 0))


def test_the_norm_of_the_root_uses_epsilon_1e_4():
  images = 1e-4 * _normal(1, 8, 8, 3)
  model = axial_resnet.AxialResNet(3, blocks=())
  params = naive.random_params(model, images)
  _, out = jax.jit(model.apply)({'params': params}, images)
  p = naive.float64(params)
  kernel = p['conv_root']['kernel']
  kernel = (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2))
  x = naive.conv(naive.float64(images[0]), kernel, 2, ((2, 3), (2, 3)))
  x = naive.relu(naive.group_norm(x, p['gn_root'], 1e-4))
  expected = naive.max_pool(x, ((0, 1), (0, 1)))
  np.testing.assert_allclose(out['encoded'][0], expected, rtol=1e-3, atol=1e-5)


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
    ValueError, match='for a width of 4 features, but these images give 6: use'
  ):
    apply(params)
  for name, value in params.items():
    if name.endswith('relative_embedding'):
      params[name] = position.resize_relative(value, len(new[name]))
  apply(params)


def test_a_few_steps_reduce_the_loss():
  model = _tiny()
  labels = np.array([0, 1, 2, 0])
  images = _normal(4, 16, 24, 3) * 0.1
  images[..., 0] += labels[:, None, None] - 1
  params = jax.jit(model.init)(jax.random.key(0), images)['params']
  optimizer = optax.adam(1e-3)

  @jax.jit
  def step(params, state):
    def loss(params):
      logits, _ = model.apply({'params': params}, images, train=True)
      return optax.softmax_cross_entropy_with_integer_labels(
        logits, labels
      ).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, value, gradient

  state, losses = optimizer.init(params), []
  for _ in range(6):
    params, state, value, gradient = step(params, state)
    losses.append(float(value))
  assert losses[0] == pytest.approx(np.log(3))
  assert np.all(np.diff(losses) < 0)
  assert losses[-1] < 0.8 * losses[0]
  # The last norms' scales are no longer 0, so all parameters get gradients.
  assert all(np.any(np.asarray(a)) for a in jax.tree.leaves(gradient))


def test_bfloat16_reaches_the_head_and_remat_changes_nothing():
  images = _normal(1, 8, 8, 3)
  params = naive.random_params(_tiny(), images)
  logits, _ = jax.jit(_tiny().apply)({'params': params}, images)
  for dtype, remat in [('bfloat16', 'none'), ('float32', 'dots')]:
    model = _tiny(dtype=jnp.dtype(dtype), remat=remat)
    result, out = jax.jit(model.apply)({'params': params}, images)
    assert result.dtype == jnp.float32
    assert {a.dtype for a in out.values()} == {jnp.dtype(dtype)}
    tolerance = 0.1 if dtype == 'bfloat16' else 1e-5
    np.testing.assert_allclose(result, logits, atol=tolerance)


def test_heads_must_divide_half_the_channels():
  with pytest.raises(ValueError, match=r'64 channels are not .* 2 \* 64 heads'):
    _shapes(axial_resnet.AxialResNet(3, heads=64), (32, 32))
