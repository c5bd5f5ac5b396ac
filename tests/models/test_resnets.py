"""Guards the hybrids' ResNet, BiT and AxialResNet, against plain NumPy."""

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive
from vit_jax.models import axial_resnet, position, resnet


class Features(nn.Module):
  blocks: tuple[int, ...]
  width_factor: int = 1
  remat: str = 'none'

  @nn.compact
  def __call__(self, images):
    return resnet.backbone(
      images,
      blocks=self.blocks,
      width_factor=self.width_factor,
      remat=self.remat,
    )


def _images(*shape):
  return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def _normal(*shape, seed=1):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _shapes(model, size):
  """Returns the shapes of the outputs and of the parameters, by name."""
  images = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
  out, variables = jax.eval_shape(
    model.init_with_output, jax.random.key(0), images
  )
  return out, flax.traverse_util.flatten_dict(variables['params'], sep='/')


def _hybrid_standardized(params):
  kernel = params['kernel']
  centred = kernel - kernel.mean((0, 1, 2))
  return centred / (kernel.std((0, 1, 2)) + 1e-5)


def _bit_standardized(params):
  kernel = params['kernel']
  deviation = np.sqrt(kernel.var((0, 1, 2)) + 1e-10)
  return (kernel - kernel.mean((0, 1, 2))) / deviation


def _assert_images_close(actual, expected, inputs, rtol=2e-4, atol=1e-5):
  """Compares with a function of one image in float64."""
  for image, result in zip(naive.float64(inputs), actual, strict=True):
    exact = expected(image)
    np.testing.assert_allclose(
      result, exact, rtol=rtol, atol=atol * np.abs(exact).max()
    )


# Layers ----------------------------------------------------------------------


class Norm(nn.Module):
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x):
    return resnet.GroupNorm(epsilon=1e-6, dtype=self.dtype, name='norm')(x)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_group_norm_by_hand(dtype):
  # 64 channels are 32 groups of 2, so two pixels give four numbers per group.
  x = np.zeros((2, 2, 1, 64), np.float32)
  x[0, 0, 0, :2] = 1, 1
  x[0, 1, 0, :2] = 3, 3
  x[0, :, 0, 2:4] = 10_001, 10_003  # Squares lose their last digit.
  x[1, 0, 0, :2] = -0.001, 0.001  # As small as the epsilon.
  x[1, 1, 0, :2] = -0.001, 0.001
  y, _ = Norm(dtype).init_with_output(jax.random.key(0), x)
  y = np.asarray(y, np.float32)
  tolerance = dict(rtol=1e-5 if dtype == jnp.float32 else 4e-3)
  np.testing.assert_allclose(y[0, 0, 0, :4], [-1, -1, -1, 1], **tolerance)
  np.testing.assert_allclose(y[0, 1, 0, :4], [1, 1, -1, 1], **tolerance)
  half = 2**-0.5
  np.testing.assert_allclose(y[1, 1, 0, :2], [-half, half], **tolerance)
  assert not y[:, :, :, 4:].any()


# The hybrids' backbone -------------------------------------------------------


# At scale 1e-3 every epsilon changes the result.
@pytest.mark.parametrize(
  'strides, channels, padding, scale',
  [
    (1, 128, ((1, 1), (1, 1)), 1e-3),
    (1, 64, ((1, 1), (1, 1)), 0.3),
    (2, 128, ((0, 1), (1, 1)), 1e-3),  # SAME for 4 rows and 5 columns.
  ],
)
def test_unit_equals_numpy(strides, channels, padding, scale):
  x = _images(2, 4, 5, channels)
  unit = resnet.PostActivationUnit(features=32, strides=strides)
  params = naive.random_params(unit, x, scale=scale)
  out = jax.jit(unit.apply)({'params': params}, x)
  p = naive.float64(params)

  def conv(name, x, *args):
    return naive.conv(x, _hybrid_standardized(p[name]), *args)

  def norm(name, x):
    return naive.group_norm(x, p[name], epsilon=1e-6)

  def expected(image):
    residual = image
    if strides == 2 or channels == 64:
      residual = norm('gn_proj', conv('conv_proj', image, strides))
    y = naive.relu(norm('gn1', conv('conv1', image)))
    y = naive.relu(norm('gn2', conv('conv2', y, strides, padding)))
    return naive.relu(residual + norm('gn3', conv('conv3', y)))

  _assert_images_close(out, expected, x)


