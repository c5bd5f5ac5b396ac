"""Guards the hybrids' ResNet, BiT and AxialResNet, against plain NumPy."""

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive
from vit_jax.models import axial_resnet, resnet


class Features(nn.Module):
  blocks: tuple[int, ...]
  width_factor: int = 1

  @nn.compact
  def __call__(self, images):
    return resnet.backbone(
      images, blocks=self.blocks, width_factor=self.width_factor
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


def _unit_and_layers(unit, x, scale, standardized, epsilon):
  """Returns a unit's output and parameters, and its layers in NumPy."""
  params = naive.random_params(unit, x, scale=scale)
  p = naive.float64(params)

  def conv(name, x, *args):
    return naive.conv(x, standardized(p[name]), *args)

  def norm(name, x):
    return naive.group_norm(x, p[name], epsilon=epsilon)

  return jax.jit(unit.apply)({'params': params}, x), p, conv, norm


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
    (2, 128, ((0, 1), (1, 1)), 1e-3),  # SAME for 4 rows and 5 columns.
  ],
)
def test_unit_equals_numpy(strides, channels, padding, scale):
  x = _images(2, 4, 5, channels)
  unit = resnet.PostActivationUnit(features=32, strides=strides)
  out, _, conv, norm = _unit_and_layers(
    unit, x, scale, _hybrid_standardized, 1e-6
  )

  def expected(image):
    residual = image
    if strides == 2:
      residual = norm('gn_proj', conv('conv_proj', image, strides))
    y = naive.relu(norm('gn1', conv('conv1', image)))
    y = naive.relu(norm('gn2', conv('conv2', y, strides, padding)))
    return naive.relu(residual + norm('gn3', conv('conv3', y)))

  _assert_images_close(out, expected, x)


def test_root_equals_numpy_with_explicit_padding():
  # The paddings are those of SAME: convolution and pooling map 9 -> 5 -> 3 and
  # 8 -> 4 -> 2 pixels.
  images = 1e-4 * _images(1, 9, 8, 3)  # So small that the epsilon matters.
  params = naive.random_params(Features(()), images, scale=1e-3)
  assert set(params) == {'conv_root', 'gn_root'}
  out = jax.jit(Features(()).apply)({'params': params}, images)
  p = naive.float64(params)
  kernel = _hybrid_standardized(p['conv_root'])
  x = naive.conv(naive.float64(images[0]), kernel, 2, ((3, 3), (2, 3)))
  x = naive.group_norm(x, p['gn_root'], 1e-6)
  expected = naive.max_pool(naive.relu(x), ((1, 1), (0, 1)))
  np.testing.assert_allclose(out[0], expected, rtol=1e-4, atol=1e-8)


def test_feature_maps_and_parameters_of_each_stage():
  for blocks, grid_224, grid, channels in (
    ((), (56, 56), (25, 40), 64),
    ((1,), (56, 56), (25, 40), 256),
    ((1, 1, 1, 1), (7, 7), (4, 5), 2048),
  ):
    assert resnet.feature_grid((224, 224), blocks) == grid_224
    assert resnet.feature_grid((97, 160), blocks) == grid
    out, _ = _shapes(Features(blocks, width_factor=2), (97, 160))
    assert out.shape == (2, *grid, 2 * channels)
  _, shapes = _shapes(Features((2,)), (32, 32))
  expected = {'conv_root/kernel': (7, 7, 3, 64)}
  for unit, channels in (('unit1', 64), ('unit2', 256)):
    expected |= {
      f'block1/{unit}/conv1/kernel': (1, 1, channels, 64),
      f'block1/{unit}/conv2/kernel': (3, 3, 64, 64),
      f'block1/{unit}/conv3/kernel': (1, 1, 64, 256),
    }
  expected['block1/unit1/conv_proj/kernel'] = (1, 1, 64, 256)
  for name, shape in list(expected.items()):
    norm = name.removesuffix('kernel').replace('conv', 'gn')
    expected |= {norm + part: shape[-1:] for part in ('scale', 'bias')}
  assert {name: a.shape for name, a in shapes.items()} == expected
  assert {a.dtype for a in shapes.values()} == {jnp.dtype('float32')}


# BiT -------------------------------------------------------------------------


