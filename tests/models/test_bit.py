"""Guards BiT: parameter counts and names; unit and root equal plain NumPy."""

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive_resnet as naive
from tests.models.test_resnet import Norm
from vit_jax.models import bit, position

BLOCKS = {
  50: (3, 4, 6, 3),
  101: (3, 4, 23, 3),
  152: (3, 8, 36, 3),
  200: (3, 24, 36, 3),
}


def _images(*shape):
  return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def _shapes(model, size=(224, 224)):
  images = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
  out, variables = jax.eval_shape(
    model.init_with_output, jax.random.key(0), images
  )
  return out, flax.traverse_util.flatten_dict(variables['params'], sep='/')


def _formula(blocks, w):
  """Returns the number of parameters without the head."""
  count = 7 * 7 * 3 * 64 * w
  channels = 64 * w
  for i, units in enumerate(blocks):
    f = 64 * w * 2**i
    count += channels * 4 * f  # The projection.
    for _ in range(units):
      count += channels * f + 9 * f * f + f * 4 * f
      count += 2 * (channels + f + f)  # Scales and biases.
      channels = 4 * f
  return count + 2 * channels


@pytest.mark.parametrize(
  'depth, width_factor, count',
  [
    (50, 1, 23_500_352),
    (50, 2, 93_891_712),
    (50, 3, 211_174_080),
    (101, 1, 42_492_480),
    (101, 3, 381_789_888),
    (152, 1, 58_136_128),
    (152, 2, 232_238_208),
    (152, 4, 928_340_224),
    (200, 3, 562_488_000),
  ],
)
def test_parameter_counts(depth, width_factor, count):
  blocks = BLOCKS[depth]
  model = bit.BiT(1000, blocks, width_factor)
  _, shapes = _shapes(model)
  body = sum(a.size for k, a in shapes.items() if not k.startswith('head/'))
  assert body == count == _formula(blocks, width_factor)
  assert shapes['head/kernel'].shape == (2048 * width_factor, 1000)
  assert shapes['head/bias'].shape == (1000,)


def test_parameters_of_the_released_r50x1():
  _, shapes = _shapes(bit.BiT(21_843, BLOCKS[50], 1))
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


@pytest.mark.parametrize(
  'size, grid',
  [((224, 224), (7, 7)), ((97, 160), (4, 5)), ((480, 480), (15, 15))],
)
def test_runs_at_any_size(size, grid):
  model = bit.BiT(10, BLOCKS[50], 3)
  (logits, out), _ = _shapes(model, size)
  assert (logits.shape, logits.dtype) == ((2, 10), jnp.float32)
  assert out['encoded'].shape == (2, *grid, 6144)
  assert out['pre_logits'].shape == (2, 6144)
  assert position.grid_of(model, size) is None


def _standardized(params):
  kernel = params['kernel']
  deviation = np.sqrt(kernel.var((0, 1, 2)) + 1e-10)
  return (kernel - kernel.mean((0, 1, 2))) / deviation


# At scale 1e-5 every epsilon changes the result.
@pytest.mark.parametrize('scale', [0.3, 1e-3, 1e-5])
@pytest.mark.parametrize('strides, channels', [(1, 128), (1, 64), (2, 128)])
def test_unit_equals_numpy(strides, channels, scale):
  x = scale * _images(2, 4, 5, channels)
  unit = bit.PreActivationUnit(features=32, strides=strides)
  params = naive.random_params(unit, x, scale=scale)
  out = jax.jit(unit.apply)({'params': params}, x)
  p = naive.float64(params)

  def activate(name, x):
    return naive.relu(naive.group_norm(x, p[name], epsilon=1e-5))

  def conv(name, x, *args):
    return naive.conv(x, _standardized(p[name]), *args)

  for image, result in zip(x.astype(np.float64), out, strict=True):
    residual, y = image, activate('gn1', image)
    if strides == 2 or channels == 64:
      residual = conv('conv_proj', y, strides)
    y = activate('gn2', conv('conv1', y))
    y = activate('gn3', conv('conv2', y, strides, ((1, 1), (1, 1))))
    expected = residual + conv('conv3', y)
    np.testing.assert_allclose(
      result, expected, rtol=2e-4, atol=2e-5 * np.abs(expected).max()
    )


def test_model_without_units_equals_numpy():
  images = _images(2, 15, 10, 3)
  model = bit.BiT(5, (), 1)
  params = naive.random_params(model, images)
  logits, out = model.apply({'params': params}, images)
  p = naive.float64(params)
  for i, image in enumerate(naive.float64(images)):
    root = _standardized(p['conv_root'])
    x = naive.conv(image, root, 2, ((3, 3), (3, 3)))  # 15x10 -> 8x5.
    x = naive.max_pool(x, ((1, 1), (1, 1)))  # -> 4x3.
    x = naive.relu(naive.group_norm(x, p['gn_final'], epsilon=1e-5))
    np.testing.assert_allclose(out['encoded'][i], x, rtol=1e-3, atol=1e-5)
    x = x.mean((0, 1))
    np.testing.assert_allclose(out['pre_logits'][i], x, rtol=1e-4)
    expected = x @ p['head']['kernel'] + p['head']['bias']
    np.testing.assert_allclose(logits[i], expected, rtol=1e-4, atol=1e-5)