# The paddings are those of SAME: convolution and pooling map 8 -> 4 -> 2 and
# 7 -> 4 -> 2 pixels, or 10 -> 5 -> 3 and 9 -> 5 -> 3.
@pytest.mark.parametrize(
  'size, conv_padding, pool_padding',
  [
    ((8, 7), ((2, 3), (3, 3)), ((0, 1), (0, 1))),
    ((9, 10), ((3, 3), (2, 3)), ((1, 1), (1, 1))),
  ],
)
def test_root_equals_numpy_with_explicit_padding(
  size, conv_padding, pool_padding
):
  images = 1e-4 * _images(1, *size, 3)  # So small that the epsilon matters.
  params = naive.random_params(Features(()), images, scale=1e-3)
  assert set(params) == {'conv_root', 'gn_root'}
  out = Features(()).apply({'params': params}, images)
  p = naive.float64(params)
  kernel = _hybrid_standardized(p['conv_root'])
  x = naive.conv(naive.float64(images[0]), kernel, 2, conv_padding)
  x = naive.group_norm(x, p['gn_root'], 1e-6)
  expected = naive.max_pool(naive.relu(x), pool_padding)
  np.testing.assert_allclose(out[0], expected, rtol=1e-4, atol=1e-8)


def test_feature_maps_of_each_stage():
  for blocks, grid_224, grid, channels in (
    ((), (56, 56), (25, 40), 64),
    ((1,), (56, 56), (25, 40), 256),
    ((1, 1), (28, 28), (13, 20), 512),
    ((1, 1, 1, 1), (7, 7), (4, 5), 2048),
  ):
    assert resnet.feature_grid((224, 224), blocks) == grid_224
    assert resnet.feature_grid((97, 160), blocks) == grid
    out, _ = _shapes(Features(blocks, width_factor=2), (97, 160))
    assert out.shape == (2, *grid, 2 * channels)


def test_parameters_have_the_released_names():
  _, shapes = _shapes(Features((2, 1)), (32, 32))
  expected = {'conv_root/kernel': (7, 7, 3, 64)}
  expected |= {f'gn_root/{name}': (64,) for name in ('scale', 'bias')}
  for path, channels, features, projected in [
    ('block1/unit1', 64, 64, True),
    ('block1/unit2', 256, 64, False),
    ('block2/unit1', 256, 128, True),
  ]:
    layers = [
      ('1', (1, 1, channels, features)),
      ('2', (3, 3, features, features)),
      ('3', (1, 1, features, 4 * features)),
    ]
    if projected:
      layers.append(('_proj', (1, 1, channels, 4 * features)))
    for layer, shape in layers:
      expected[f'{path}/conv{layer}/kernel'] = shape
      expected[f'{path}/gn{layer}/scale'] = shape[-1:]
      expected[f'{path}/gn{layer}/bias'] = shape[-1:]
  assert {name: a.shape for name, a in shapes.items()} == expected
  assert {a.dtype for a in shapes.values()} == {jnp.dtype('float32')}


def test_remat_recomputes_more_and_keeps_the_gradient():
  images = _images(1, 8, 8, 3)
  params = naive.random_params(Features((1,)), images)

  def gradient(remat):
    model = Features((1,), remat=remat)
    return jax.grad(lambda p: jnp.sum(model.apply({'params': p}, images) ** 2))

  def convolutions(remat):
    return str(jax.make_jaxpr(gradient(remat))(params)).count('conv_general')

  # The unit has 4 convolutions, and 8 in the backward pass. The root has 1, and
  # 1 for its kernel's gradient.
  assert convolutions('none') == convolutions('dots') == 14
  assert convolutions('full') == 14 + 4  # The root is not in a checkpoint.
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max()),
    jax.jit(gradient('full'))(params),
    jax.jit(gradient('none'))(params),
  )


# BiT -------------------------------------------------------------------------