def test_parameters_of_the_released_r50x1():
  (logits, out), shapes = _shapes(resnet.BiT(num_classes=21_843), (97, 160))
  assert (logits.shape, logits.dtype) == ((2, 21_843), jnp.float32)
  assert out['encoded'].shape == (2, 4, 5, 2048)
  assert len(shapes) == 153
  assert sum(a.size for a in shapes.values()) == 68_256_659
  assert {n for n in shapes if 'block' not in n or '1/unit1/' in n} == {
    *('conv_root/kernel', 'head/kernel', 'head/bias'),
    *('gn_final/scale', 'gn_final/bias', 'block1/unit1/conv_proj/kernel'),
    *(f'block1/unit1/conv{i}/kernel' for i in (1, 2, 3)),
    *(f'block1/unit1/gn{i}/{p}' for i in (1, 2, 3) for p in ('scale', 'bias')),
  }
  assert shapes['block3/unit1/conv_proj/kernel'].shape == (1, 1, 512, 1024)
  assert shapes['block4/unit2/gn1/scale'].shape == (2048,)


# At scale 1e-5 every epsilon changes the result.
@pytest.mark.parametrize(
  'strides, channels, scale', [(1, 128, 1e-5), (2, 128, 1e-3)]
)
def test_bit_unit_equals_numpy(strides, channels, scale):
  x = scale * _images(2, 4, 5, channels)
  unit = resnet.PreActivationUnit(features=32, strides=strides)
  out, _, conv, norm = _unit_and_layers(unit, x, scale, _bit_standardized, 1e-5)

  def activate(name, x):
    return naive.relu(norm(name, x))

  def expected(image):
    residual, y = image, activate('gn1', image)
    if strides == 2:
      residual = conv('conv_proj', y, strides)
    y = activate('gn2', conv('conv1', y))
    y = activate('gn3', conv('conv2', y, strides, ((1, 1), (1, 1))))
    return residual + conv('conv3', y)

  _assert_images_close(out, expected, x, atol=2e-5)


def test_bit_without_units_equals_numpy():
  images = _images(2, 15, 10, 3)
  model = resnet.BiT(num_classes=5, blocks=())
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


def test_the_attributes_of_classifiers_are_named():
  # A fourth position was once `heads`.
  for make in (resnet.BiT, axial_resnet.AxialResNet):
    with pytest.raises(TypeError, match='positional'):
      make(10, (1,), 1, 8)


def test_axial_attention_refuses_heads_that_do_not_divide_the_channels():
  # 8 channels of 8 heads would leave queries and keys without numbers.
  layer = axial_resnet.AxialAttention(heads=8, axis='height')
  with pytest.raises(ValueError, match=r'8 channels .* 2 \* 8 heads.* change'):
    layer.init(jax.random.key(0), jnp.zeros((1, 2, 2, 8)))


def _mean_pool(x):
  """Averages 2x2 windows over the values inside the map."""
  rows, columns = range(0, x.shape[0], 2), range(0, x.shape[1], 2)
  return np.array(
    [[x[i : i + 2, j : j + 2].mean((0, 1)) for j in columns] for i in rows]
  )


# At scale 3e-3 the norms' epsilon changes the result.
def test_axial_unit_equals_numpy():
  x = _normal(1, 3, 4, 128)
  unit = axial_resnet.AxialUnit(features=32, strides=2, heads=4)
  out, p, conv, norm = _unit_and_layers(
    unit, x, 3e-3, _hybrid_standardized, 1e-4
  )

  def expected(image):
    residual = norm('gn_proj', conv('conv_proj', image, 2))
    y = naive.relu(norm('gn1', conv('conv1', image)))
    y = _layer(y, p['height_attention'], 4, 'height')
    y = _layer(y, p['width_attention'], 4, 'width')
    y = _mean_pool(y)
    return naive.relu(residual + norm('gn3', conv('conv3', naive.relu(y))))

  _assert_images_close(out, expected, x, rtol=5e-4, atol=2e-5)


@pytest.mark.gate  # The unit, above, has all that is not a size.
def test_axial_resnet50():
  model = axial_resnet.AxialResNet(num_classes=1000)
  (logits, out), shapes = _shapes(model, (97, 160))
  assert (logits.shape, logits.dtype) == ((2, 1000), jnp.float32)
  assert out['encoded'].shape == (2, 4, 5, 2048)
  assert out['pre_logits'].shape == (2, 2048)
  assert sum(a.size for a in shapes.values()) == 19_346_344
  assert 'block1/unit1/conv2/kernel' not in shapes