class Root(nn.Module):
  @nn.compact
  def __call__(self, images):
    return bit.root(images, width_factor=1, dtype=jnp.float32)


def test_the_root_pads_its_pooling_by_zeros():
  # One 1 and 48 zeros standardize to 48 / sqrt(48) and -1 / sqrt(48).
  kernel = np.zeros((7, 7, 1, 64), np.float32)
  kernel[3, 3] = 1

  def pooled(pixel):
    images = jnp.full((1, 1, 1, 1), pixel)
    return Root().apply({'params': {'conv_root': {'kernel': kernel}}}, images)

  assert pooled(1.0).shape == (1, 1, 1, 64)
  np.testing.assert_allclose(pooled(1.0), 48**0.5, rtol=1e-5)
  np.testing.assert_array_equal(pooled(-1.0), 0)  # Not -48**0.5.


@pytest.mark.parametrize('size', [(1, 1), (2, 3), (5, 6), (6, 5)])
def test_the_pooling_equals_one_over_zeros_and_so_does_its_gradient(size):
  x = np.random.default_rng(0).normal(-1, 1, (2, *size, 8)).astype(np.float32)

  def padded(x):
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return nn.max_pool(x, (3, 3), strides=(2, 2), padding='VALID')

  expected, transposed = jax.vjp(padded, x)
  found, ours = jax.vjp(bit._pool, x)
  np.testing.assert_array_equal(found, expected)
  assert (expected == 0).any()
  weights = np.random.default_rng(1).normal(size=found.shape)
  weights = jnp.asarray(weights, jnp.float32)
  np.testing.assert_array_equal(ours(weights)[0], transposed(weights)[0])


def test_initial_logits_equal_the_head_bias():
  model = bit.BiT(3, (1,), 1, head_bias=-6.9)
  (logits, out), variables = jax.jit(model.init_with_output)(
    jax.random.key(0), _images(2, 8, 8, 3)
  )
  np.testing.assert_array_equal(logits, np.full((2, 3), -6.9, np.float32))
  assert np.abs(out['pre_logits']).max() > 0.1
  deviation = np.std(variables['params']['conv_root']['kernel'])
  np.testing.assert_allclose(deviation, (7 * 7 * 3) ** -0.5, rtol=0.05)


def test_bfloat16_reaches_the_head_and_remat_changes_nothing():
  images = _images(2, 8, 8, 3)
  model = bit.BiT(3, (1,), 1)
  params = naive.random_params(model, images)
  assert {a.dtype.name for a in jax.tree.leaves(params)} == {'float32'}
  logits, _ = jax.jit(model.apply)({'params': params}, images)
  for dtype, remat in [('bfloat16', 'none'), ('float32', 'full')]:
    other = bit.BiT(3, (1,), 1, dtype=jnp.dtype(dtype), remat=remat)
    shapes = jax.eval_shape(other.init, jax.random.key(0), images)['params']
    assert jax.tree.structure(shapes) == jax.tree.structure(params)
    result, out = jax.jit(other.apply)({'params': params}, images)
    assert result.dtype == jnp.float32
    assert {a.dtype for a in out.values()} == {jnp.dtype(dtype)}
    tolerance = 0.05 if dtype == 'bfloat16' else 1e-5
    np.testing.assert_allclose(result, logits, atol=tolerance)


@pytest.mark.parametrize(
  'images, message',
  [
    (np.zeros((8, 8, 3), np.float32), r'images are float32\[8, 8, 3\], expec'),
    (np.zeros((1, 8, 8, 3), np.uint8), r'images are uint8\[1, 8, 8, 3\]'),
    (np.zeros((1, 0, 8, 3), np.float32), r'size 0x8 px has no pixels'),
  ],
)
def test_rejects_other_images(images, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(bit.BiT(2, (1,), 1).init, jax.random.key(0), images)


@pytest.mark.parametrize('width_factor', [1 / 16, 0.25, 0.5])
def test_fractional_width_factors(width_factor):
  model = bit.BiT(10, (1, 2), width_factor)
  _, shapes = _shapes(model)
  body = sum(a.size for k, a in shapes.items() if not k.startswith('head/'))
  assert body == _formula((1, 2), width_factor)
  assert shapes['head/kernel'].shape == (512 * width_factor, 10)
  assert shapes['conv_root/kernel'].shape[-1] == 64 * width_factor


def test_a_narrow_norm_has_two_channels_per_group():
  x = jax.random.normal(jax.random.key(0), (2, 3, 3, 8))
  found, _ = Norm().init_with_output(jax.random.key(0), x)
  grouped = np.asarray(x).reshape(2, 9, 4, 2)
  centred = grouped - grouped.mean(axis=(1, 3), keepdims=True)
  expected = centred / np.sqrt(
    np.square(centred).mean(axis=(1, 3), keepdims=True) + 1e-6
  )
  np.testing.assert_allclose(found, expected.reshape(x.shape), atol=1e-5)