def test_parameters_of_the_released_r50x1():
  (logits, out), shapes = _shapes(
    resnet.BiT(21_843, (3, 4, 6, 3), 1), (97, 160)
  )
  assert (logits.shape, logits.dtype) == ((2, 21_843), jnp.float32)
  assert out['encoded'].shape == (2, 4, 5, 2048)
  assert len(shapes) == 153
  assert sum(a.size for a in shapes.values()) == 68_256_659
  expected = {'conv_root/kernel', 'head/kernel', 'head/bias'}
  expected |= {'gn_final/scale', 'gn_final/bias'}
  for b, units in enumerate((3, 4, 6, 3), 1):
    expected.add(f'block{b}/unit1/conv_proj/kernel')
    for u in range(1, units + 1):
      for i in (1, 2, 3):
        expected.add(f'block{b}/unit{u}/conv{i}/kernel')
        expected.add(f'block{b}/unit{u}/gn{i}/scale')
        expected.add(f'block{b}/unit{u}/gn{i}/bias')
  assert set(shapes) == expected
  for b, c, f in [(1, 64, 64), (2, 256, 128), (3, 512, 256), (4, 1024, 512)]:
    unit = f'block{b}/unit1'
    assert shapes[f'{unit}/gn1/scale'].shape == (c,)
    assert shapes[f'{unit}/conv1/kernel'].shape == (1, 1, c, f)
    assert shapes[f'{unit}/conv_proj/kernel'].shape == (1, 1, c, 4 * f)
    assert shapes[f'{unit}/gn2/bias'].shape == (f,)
    assert shapes[f'{unit}/conv2/kernel'].shape == (3, 3, f, f)
    assert shapes[f'{unit}/gn3/bias'].shape == (f,)
    assert shapes[f'{unit}/conv3/kernel'].shape == (1, 1, f, 4 * f)
    assert shapes[f'block{b}/unit2/gn1/scale'].shape == (4 * f,)


# At scale 1e-5 every epsilon changes the result.
@pytest.mark.parametrize(
  'strides, channels, scale', [(1, 128, 1e-5), (1, 64, 0.3), (2, 128, 1e-3)]
)
def test_bit_unit_equals_numpy(strides, channels, scale):
  x = scale * _images(2, 4, 5, channels)
  unit = resnet.PreActivationUnit(features=32, strides=strides)
  params = naive.random_params(unit, x, scale=scale)
  out = jax.jit(unit.apply)({'params': params}, x)
  p = naive.float64(params)

  def activate(name, x):
    return naive.relu(naive.group_norm(x, p[name], epsilon=1e-5))

  def conv(name, x, *args):
    return naive.conv(x, _bit_standardized(p[name]), *args)

  def expected(image):
    residual, y = image, activate('gn1', image)
    if strides == 2 or channels == 64:
      residual = conv('conv_proj', y, strides)
    y = activate('gn2', conv('conv1', y))
    y = activate('gn3', conv('conv2', y, strides, ((1, 1), (1, 1))))
    return residual + conv('conv3', y)

  _assert_images_close(out, expected, x, atol=2e-5)


def test_bit_without_units_equals_numpy():
  images = _images(2, 15, 10, 3)
  model = resnet.BiT(5, (), 1)
  params = naive.random_params(model, images)
  logits, out = jax.jit(model.apply)({'params': params}, images)
  p = naive.float64(params)
  for i, image in enumerate(naive.float64(images)):
    root = _bit_standardized(p['conv_root'])
    x = naive.conv(image, root, 2, ((3, 3), (3, 3)))  # 15x10 -> 8x5.
    x = naive.max_pool(x, ((1, 1), (1, 1)))  # -> 4x3.
    x = naive.relu(naive.group_norm(x, p['gn_final'], epsilon=1e-5))
    np.testing.assert_allclose(out['encoded'][i], x, rtol=1e-3, atol=1e-5)
    x = x.mean((0, 1))
    np.testing.assert_allclose(out['pre_logits'][i], x, rtol=1e-4)
    expected = x @ p['head']['kernel'] + p['head']['bias']
    np.testing.assert_allclose(logits[i], expected, rtol=1e-4, atol=1e-5)


# AxialResNet -----------------------------------------------------------------


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


def _layer(x, p, heads, axis):
  """Computes the layer for one feature map [h, w, C]."""
  if axis == 'height':
    return _layer(x.swapaxes(0, 1), p, heads, 'width').swapaxes(0, 1)
  return np.stack([_sequence(row, p, heads) for row in x])


def _sequence(x, p, heads):
  """Computes the layer for one row or column [L, C]."""
  length, channels = x.shape
  width = channels // heads
  x = x @ p['qkv']['kernel']
  x = naive.group_norm(x, p['gn_qkv'], 1e-4).reshape(length, heads, 2 * width)
  out = [
    _attention(
      *np.split(x[:, h], [width // 2, width], axis=-1), p['relative_embedding']
    )
    for h in range(heads)
  ]
  return naive.group_norm(np.concatenate(out, axis=-1), p['gn_out'], 1e-4)


# At scale 3e-3 the norms' epsilon changes the result.
@pytest.mark.parametrize(
  'axis, length, scale', [('height', 3, 3e-3), ('width', 4, 0.3)]
)
def test_axial_attention_equals_numpy(axis, length, scale):
  x = _normal(2, 3, 4, 32)
  layer = axial_resnet.AxialAttention(heads=4, axis=axis)
  params = naive.random_params(layer, x, scale=scale)
  assert jax.tree.map(np.shape, params) == {
    'qkv': {'kernel': (32, 64)},
    'gn_qkv': {'scale': (64,), 'bias': (64,)},
    'relative_embedding': (2 * length - 1, 16),
    'gn_out': {'scale': (32,), 'bias': (32,)},
  }
  out = jax.jit(layer.apply)({'params': params}, x)
  p = naive.float64(params)
  _assert_images_close(out, lambda image: _layer(image, p, 4, axis), x)


def _mean_pool(x):
  """Averages 2x2 windows over the values inside the map."""
  rows, columns = range(0, x.shape[0], 2), range(0, x.shape[1], 2)
  return np.array(
    [[x[i : i + 2, j : j + 2].mean((0, 1)) for j in columns] for i in rows]
  )


@pytest.mark.parametrize('strides, channels', [(1, 128), (2, 128)])
def test_axial_unit_equals_numpy(strides, channels):
  x = _normal(1, 3, 4, channels)
  unit = axial_resnet.AxialUnit(features=32, strides=strides, heads=4)
  params = naive.random_params(unit, x, scale=3e-3)
  out = jax.jit(unit.apply)({'params': params}, x)
  p = naive.float64(params)

  def conv(name, x, *args):
    return naive.conv(x, _hybrid_standardized(p[name]), *args)

  def norm(name, x):
    return naive.group_norm(x, p[name], epsilon=1e-4)

  def expected(image):
    residual = image
    if strides == 2:
      residual = norm('gn_proj', conv('conv_proj', image, strides))
    y = naive.relu(norm('gn1', conv('conv1', image)))
    y = _layer(y, p['height_attention'], 4, 'height')
    y = _layer(y, p['width_attention'], 4, 'width')
    if strides == 2:
      y = _mean_pool(y)
    return naive.relu(residual + norm('gn3', conv('conv3', naive.relu(y))))

  _assert_images_close(out, expected, x, rtol=5e-4, atol=2e-5)


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


def test_axial_resnet50():
  size, grids = (97, 160), ((25, 40), (13, 20), (7, 10), (4, 5))
  model = axial_resnet.AxialResNet(1000)
  (logits, out), shapes = _shapes(model, size)
  assert (logits.shape, logits.dtype) == ((2, 1000), jnp.float32)
  assert out['encoded'].shape == (2, *grids[-1], 2048)
  assert out['pre_logits'].shape == (2, 2048)
  assert position.grid_of(model, size) is None
  count = sum(a.size for a in shapes.values())
  assert count == _formula(grids) == 19_346_344
  assert 'block1/unit1/conv2/kernel' not in shapes
  top = {'conv_root', 'gn_root', 'head', *(f'block{b}' for b in range(1, 5))}
  assert {name.split('/')[0] for name in shapes} == top


def test_heads_must_divide_half_the_channels():
  with pytest.raises(ValueError, match=r'64 channels are not .* 2 \* 64 heads'):
    _shapes(axial_resnet.AxialResNet(3, blocks=(1,), heads=64), (32, 32))
